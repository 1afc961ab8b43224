"""What the end of a run says of its rows: where they came from, and what was not done again."""

from __future__ import annotations

import pytest

from gym_ckpt.controller.outcome import NOTHING_SAVED, lines_of
from tests.unit.controller.bench import Bench, gym_of, slow_gym, stop_in_the_middle
from tests.unit.controller.fake_gym import broken

pytestmark = pytest.mark.anyio


async def test_rows_that_lose_what_they_continued_are_not_counted_as_continued(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of(steps=1)
    gym.failing = {"row-0": ["lose"], "row-1": ["fail"]}
    summary = (await bench.run(gym, resume_from_cache=True)).summary
    assert (summary.restored, summary.continued, summary.lost) == (bench.rows, bench.rows - 2, 1)
    tokens = summary.saved["tokens"]
    (line,) = [line for line in lines_of(summary) if line.startswith("this run: ")]
    assert f"4 continued from a checkpoint (at most 0 model calls, {tokens} tokens not repeated); 2 restored" in line
    assert line.endswith("but lost or failed since; 1 lost and begun again from input")
    bench.check_whole()


async def test_where_every_continued_row_was_lost_nothing_was_saved(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of(steps=1)
    gym.failing = {f"row-{n}": ["lose"] for n in range(bench.rows)}
    summary = (await bench.run(gym, resume_from_cache=True)).summary
    assert (summary.restored, summary.continued, summary.lost) == (bench.rows, 0, bench.rows)
    assert summary.saved == NOTHING_SAVED and not any("not repeated" in line for line in lines_of(summary))
    bench.check_whole()


async def test_rows_lost_right_before_a_stop_are_not_said_to_have_begun_again(bench: Bench) -> None:
    """Their servers are gone, and the next start continues them from the checkpoint."""
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)
        gym.faults["retire"] = [broken("the servers are gone")] * 1000
        gym.died = True
        await bench.until(lambda: any("retiring lost rows has to wait" in line for line in bench.recorder.lines))
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    summary = outcome.summary
    assert (outcome.exit_code, summary.lost, summary.begun_again) == (0, bench.rows, 0), outcome.message
    (line,) = [line for line in lines_of(summary) if line.startswith("this run: ")]
    assert line.startswith(f"this run: {bench.rows} lost and not begun again (the next start does, from the checkpoint")
    summary = (await bench.run(gym_of(), resume_from_cache=True)).summary
    assert (summary.continued, summary.lost) == (bench.rows, 0)
    bench.check_whole()
