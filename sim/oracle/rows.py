"""The output against the undisturbed run (INV-1, 2, 3, 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gym_ckpt.invariants import one_row_each, rows_equal
from gym_ckpt.types import Kind
from gym_ckpt.wire.messages import ROLLOUT_PREFIX
from sim.oracle.findings import Check, Findings, Handler, episode, key_of
from sim.reference import Output, Reference
from sim.trace import Row

NO_TOOLS = frozenset({"verify", "seed_session", "close_session"})
"""Calls of a resources server that are no tool's."""
BEFORE = "resources.before_effect"
"""A call that fails at this point has done nothing yet."""


class Effects(Check):
    """INV-3 as it happens: within one life of a server no tool step of an attempt has its effect twice, and none that
    broke off, with who knows how much of its effect, is in a checkpoint from which it would be done again."""

    def __init__(self, findings: Findings, reference: Reference) -> None:
        super().__init__(findings)
        self._steps = reference.steps
        self._seen: dict[str, set[str]] = {}
        self._calls: dict[int, str] = {}
        """Tagged calls of a name of one part, as tools have: by exchange, whose."""
        self._broken: dict[str, set[str]] = {}
        """By server: capture keys of sessions in which a call raised."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "net.request": self._request,
            "net.duplicate": self._request,
            "handler.error": self._raised,
            "commit.exported": self._exported,
            "tool.effect": self._effect,
            "verify.effect": self._verified,
        }

    def _new_life(self, row: Row) -> None:
        self._seen.pop(row.node, None)
        self._broken.pop(row.node, None)

    def _request(self, row: Row) -> None:
        path = row.fields["path"]
        key = key_of(path)
        route = path.removeprefix(f"{ROLLOUT_PREFIX}{key}/")
        if key and "/" not in route and route not in NO_TOOLS:
            self._calls[row.fields["x"]] = key

    def _raised(self, row: Row) -> None:
        key = self._calls.get(row.fields["x"])
        if key is not None and not row.fields["error"].endswith(BEFORE):
            self._broken.setdefault(row.node, set()).add(key)

    def _exported(self, row: Row) -> None:
        if row.fields["kind"] == Kind.RESOURCES:
            odd = sorted(self._broken.get(row.node, set()).intersection(row.fields["episodes"]))
            self.look(3, f"the session of {odd[0]}, in which a tool broke off, is exported" if odd else None, row.node)

    def _verified(self, row: Row) -> None:
        self._once(row, row.fields["key"])

    def _once(self, row: Row, key: str | None) -> None:
        seen = self._seen.setdefault(row.node, set())
        if key is not None:
            self.look(3, f"the effect of {key} happened again" if key in seen else None, row.node)
            seen.add(key)

    def _effect(self, row: Row) -> None:
        key, at = row.fields["key"], episode(row.fields["episode"])
        self._once(row, key)
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
