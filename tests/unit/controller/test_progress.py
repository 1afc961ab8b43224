"""What plain progress writes, and that it goes on although nothing happens."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from gym_ckpt.controller.progress import PlainProgress
from gym_ckpt.core.collection import Counts

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


async def test_whoever_reads_events_is_not_told_them_in_words() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, logged=frozenset({"collector.lost"}))
    progress.message("a row is lost", event="collector.lost")
    progress.message("waiting for agent")
    assert lines == ["waiting for agent"]
