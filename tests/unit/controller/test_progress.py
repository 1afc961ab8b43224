"""What progress writes, and that it goes on although nothing happens."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest
import rich

from gym_ckpt.controller.progress import EventProgress, Pace, PlainProgress, RichProgress
from gym_ckpt.core.collection import Counts
from tests.unit.controller.fake_gym import Recorder

pytestmark = pytest.mark.anyio
COUNTS = Counts(rows=24, waiting=8, restored=0, in_flight=8, retiring=0, finished=8, failed=0)


async def until(lines: list[str], count: int) -> None:
    with anyio.fail_after(60):
        while len(lines) < count:
            await anyio.sleep(0.001)


async def test_a_run_in_which_nothing_happens_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers are gone, and nothing replies: silence would look like a hang."""
    monkeypatch.setattr("gym_ckpt.controller.progress.PROGRESS_EVERY_S", 0.01)
    lines: list[str] = []
    progress = PlainProgress(lines.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.run)
        await anyio.sleep(0.05)
        assert lines == [], "nothing has begun"
        progress.start(COUNTS)
        progress.update(replace(COUNTS, in_flight=0, retiring=8))
        await until(lines, 3)
        progress.stop()
        written = len(lines)
        await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert len(lines) == written, "the end of a run is the end of its lines"
    assert lines[-1].startswith("8/24 finished, 0 in flight, 8 without a reply, 0 restored, 0 failed, 0.00 rows/s")


async def test_whoever_reads_events_is_told_everything_as_one_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ckpt.controller.progress.PROGRESS_EVERY_S", 0.0)
    recorder = Recorder()
    progress = EventProgress(recorder, logged=frozenset({"collector.lost"}))
    progress.waits = lambda: "agent (to prepare)"
    progress.message("a row is lost", event="collector.lost")
    progress.message("waiting for agent")
    progress.start(COUNTS)
    progress.update(replace(COUNTS, finished=9))
    (_, said), (_, stands) = recorder.events
    assert [name for name, _ in recorder.events] == ["collector.says", "collector.progress"]
    assert said == {"text": "waiting for agent"}
    assert (stands["finished"], stands["rows"], stands["in_flight"]) == (9, 24, 8)
    assert stands["left_s"] is not None and stands["waits"] == "agent (to prepare)"


async def test_the_time_left_counts_the_rest_of_rows_that_are_to_be_tried_again() -> None:
    """Two rows wait 40 s after 22 that took no time: that is not "about 2 s left"."""
    pace = Pace(replace(COUNTS, finished=0))
    await anyio.sleep(0.02)
    counts = replace(COUNTS, waiting=0, in_flight=0, finished=22, resting=2)
    rested_by = anyio.current_time() + 40.0
    left_s = pace.left_s(counts, rested_by)
    assert left_s is not None and 39 < left_s < 41
    many = replace(counts, rows=1_000_000_000, waiting=1_000_000_000 - 24)
    left_s = pace.left_s(many, rested_by)
    assert left_s is not None and left_s > 1000, "they rest while others run"
    left_s = pace.left_s(counts, 0.0)
    assert left_s is not None and left_s < 1, "they need rest no more"


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """What is drawn on the terminal."""
    before = rich.get_console().__dict__.copy()
    drawn = io.StringIO()
    rich.reconfigure(file=drawn, force_terminal=True, width=250)
    yield drawn
    rich.get_console().__dict__.update(before)


async def test_the_bar_says_what_the_lines_say(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ckpt.controller.progress.PROGRESS_EVERY_S", 0.0)
    counts = replace(COUNTS, in_flight=3, retiring=2, resting=4, failed=1)
    lines: list[str] = []
    plain, bar = PlainProgress(lines.append), RichProgress()
    for progress in (plain, bar):
        progress.waits = lambda: "agent (to prepare)"
        progress.start(COUNTS)
        progress.update(counts)
        progress.stop()
    said = lines[-1].removeprefix("8/24 finished, ")
    assert said.startswith("3 in flight, 2 without a reply, 4 wait to be tried again, 0 restored, 1 failed, ")
    assert said.endswith("; no answer yet from agent (to prepare)")
    assert said.split(" failed, ")[0].replace(", ", " · ") in screen.getvalue()
    assert "; no answer yet from agent (to prepare)" in screen.getvalue() and "9/24" in screen.getvalue()
