"""The words of scenarios that are told as fault plans: a whole gym and its collector, judged by the oracle."""

from __future__ import annotations

from faults.catalogue import Fault, Restart
from faults.plan import Plan, Setup
from sim.report import screen
from sim.run import Verdict, run_seed
from sim.trace import Row

EVERYTHING = ("*",)
WHOLE = Restart("whole", 0.1)
TIMER = Setup(workload=3, every_s=0.9)


def play(*faults: Fault, setup: Setup = TIMER, requeue: Restart = WHOLE) -> Verdict:
    """Nothing may break, and every fault has to strike."""
    verdict = run_seed(1, "scenario", plan=Plan(setup, 60.0, requeue, Restart(), faults), keep_all_rows=True)
    assert verdict.ok, screen(verdict, "pytest tests/scenario")
    idle = [fault.words() for fault in faults if fault not in verdict.hit]
    assert not idle, f"planned, and never struck: {idle}"
    return verdict


def seen(verdict: Verdict, event: str) -> list[Row]:
    return [row for row in verdict.rows if row.event == event]
