"""The profile `endurance`: a job killed twenty times while episodes run of which a few outlast many of its lives.

What is given up in such a run must not depend on an episode's length: all rows come out, the long ones too, equal to
the undisturbed run's (INV-1). Must not know: how a plan is carried out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import msgspec

from faults import catalogue as faults
from faults.catalogue import EVERYTHING, At, Restart
from faults.plan import Plan, Setup

DEATHS: Final = 20
HEAVY: Final = 100
"""First number of the workloads whose episodes differ much in length."""
HEAVY_WORKLOADS: Final = 4
AT_ONCE: Final = Restart("whole", 0.0)


def endurance(chance: random.Random, chaos_s: float, setup: Setup, restart: Callable[[], Restart]) -> Plan:
    """Everything dies at random moments; sometimes the collector alone, to servers that then refuse a restore."""
    moments = sorted(round(chance.uniform(0.05, chaos_s), 3) for _ in range(DEATHS))
    deaths = [faults.Crash((EVERYTHING,), At(moment), AT_ONCE) for moment in moments]
    if chance.random() < 0.3:
        number = chance.randrange(DEATHS)
        deaths[number] = faults.Crash(("controller",), deaths[number].when, restart())
    return Plan(
        setup=msgspec.structs.replace(
            setup,
            workload=HEAVY + chance.randrange(HEAVY_WORKLOADS),
            every_s=chance.choice((0.3, 0.6, 1.1)),
            timeout_s=20.0,
        ),
        chaos_s=chaos_s,
        requeue=AT_ONCE,
        heal=AT_ONCE,
        faults=tuple(deaths),
    )
