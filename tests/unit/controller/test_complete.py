"""When a run is complete, and what a complete one still needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.controller.bench import gym_of
from tests.unit.controller.struck_files import StruckBench, struck_bench

pytestmark = pytest.mark.anyio


@pytest.fixture
def struck(tmp_path: Path) -> StruckBench:
    return struck_bench(tmp_path)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGTERM twice"])
async def test_rows_that_have_ended_and_are_on_no_disk_do_not_make_a_run_complete(
    struck: StruckBench, how: str
) -> None:
    """A batch system that goes by `complete` would take the job for done, and they would be missing for good."""
    gym = gym_of(steps=1)
    struck.strikes.full = "out.jsonl"

    async def script() -> None:
        await struck.until(lambda: any("finished rows wait in memory" in line for line in struck.recorder.lines))
        await struck.until(lambda: len(gym.runs) == struck.rows and not gym.done)
        for _ in how.split():
            struck.signals.send("SIGTERM")

    outcome = await struck.with_signals(gym, script, one_sigterm_s=0.0)
    counts = outcome.summary.counts
    assert counts is not None and counts.finished == counts.rows == struck.rows
    assert outcome.exit_code == (1 if how == "SIGTERM" else 143) and not outcome.summary.complete
    struck.strikes.full = None
    assert (await struck.run(gym_of(), resume_from_cache=True)).summary.complete
    struck.check_whole()
