"""Plans of whole clusters, made by Hypothesis instead of drawn from a seed: a failure shrinks to a plan of few faults.

Few examples: the campaigns run thousands of seeds, with a shrinker of their own. What is made here and not there is any
combination of arguments that the types allow.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults import catalogue as faults
from faults.budget import within_budget
from faults.draw import EVENTS, POINTS
from faults.plan import Plan, Setup, dump, load
from sim.report import screen
from sim.run import run_seed
from sim.workload import WORKLOADS

NODES = st.sampled_from(("environment", "agent", "inventory", "verifier", "policy", "worker", "controller"))
SECONDS = st.floats(0.01, 6.0).map(lambda s: round(s, 2))
TIMES = st.integers(1, 6)
WHEN = st.builds(faults.At, SECONDS) | st.builds(faults.OnRow, st.sampled_from(sorted(EVENTS)), TIMES)
RESTART = st.builds(faults.Restart, st.sampled_from(("alone", "whole")), SECONDS)
FAULT = st.one_of(
    st.builds(faults.Crash, st.lists(NODES, min_size=1, max_size=3, unique=True).map(tuple), WHEN, RESTART),
    st.builds(faults.CrashAtProbe, st.sampled_from(POINTS), TIMES, RESTART),
    st.builds(faults.FailAtProbe, st.sampled_from(POINTS), TIMES),
    st.builds(faults.Pause, NODES, WHEN, SECONDS),
    st.builds(faults.Partition, NODES, NODES, SECONDS, SECONDS, st.booleans()),
    st.builds(faults.Signal, st.sampled_from(("SIGUSR1", "SIGTERM")), WHEN),
    st.builds(faults.DiskError, NODES, st.sampled_from(("EIO", "ENOSPC", "ESTALE")), st.integers(1, 60), TIMES),
)
SETUP = st.builds(Setup, st.integers(0, WORKLOADS - 1), st.sampled_from((None, 1.3, 2.7)), st.sampled_from((1.5, 8.0)))
PLAN = st.builds(
    Plan, SETUP, st.just(8.0), RESTART, st.just(faults.Restart()), st.lists(FAULT, max_size=4).map(tuple)
).map(within_budget)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plan=PLAN, seed=st.integers(0, 3))
def test_any_plan_within_the_budget_is_survived(plan: Plan, seed: int) -> None:
    assert load(dump(plan)) == plan
    verdict = run_seed(seed, "made", plan=plan, brief=True)
    assert verdict.ok, screen(verdict, "this test")
