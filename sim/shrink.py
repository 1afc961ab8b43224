"""Makes a failing plan smaller: drops faults, one or several at a time, as long as the same thing breaks.

Greedy and bounded: a campaign shrinks its first failure before anyone looks at it. Must not know what faults mean.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from faults.plan import Plan

RUNS_MAX = 60


def shrink(plan: Plan, still_fails: Callable[[Plan], bool], runs_max: int = RUNS_MAX) -> Plan:
    """A plan with a subset of the faults that `still_fails`; `plan` itself must."""
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
