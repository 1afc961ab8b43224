"""Keeps a plan inside what the protocol promises to survive.

Bounded: the chaos and everything in it ends, so that liveness can be asked for after it. What is given up is stated
here, so that a fault outside the promise is never a failure of the run:

  - at most `CRASHES_MAX` deaths, since a rollout is given up after `LOST_ATTEMPTS_MAX` attempts without a reply;
  - no single delay over `DELAY_MAX_S`, so that the chaos ends within the time that a run may take, and that no copy of
    a call comes later than servers look out for it (`FORGOTTEN_S`);
  - a bit flips in the newest checkpoint only while there is an older one to go back to, which is kept (`faults.acts`).

Must not know: seeds, how a plan is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from faults import catalogue as faults
from faults.catalogue import Fault
from faults.plan import Plan
from gym_ckpt.limits import FORGOTTEN_S, LOST_ATTEMPTS_MAX, MODEL_REFUSED_BUDGET_S

FAULTS_MAX = 24
CRASHES_MAX = 20
DELAY_MAX_S = 60.0
CHAOS_MAX_S = 120.0

PART_MAX_S = 2.0
LATE_MAX_S = 0.3
"""Later than that, a server would be slow to be ready, which a checkpoint must never be for a generation (INV-10)."""
DEATHS = (
    faults.Crash
    | faults.CrashHost
    | faults.CrashAtProbe
    | faults.CrashAtStep
    | faults.CrashAtMessage
    | faults.FailAtProbe
    | faults.Mislaid
)
"""A controller ends of an error at a named point; a server goes on, and is counted all the same."""

assert DELAY_MAX_S * 2 <= FORGOTTEN_S, "a late copy may be delayed once more"
assert CHAOS_MAX_S * 4 < MODEL_REFUSED_BUDGET_S, "an engine that is full costs no row an attempt (INV-25)"
assert CRASHES_MAX * 2 < LOST_ATTEMPTS_MAX, "no rollout may be given up because faults struck it often (INV-1)"


def within_budget(plan: Plan) -> Plan:
    """The plan without what is too much."""
    return msgspec.structs.replace(
        plan, chaos_s=min(plan.chaos_s, CHAOS_MAX_S), faults=tuple(_few_crashes(map(_short, plan.faults[:FAULTS_MAX])))
    )


def _few_crashes(found: Iterable[Fault]) -> Iterable[Fault]:
    left = CRASHES_MAX
    for fault in found:
        deadly = isinstance(fault, faults.Signal) and fault.group
        if deadly or isinstance(fault, DEATHS):
            left -= 1
            if left < 0:
                continue
        yield fault


def _short(fault: Fault) -> Fault:
    match fault:
        case faults.Delay():
            return msgspec.structs.replace(
                fault, request_s=min(fault.request_s, DELAY_MAX_S), reply_s=min(fault.reply_s, DELAY_MAX_S)
            )
        case faults.Duplicate():
            return msgspec.structs.replace(fault, after_s=min(fault.after_s, DELAY_MAX_S))
        case faults.Overrun():
            return msgspec.structs.replace(fault, by_s=min(fault.by_s, DELAY_MAX_S))
        case faults.SlowDisk():
            return msgspec.structs.replace(fault, latency_s=min(fault.latency_s, DELAY_MAX_S))
        case faults.DelayAtProbe() | faults.SlowWorker() | faults.FailedReply():
            return msgspec.structs.replace(fault, by_s=min(fault.by_s, DELAY_MAX_S))
        case faults.LateTimers():
            return msgspec.structs.replace(fault, by_s=min(fault.by_s, LATE_MAX_S), for_s=min(fault.for_s, DELAY_MAX_S))
        case faults.SlowReader():
            return msgspec.structs.replace(fault, part_s=min(fault.part_s, PART_MAX_S))
        case faults.Overload():
            for_s, pause_s = min(fault.for_s, DELAY_MAX_S), min(fault.pause_s, DELAY_MAX_S)
            return msgspec.structs.replace(fault, for_s=for_s, pause_s=pause_s)
        case faults.Partition() | faults.Slow() | faults.Pause() | faults.HalfOpen() | faults.LeaseExpiry():
            return msgspec.structs.replace(fault, for_s=min(fault.for_s, DELAY_MAX_S))
    return fault
