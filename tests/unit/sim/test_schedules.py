"""Schedules: interleavings that shuffling cannot reach, the same in every process, dropped where they do not matter."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
import trio

from faults.draw import draw
from faults.plan import Plan, Setup, dump, load
from faults.schedule import HoldBack, OneByOne, Priorities, Schedule, draw_schedule, name_of
from sim.clock import VirtualClock
from sim.determinism import run_deterministic
from sim.jobs import Job, run_job
from sim.schedules import WAITED_TURNS, policy_of
from sim.shrink import shrink
from sim.streams import stream

KINDS: tuple[Schedule, ...] = (HoldBack(0.1, 40), OneByOne(), Priorities(3, 60))
STEPS = 8
"""That one task takes while another, which is runnable all the time, takes none."""


def found(seed: int, schedule: Schedule | None) -> bool:
    """A lock that is looked at, and taken a step later: the mistake shows only if one task sleeps through `STEPS`."""
    late = False

    async def main() -> None:
        nonlocal late
        begun = False

        async def short() -> None:
            nonlocal begun
            await trio.lowlevel.checkpoint()
            begun = True

        async def long() -> None:
            nonlocal late
            for _ in range(STEPS):
                await trio.lowlevel.checkpoint()
            late = not begun

        async with trio.open_nursery() as nursery:
            nursery.start_soon(short)
            nursery.start_soon(long)

    run_deterministic(main, seed, VirtualClock(), policy=policy_of(schedule, stream(seed, "policy")), guard=False)
    return late


def test_a_runnable_task_is_held_back_for_as_long_as_shuffling_never_does() -> None:
    assert not any(found(seed, None) for seed in range(300)), "shuffling runs each runnable task once per batch"
    for schedule in KINDS:
        hits = sum(found(seed, schedule) for seed in range(300))
        assert 0 < hits < 300, f"{schedule.words()}: {hits} of 300"


@pytest.mark.parametrize("schedule", KINDS, ids=name_of)
def test_a_task_that_spins_does_not_starve_the_one_that_it_waits_for(schedule: Schedule) -> None:
    async def main() -> None:
        done = False

        async def worker() -> None:
            nonlocal done
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            done = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker)
            turns = 0
            while not done:
                await trio.lowlevel.checkpoint()
                turns += 1
                assert turns < 20 * WAITED_TURNS

    for seed in range(20):
        run_deterministic(main, seed, VirtualClock(), policy=policy_of(schedule, stream(seed, "p")), guard=False)


@pytest.mark.parametrize("schedule", KINDS, ids=name_of)
def test_a_whole_gym_runs_by_it_and_the_same_in_another_process(schedule: Schedule) -> None:
    plan = msgspec.structs.replace(draw(6, "default"), schedule=schedule)
    assert load(dump(plan)) == plan and plan.words()[-1] == schedule.words()
    outcome = run_job(Job(6, "default", plan=dump(plan), twice=True))
    assert outcome.violation is None, outcome.violation
    assert outcome.schedule == name_of(schedule)
    shuffled = run_job(Job(6, "default", plan=dump(msgspec.structs.replace(plan, schedule=None))))
    assert shuffled.hash != outcome.hash, "it makes a difference"


def test_a_share_of_the_seeds_draws_one_and_draws_nothing_else_than_before() -> None:
    drawn = [draw(seed, "default").schedule for seed in range(400)]
    counts = Counter(map(name_of, drawn))
    assert 40 < 400 - counts["shuffled"] < 120 and len(counts) == 4
    assert all(draw(seed, "calm").schedule is None for seed in range(20))
    assert {name_of(draw_schedule(stream(seed, "s"))) for seed in range(40)} == {name_of(each) for each in KINDS}


def test_a_failure_is_shrunk_to_the_plain_schedule_where_it_still_fails() -> None:
    plan = Plan(setup=Setup(), schedule=OneByOne())
    assert shrink(plan, lambda _: True).schedule is None
    assert shrink(plan, lambda smaller: smaller.schedule is not None) == plan
