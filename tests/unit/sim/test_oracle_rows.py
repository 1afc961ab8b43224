"""The oracle's judgement of output rows: what may differ from the undisturbed run, and what may not (INV-1 … 4)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gym_ckpt.wire import json
from sim.oracle.findings import Findings
from sim.oracle.rows import judge_rows
from sim.reference import output_of, reference
from sim.workload import workload
from tests.unit.sim.onlooker import Onlooker

WORKLOAD = 1
Rows = list[dict[str, Any]]


def rows_of_the_undisturbed_run() -> Rows:
    """Its rows again, under other attempts and call ids, in another order."""
    output = reference(WORKLOAD).output
    rows = []
    for line, (_, effects), (_, tokens) in zip(output.rows, output.effects, output.tokens, strict=True):
        row = json.loads(line)
        row["verification"]["effects"] = copy.deepcopy(effects)
        row["calls"] = [{**call, "model_call_id": f"other-{number}"} for number, call in enumerate(tokens)]
        rows.append(row | {"attempt": 3})
    return rows[::-1]


def judged(rows: Rows, *, complete: bool = True, rest: bytes = b"") -> Findings:
    findings = Findings(Onlooker().world)
    data = b"".join(json.dumps(row) + b"\n" for row in rows) + rest
    judge_rows(findings, reference(WORKLOAD), output_of(data), complete=complete)
    return findings


def test_attempts_call_ids_and_order_may_differ() -> None:
    findings = judged(rows_of_the_undisturbed_run())
    assert findings.violations == []
    assert all(findings.checked[f"INV-{number}"] for number in (1, 2, 3, 4))


def test_an_incomplete_run_is_compared_as_far_as_it_goes() -> None:
    rows = rows_of_the_undisturbed_run()
    assert judged(rows[:3], complete=False, rest=b'{"rollout_id": "torn').violations == []
    rows[1]["reward"] = -1
    assert {each.invariant for each in judged(rows[:3], complete=False).violations} == {"INV-1"}


def with_effects(rows: Rows) -> dict[str, Any]:
    return next(row for row in rows if row["verification"]["effects"])


def other_reward(rows: Rows) -> None:
    rows[0]["reward"] = -1.0


def other_message(rows: Rows) -> None:
    rows[0]["messages"][-1]["content"] += " and more"


def missing(rows: Rows) -> None:
    del rows[0]


def stranger(rows: Rows) -> None:
    rows.append({**rows[0], "rollout_id": "nobody", "verification": {}, "calls": []})


def twice(rows: Rows) -> None:
    rows.append(rows[0])


def effect_twice(rows: Rows) -> None:
    effects = with_effects(rows)["verification"]["effects"]
    effects.append(effects[-1])


def effect_lost(rows: Rows) -> None:
    with_effects(rows)["verification"]["effects"].pop()


def other_tokens(rows: Rows) -> None:
    rows[0]["calls"][-1]["tokens_hash"] = "0" * 64


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (other_reward, {"INV-1"}),
        (other_message, {"INV-1"}),
        (missing, {"INV-1"}),
        (stranger, {"INV-1", "INV-4"}),
        (twice, {"INV-1", "INV-2"}),
        (effect_twice, {"INV-3"}),
        (effect_lost, {"INV-3"}),
        (other_tokens, {"INV-4"}),
    ],
)
def test_a_difference_is_seen_and_named(change: Callable[[Rows], None], broken: set[str]) -> None:
    rows = rows_of_the_undisturbed_run()
    change(rows)
    assert {each.invariant for each in judged(rows).violations} == broken


def test_the_undisturbed_run_is_played_once_and_belongs_to_its_workload() -> None:
    assert reference(WORKLOAD) is reference(WORKLOAD)
    assert set(reference(WORKLOAD).output.rollout_ids) == {task_id for task_id, _ in workload(WORKLOAD).tasks}
    assert reference(WORKLOAD).output.rows != reference(WORKLOAD + 1).output.rows
