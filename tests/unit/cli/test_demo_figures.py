"""The demo's judgement: it must see every difference that it claims to look for."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gym_ckpt.cli.demo_figures import (
    Figures,
    Saved,
    compare,
    effects,
    judge,
    lineages,
    lost_calls,
    repeated_calls,
    saved_tokens,
)
from gym_ckpt.types import EpisodeId


def row(number: int, attempt: int = 0) -> dict[str, Any]:
    key = EpisodeId(f"r{number}", attempt).key
    calls = [{"model_call_id": f"{key}.c{index}.1", "completion_tokens": 10 + index} for index in range(3)]
    return {
        "rollout_id": f"r{number}",
        "attempt": attempt,
        "messages": [{"role": "assistant", "content": f"words {number}"}],
        "calls": calls,
        "verification": {"effects": [{"tool": "add_item"}] * number},
    }


EXPECTED = [row(1), row(2), row(3)]


def figures(**changes: Any) -> Figures:
    names = [name for name in Figures.__struct_fields__ if name not in ("ok", "reasons", "kept_in", "total_s")]
    return Figures(**(dict.fromkeys(names, 0) | {"rows_continued": 3} | changes))


def test_attempts_and_call_ids_are_no_difference() -> None:
    found = compare(EXPECTED, [row(3, 1), row(1, 2), row(2)])
    assert (found.duplicated, found.missing, found.differing) == (0, [], [])


@pytest.mark.parametrize(
    ("change", "duplicated", "missing", "differing"),
    [
        (lambda rows: rows.pop(), 0, ["r3"], []),
        (lambda rows: rows.append(row(2, 1)), 1, [], []),
        (lambda rows: rows[0]["messages"].append({}), 0, [], ["r1"]),
        (lambda rows: rows[1]["calls"].pop(), 0, [], ["r2"]),
        (lambda rows: rows.append(row(4)), 0, [], ["r4"]),
    ],
)
def test_every_difference_is_seen(change: Any, duplicated: int, missing: list[str], differing: list[str]) -> None:
    rows = deepcopy(EXPECTED)
    change(rows)
    found = compare(EXPECTED, rows)
    assert (found.duplicated, found.missing, found.differing) == (duplicated, missing, differing)
    judged = figures(rows_duplicated=found.duplicated)
    judge(judged, found, [], [])
    assert not judged.ok and judged.reasons


def saved() -> Saved:
    """r1 and r2 are continued with two and one delivered calls; r3 is not in the checkpoint."""
    delivered = {"r1": ["r1.c0.1", "r1.c1.1"], "r2": ["r2.c0.1"]}
    return Saved("c1", frozenset({"r1", "r2"}), frozenset(), delivered)


def test_repeated_calls_are_what_the_worker_did_beyond_what_was_left_to_do() -> None:
    rows = [row(1, 1), row(2, 1), row(3)]
    # r3 had finished before the kill; r1 had one call to go and r2 two.
    assert repeated_calls(saved(), rows, {"r3"}, made_after=3) == 0
    assert repeated_calls(saved(), rows, {"r3"}, made_after=5) == 2
    # r3 was in flight, but not captured: all its calls are made anew.
    assert repeated_calls(saved(), rows, set(), made_after=6) == 0


def test_a_delivered_call_that_is_not_in_its_row_is_lost() -> None:
    kept = row(1, 1)
    kept["calls"][0]["model_call_id"], kept["calls"][1]["model_call_id"] = "r1.c0.1", "r1.c1.1"
    assert lost_calls(saved(), [kept, row(2)]) == []
    assert saved_tokens(saved(), [kept, row(2), row(3)]) == 10 + 11 + 10
    assert lost_calls(saved(), [kept, row(2, 1)]) == ["r2.c0.1"]


def test_a_lineage_counts_only_when_it_is_usable_whole_and_ends_where_its_row_ends() -> None:
    rows = [row(1, 1)]
    rows[0]["calls"][-1]["tokens_hash"] = "end"
    good = {"capture_key": "r1-a1", "usable": True, "rows": 3, "tips": [{"cumulative_hash": "end"}], "detail": None}
    found = lineages(rows, [good])
    assert (found.rows, found.sound, found.wrong) == (3, 1, [])
    for bad in (
        [],
        [good | {"usable": False, "detail": "poisoned"}],
        [good | {"rows": 2}],
        [good | {"tips": [{"cumulative_hash": "elsewhere"}]}],
        [good | {"capture_key": "r1"}],
    ):
        found = lineages(rows, bad)
        assert (found.rows, found.sound, len(found.wrong)) == (0, 0, 1)


def test_the_verdict_names_what_is_wrong() -> None:
    same = compare(EXPECTED, EXPECTED)
    assert effects(EXPECTED) == 6
    good = figures()
    judge(good, same, [], [row(1, 1)])
    assert good.ok and good.reasons == []
    for changes, lost, continued, words in (
        ({"tool_effects_seen": 1}, [], [], "tool effect"),
        ({"model_calls_repeated": 2}, [], [], "made again"),
        ({"rows_continued": 0}, [], [], "continued no row"),
        ({"ledger_rows_expected": 2, "ledger_rows_verified": 1}, [], [], "verified: 1 of 2 ledger rows"),
        ({}, ["r1.c0.1"], [], "r1.c0.1"),
        ({}, [], [row(1)], "not continued: 1 row, r1"),
    ):
        bad = figures(**changes)
        judge(bad, same, lost, continued)
        assert not bad.ok and words in bad.reasons[0]
