"""A job that is run to its end without a disk's threads or latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage.files import Steps, finish


def test_every_step_is_taken_and_its_result_given(tmp_path: Path) -> None:
    taken: list[str] = []

    def job(fs: FileSystem) -> Steps[bool]:
        for step in ("one", "two"):
            yield step
            fs.mkdir(f"{tmp_path}/{step}")
            taken.append(step)
        return fs.is_dir(f"{tmp_path}/two")

    assert finish(PosixFileSystem(), job) is True and taken == ["one", "two"]


def test_what_it_raises_is_raised() -> None:
    def job(fs: FileSystem) -> Steps[None]:
        yield "one"
        raise FileNotFoundError("nothing")

    with pytest.raises(FileNotFoundError, match="nothing"):
        finish(PosixFileSystem(), job)
