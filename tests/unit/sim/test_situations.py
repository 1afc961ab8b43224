"""Situations: every one has its turn, in a setup in which it can come about, and strikes."""

from __future__ import annotations

from collections import Counter

import pytest

from faults.draw import draw
from faults.situations import BESIDE, SITUATIONS, Situation, situation_of
from sim.report import screen
from sim.run import run_seed

NAMES = [situation.name for situation in SITUATIONS]


def test_every_other_seed_has_one_and_each_has_its_turn() -> None:
    turns = Counter(situation_of(seed).name for seed in range(1, 4 * len(SITUATIONS), 2))  # type: ignore[union-attr]
    assert turns == dict.fromkeys(NAMES, 2)
    assert all(situation_of(seed) is None for seed in range(0, 20, 2))


@pytest.mark.parametrize("number", range(len(SITUATIONS)), ids=NAMES)
def test_it_can_come_about_and_is_survived(number: int) -> None:
    situation: Situation = SITUATIONS[number]
    seed = 2 * number + 1
    plan = draw(seed, "default")
    assert plan.setup.workload in situation.workloads
    assert {name: getattr(plan.setup, name) for name in situation.setup} == dict(situation.setup)
    assert len(plan.faults) > 0, "beside it are few others"
    verdict = run_seed(seed)
    assert verdict.ok, screen(verdict, "this test")


def test_profiles_of_one_area_have_none() -> None:
    assert all(fault.__struct_config__.tag == "signal" for fault in draw(1, "signals").faults)
    assert max(BESIDE) < 3
