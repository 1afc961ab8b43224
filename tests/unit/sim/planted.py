"""A planted bug that an early seed finds, for tests of what is made of a failure. Each process looks for it once."""

from __future__ import annotations

from functools import cache

from sim.jobs import explained
from sim.run import Verdict, run_seed

BUG = "mark-after-stop"


@cache
def failing_seed() -> int:
    """The first."""
    return next(seed for seed in range(60) if run_seed(seed, bug=BUG, brief=True).violations)


@cache
def failure() -> Verdict:
    """As a campaign keeps it: shrunk, run twice, with all its rows."""
    return explained(failing_seed(), "default", BUG)
