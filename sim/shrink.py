"""Makes a failing plan smaller: shuffles plainly, and drops faults, one or several at a time, while the same breaks.

Greedy and bounded: a campaign shrinks its first failure before anyone looks at it. Must not know what faults mean.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from faults.plan import Plan

RUNS_MAX = 60


def shrink(plan: Plan, still_fails: Callable[[Plan], bool], runs_max: int = RUNS_MAX) -> Plan:
    """A plan with a subset of the faults, and without its schedule if that goes, that `still_fails`; `plan` must."""
    plan = _unscheduled(plan, still_fails)
    smaller = _fewer(plan, still_fails, runs_max)
    return smaller if smaller == plan else _unscheduled(smaller, still_fails)


def _unscheduled(plan: Plan, still_fails: Callable[[Plan], bool]) -> Plan:
    shuffled = msgspec.structs.replace(plan, schedule=None)
    return plan if plan.schedule is None or not still_fails(shuffled) else shuffled


def _fewer(plan: Plan, still_fails: Callable[[Plan], bool], runs_max: int) -> Plan:
    runs = 0
    size = max(1, len(plan.faults) // 2)
    while True:
        at = 0
        while at < len(plan.faults):
            if runs >= runs_max:
                return plan
            fewer = msgspec.structs.replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])
            runs += 1
            if still_fails(fewer):
                plan = fewer
            else:
                at += size
        if size == 1:
            return plan
        size //= 2
