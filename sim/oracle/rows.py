"""The output against the undisturbed run (INV-1, 2, 3, 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gym_ckpt.invariants import one_row_each, rows_equal
from sim.oracle.findings import Check, Findings, Handler, episode
from sim.reference import Output, Reference
from sim.trace import Row


class Effects(Check):
    """INV-3 as it happens: within one life of a server no tool step of an attempt has its effect twice."""

    def __init__(self, findings: Findings, reference: Reference) -> None:
        super().__init__(findings)
        self._steps = reference.steps
        self._seen: dict[str, set[str]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {"node.started": self._new_life, "tool.effect": self._effect}

    def _new_life(self, row: Row) -> None:
        self._seen.pop(row.node, None)

    def _effect(self, row: Row) -> None:
        key, at = row.fields["key"], episode(row.fields["episode"])
        seen = self._seen.setdefault(row.node, set())
        if key is not None:
            self.look(3, f"the effect of {key} happened again" if key in seen else None, row.node)
            seen.add(key)
        allowed, revision = self._steps.get(at.rollout_id, 0), row.fields["revision"]
        if revision > allowed:
            self.look(3, f"{at}: effect number {revision} of a conversation with {allowed}", row.node)


def judge_rows(findings: Findings, reference: Reference, output: Output, *, complete: bool) -> None:
    """Compare what was written. Rows of an incomplete run are compared as far as they go."""
    findings.look(2, one_row_each(output.rollout_ids))
    expected = Counter(reference.output.rows)
    if not complete:
        expected &= Counter(output.rows)
    findings.look(1, rows_equal(expected.elements(), output.rows))
    for rollout_id, effects in output.effects:
        wanted = reference.effects.get(rollout_id)
        wrong = effects != wanted
        findings.look(3, f"the tool effects of {rollout_id} are {effects!r}, not {wanted!r}" if wrong else None)
    for rollout_id, tokens in output.tokens:
        wrong = tokens != reference.tokens.get(rollout_id)
        findings.look(4, f"the tokens of {rollout_id} are not those of its own chain" if wrong else None)
