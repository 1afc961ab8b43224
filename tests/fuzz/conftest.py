"""Blocks of seeds as parameters, from `--fuzz-seeds`, `--fuzz-seconds` and `--fuzz-profile` (see `/conftest.py`)."""

from __future__ import annotations

import time

import pytest

BLOCK = 100
BLOCKS_WITH_SECONDS = 400
"""Without a range, so many blocks are there to be begun before the seconds are spent."""
DEFAULT_SEEDS = range(1000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fuzz_block" not in metafunc.fixturenames:
        return
    seeds: range | None = metafunc.config.getoption("--fuzz-seeds")
    if seeds is None:
        timed = metafunc.config.getoption("--fuzz-seconds") is not None
        seeds = range(BLOCK * BLOCKS_WITH_SECONDS) if timed else DEFAULT_SEEDS
    blocks = [range(at, min(at + BLOCK, seeds.stop)) for at in range(seeds.start, seeds.stop, BLOCK)]
    metafunc.parametrize("fuzz_block", blocks, ids=[f"{block.start}..{block.stop}" for block in blocks])


@pytest.fixture
def fuzz_profile(request: pytest.FixtureRequest) -> str:
    profile: str = request.config.getoption("--fuzz-profile")
    return profile


@pytest.fixture(scope="session")
def fuzz_until(request: pytest.FixtureRequest) -> float | None:
    """When this process stops beginning seeds; every worker of xdist counts from its own first block."""
    seconds: float | None = request.config.getoption("--fuzz-seconds")
    return None if seconds is None else time.perf_counter() + seconds
