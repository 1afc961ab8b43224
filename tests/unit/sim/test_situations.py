"""Situations: every one has its turn, in a setup in which it can come about, and strikes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from faults.draw import draw, faults_of_situation
from faults.situations import BESIDE, SITUATIONS, Situation, situation_of
from sim.jobs import came_about
from sim.report import screen
from sim.run import run_seed

NAMES = [situation.name for situation in SITUATIONS]
TURNS = 6
"""Seeds in which a situation has to come about at least once."""


def test_every_other_seed_has_one_and_each_has_its_turn() -> None:
    turns = Counter(situation_of(seed).name for seed in range(1, 4 * len(SITUATIONS), 2))  # type: ignore[union-attr]
    assert turns == dict.fromkeys(NAMES, 2)
    assert all(situation_of(seed) is None for seed in range(0, 20, 2))


@pytest.mark.parametrize("number", range(len(SITUATIONS)), ids=NAMES)
def test_it_comes_about_within_a_few_seeds_and_is_survived(number: int) -> None:
    situation: Situation = SITUATIONS[number]
    for turn in range(TURNS):
        seed = 2 * (number + turn * len(SITUATIONS)) + 1
        plan = draw(seed, "default")
        assert plan.setup.workload in situation.workloads
        assert {name: getattr(plan.setup, name) for name in situation.setup} == dict(situation.setup)
        verdict = run_seed(seed)
        assert verdict.ok, screen(verdict, "this test")
        if came_about(verdict) == situation.name:
            return
    pytest.fail(f"nothing of it struck in {TURNS} seeds")


def test_one_comes_about_when_each_kind_of_its_own_faults_has_struck() -> None:
    seed = 2 * NAMES.index("late_reply") + 1
    first, second = faults_of_situation(seed, "default")
    assert draw(seed, "default").faults[:2] == (first, second)
    verdict = replace(run_seed(0, "calm"), seed=seed, profile="default", hit=frozenset({second}))
    assert came_about(verdict) == "late_reply", "both are delays"
    assert came_about(replace(verdict, hit=frozenset())) == ""
    assert came_about(replace(verdict, seed=seed + 1)) == "", "an ordinary seed"


def test_profiles_of_one_area_have_none() -> None:
    assert all(fault.__struct_config__.tag == "signal" for fault in draw(1, "signals").faults)
    assert max(BESIDE) < 3
