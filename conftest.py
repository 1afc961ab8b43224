"""Settings that every test folder shares.

Hypothesis: `dev` looks for new examples at every run; `ci` runs the same ones each time, so that a red build is red
again on a developer's machine (`HYPOTHESIS_PROFILE=ci ./dev test`). Neither has the explain phase, which makes
shrinking several times slower where one example is a whole simulated cluster. There is no deadline per example: it
would measure the machine.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)

settings.register_profile(
    "dev",
    phases=_PHASES,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "ci",
    parent=settings.get_profile("dev"),
    derandomize=True,
    database=None,
    max_examples=100,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `tests/fuzz`; here, because pytest reads those of a folder too late."""
    group = parser.getgroup("fuzz", "seeds of the simulator (with -m fuzz)")
    group.addoption("--fuzz-seeds", type=_seeds, metavar="A..B", help="from A up to, and without, B")
    group.addoption("--fuzz-seconds", type=float, metavar="S", help="stop beginning seeds after so many seconds")
    group.addoption("--fuzz-profile", default="default", metavar="P", help="which faults are drawn (default: default)")


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or int(first) >= int(last):
        raise ValueError(f"{text!r} is no range of seeds such as 0..2000")
    return range(int(first), int(last))
