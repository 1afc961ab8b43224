"""A newest checkpoint that cannot be read when a run starts again is whole for all that anybody knows."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.controller import published
from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.ports import Disk
from tests.unit.controller.bench import Bench, gym_of, slow_gym
from tests.unit.controller.fake_gym import thread_disk

pytestmark = pytest.mark.anyio


class Unreadable(PosixFileSystem):
    """Paths with `part` in them cannot be read the first `times`."""

    def __init__(self, part: str, code: int, times: int) -> None:
        self.part, self.code, self.left = part, code, times

    def read_chunks(self, path: str, chunk_bytes: int) -> Iterator[bytes]:
        if self.part in path and self.left:
            self.left -= 1
            raise OSError(self.code, os.strerror(self.code), path)
        return super().read_chunks(path, chunk_bytes)


class UnreadableBench(Bench):
    files: Unreadable | None = None

    def disk(self) -> Disk:
        return thread_disk(self.files)


@pytest.fixture
def bench(tmp_path: Path) -> UnreadableBench:
    return UnreadableBench(tmp_path)


async def two_checkpoints(bench: UnreadableBench) -> str:
    """The newer one's id."""
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, lambda: bench.two_checkpoints(gym.busy))
    return bench.published()


@pytest.mark.parametrize("part", ["collection.json", "manifest.json", "records-"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
async def test_a_hiccup_of_the_disk_is_no_damage(bench: UnreadableBench, part: str, code: int) -> None:
    await two_checkpoints(bench)
    bench.files = Unreadable(part, code, 2)
    outcome = await bench.run(gym_of(), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows and bench.files.left == 0
    assert not any("trying the one before" in line for line in bench.recorder.lines)
    bench.check_whole()


async def test_a_checkpoint_that_may_not_be_read_is_not_given_up_for_the_one_before(
    bench: UnreadableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "READ_AGAIN_S", 0.2)
    newest = await two_checkpoints(bench)
    before = bench.checkpoints()
    bench.files = Unreadable(f"{newest}/", errno.EACCES, 1000)
    gym = gym_of()
    with pytest.raises(InvalidCheckpointState, match=r"Permission denied.*make it readable"):
        await bench.run(gym, resume_from_cache=True)
    assert gym.runs == [] and bench.checkpoints() == before
    bench.files = None
    assert (await bench.run(gym, resume_from_cache=True)).summary.continued == bench.rows
    bench.check_whole()


async def test_a_checkpoint_that_the_disk_never_gives_back_is_damaged(
    bench: UnreadableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "READ_AGAIN_S", 0.2)
    newest = await two_checkpoints(bench)
    bench.files = Unreadable(f"{newest}/", errno.EIO, 1000)
    outcome = await bench.run(gym_of(), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    assert any(newest in line and "trying the one before" in line for line in bench.recorder.lines)
    bench.check_whole()
