"""A file system that says once of what is there that it is not: nobody believes it (scenario 25)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import files
from sim.disk import SimFileSystem

LOOKS: dict[str, tuple[Callable[[FileSystem], object], object]] = {
    "there": (lambda fs: files.there(fs, "/d/f"), True),
    "dir_there": (lambda fs: files.dir_there(fs, "/d"), True),
    "size_of": (lambda fs: files.size_of(fs, "/d/f"), 3),
    "names_in": (lambda fs: files.names_in(fs, "/d"), ["f"]),
    "listed": (lambda fs: files.listed(fs, "/d"), ["f"]),
    "chunks_of": (lambda fs: b"".join(files.chunks_of(fs, "/d/f", 8)), b"abc"),
    "read_bounded": (lambda fs: files.read_bounded(fs, "/d/f", 8), b"abc"),
}


def disk(times: int) -> FileSystem:
    """Each name is missed so often, then it is seen."""
    made = SimFileSystem(random.Random(0))
    made.make_dirs("/d")
    file = made.view("one").create("/d/f")
    file.write(b"abc")
    left: dict[str, int] = {}

    def look(_owner: str, _op: str, path: str) -> None:
        left[path] = left.get(path, times) - 1
        if left[path] >= 0:
            raise FileNotFoundError(errno.ENOENT, "no", path)

    made.on_op = look
    return made.view("one")


@pytest.mark.parametrize("look", LOOKS)
def test_one_no_is_not_believed(look: str) -> None:
    ask, seen = LOOKS[look]
    assert ask(disk(1)) == seen


@pytest.mark.parametrize("look", LOOKS)
def test_two_are(look: str) -> None:
    ask, seen = LOOKS[look]
    try:
        assert ask(disk(2)) != seen
    except FileNotFoundError:
        assert look not in ("there", "dir_there", "listed"), "nothing there is their answer"
