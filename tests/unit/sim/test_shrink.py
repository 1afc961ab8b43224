"""Shrinking: what goes, what stays, and that a small plan is believed only when it breaks the same twice."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from faults.catalogue import At, Crash, Delay, Fault, Overload, Restart, Signal
from faults.plan import Plan, Setup, dump, load
from sim import jobs
from sim.jobs import explained
from sim.report import as_json, screen
from sim.run import run_seed
from sim.shrink import shrink
from sim.twin import same_again
from tests.unit.sim.planted import BUG, failing_seed, failure

CRASH = Crash(("agent",), At(1.0), Restart("whole", 2.0), silent=True)
PLAN = Plan(
    Setup(workload=3, every_s=0.8, keep=1),
    chaos_s=5.0,
    requeue=Restart("whole", 3.0),
    faults=(Signal("SIGUSR1", At(0.5), again_s=1.0), CRASH, Delay("policy", "run", 3, 4, 0.5, 0.5)),
)


def test_what_matters_stays_and_everything_else_is_as_by_default() -> None:
    def fails(plan: Plan) -> bool:
        return plan.setup.every_s is not None and any(isinstance(each, Crash) and each.silent for each in plan.faults)

    small = shrink(PLAN, fails)
    assert small == Plan(Setup(every_s=0.8), chaos_s=5.0, faults=(Crash(("agent",), At(1.0), silent=True),))


def test_numbers_get_lower_and_rounder_and_names_fewer() -> None:
    crash = Crash(("agent", "policy", "controller"), At(2.718), Restart("whole", 37.219))
    delay = Delay("policy", "run", 17, 4, 0.5, 0.513)

    def fails(plan: Plan) -> bool:
        by = {type(each): each for each in plan.faults}
        one, other = by.get(Crash), by.get(Delay)
        if not (isinstance(one, Crash) and isinstance(other, Delay) and isinstance(one.when, At)):
            return False
        return "policy" in one.nodes and one.when.t_s > 2.5 and one.restart.after_s > 20 and other.k > 7

    small = shrink(Plan(faults=(crash, delay), chaos_s=5.0), fails)
    assert small.faults == (Crash(("policy",), At(3.0), Restart("whole", 37.0)), Delay("policy", "run", 8))


def test_a_number_that_is_one_of_a_few_stays_one_of_them() -> None:
    plan = Plan(faults=(Overload(At(2.718), 3.25, 529),), chaos_s=5.0)
    small = shrink(plan, lambda smaller: smaller.faults[:1] != () and smaller.faults[0] != Overload(At(1.0), 2.0))
    assert load(dump(small)) == small


def test_it_is_bounded() -> None:
    tried: list[Plan] = []

    def never(plan: Plan) -> bool:
        tried.append(plan)
        return False

    assert shrink(PLAN, never, runs_max=2, plainer_max=3, lower_max=4) == PLAN and len(tried) == 9


@pytest.mark.parametrize("fault", PLAN.faults, ids=lambda fault: type(fault).__name__)
def test_a_parameter_without_a_default_stays(fault: Fault) -> None:
    (left,) = shrink(replace(PLAN, faults=(fault,)), lambda plan: len(plan.faults) == 1).faults
    assert type(left) is type(fault) and left.words()


def test_a_small_plan_was_run_twice_and_says_so() -> None:
    verdict = failure()
    assert verdict.confirmed and same_again(verdict)
    assert "plan, run twice and broken the same, event for event:" in screen(verdict, "this test")
    assert as_json(verdict)["confirmed"] is True


def test_one_that_is_another_run_the_second_time_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = run_seed(failing_seed(), bug=BUG, keep_all_rows=True)
    monkeypatch.setattr(jobs, "same_again", lambda verdict: False)
    verdict = explained(failing_seed(), "default", BUG)
    assert not verdict.confirmed and verdict.plan == drawn.plan and verdict.hash == drawn.hash
    assert "\nplan:\n" in screen(verdict, "this test")
    assert not same_again(dataclasses.replace(drawn, hash="another")) and same_again(drawn)
