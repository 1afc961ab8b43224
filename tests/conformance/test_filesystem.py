"""One body, two arms: the simulated disk answers as the real file system does. A fake is worth this test, no more."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import (
    AbortFlag,
    ManifestHead,
    RunName,
    layout,
    open_log,
    prune,
    publish,
    published,
    read_records,
    verify_checkpoint,
    write_records,
)
from gym_ckpt.storage.ownership import claim_directory, claim_run
from gym_ckpt.types import Kind
from gym_ckpt.wire import json
from sim.disk import SimFileSystem
from tests.unit.storage.driver import Tokens, run


@dataclass(frozen=True)
class Arm:
    """One file system seen by two processes, and an empty directory on it."""

    fs: FileSystem
    other: FileSystem
    root: str


@pytest.fixture(params=["simulated", "real"])
def arm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arm]:
    if request.param == "real":
        yield Arm(PosixFileSystem(), PosixFileSystem(), str(tmp_path))
    else:
        disk = SimFileSystem(random.Random(0))
        disk.make_dirs("/root")
        yield Arm(disk.view("one"), disk.view("two"), "/root")


def content(fs: FileSystem, path: str) -> bytes:
    return b"".join(fs.read_chunks(path, 3))


def put(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.create(path)
    file.write(data)
    file.fsync()
    file.close()


def test_writing_appending_cutting_and_reading(arm: Arm) -> None:
    path = f"{arm.root}/f"
    file = arm.fs.create(path)
    file.write(b"abc")
    file.write(b"")
    file.write(b"defg")
    file.close()
    more = arm.fs.append(path)
    more.write(b"h")
    assert (content(arm.other, path), arm.other.size(path)) == (b"abcdefgh", 8)
    more.truncate(2)
    more.write(b"X")
    more.fsync()
    assert content(arm.fs, path) == b"abX"
    more.truncate(5)
    assert content(arm.fs, path) == b"abX\0\0"
    more.close()
    more.close()
    with pytest.raises(OSError):
        more.write(b"late")


def test_a_reader_goes_on_with_the_file_that_it_opened(arm: Arm) -> None:
    put(arm.fs, f"{arm.root}/old", b"old one")
    put(arm.fs, f"{arm.root}/new", b"new one")
    chunks = arm.fs.read_chunks(f"{arm.root}/old", 3)
    assert next(chunks) == b"old"
    arm.other.rename(f"{arm.root}/new", f"{arm.root}/old")
    assert b"".join(chunks) == b" one"
    assert content(arm.fs, f"{arm.root}/old") == b"new one"
    arm.fs.unlink(f"{arm.root}/old")
    assert arm.fs.listdir(arm.root) == []


def test_a_link_is_a_second_name_and_never_replaces(arm: Arm) -> None:
    a, b = f"{arm.root}/a", f"{arm.root}/b"
    put(arm.fs, a, b"x")
    arm.fs.link(a, b)
    with pytest.raises(FileExistsError):
        arm.fs.link(a, b)
    arm.fs.rename(a, b)  # two names of one file stay as they are
    assert arm.fs.listdir(arm.root) == ["a", "b"]
    arm.fs.unlink(a)
    assert content(arm.other, b) == b"x"


def test_an_error_names_its_file(arm: Arm) -> None:
    """Also where the system was given a descriptor only."""
    arm.fs.mkdir(f"{arm.root}/d")
    with pytest.raises(IsADirectoryError) as caught:
        content(arm.fs, f"{arm.root}/d")
    assert caught.value.filename == f"{arm.root}/d"


def test_directories(arm: Arm) -> None:
    inner = f"{arm.root}/d/inner"
    arm.fs.mkdir(f"{arm.root}/d")
    arm.fs.mkdir(inner)
    put(arm.fs, f"{inner}/f", b"")
    arm.fs.fsync_dir(inner)
    assert arm.fs.is_dir(inner)
    assert not arm.fs.is_dir(f"{inner}/f")
    assert arm.fs.exists(f"{inner}/f")
    assert not arm.fs.exists(f"{inner}/f/below")
    assert not arm.fs.is_dir(f"{inner}/none")
    arm.fs.unlink(f"{inner}/f")
    arm.fs.rmdir(inner)
    assert arm.fs.listdir(f"{arm.root}/d") == []


REFUSALS: dict[str, tuple[Callable[[FileSystem, str], object], int]] = {
    "mkdir over a file": (lambda fs, root: fs.mkdir(f"{root}/f"), errno.EEXIST),
    "mkdir again": (lambda fs, root: fs.mkdir(f"{root}/d"), errno.EEXIST),
    "mkdir in nothing": (lambda fs, root: fs.mkdir(f"{root}/none/d"), errno.ENOENT),
    "mkdir in a file": (lambda fs, root: fs.mkdir(f"{root}/f/d"), errno.ENOTDIR),
    "create again": (lambda fs, root: fs.create(f"{root}/f"), errno.EEXIST),
    "create over a directory": (lambda fs, root: fs.create(f"{root}/d"), errno.EEXIST),
    "create in nothing": (lambda fs, root: fs.create(f"{root}/none/f"), errno.ENOENT),
    "append to a directory": (lambda fs, root: fs.append(f"{root}/d"), errno.EISDIR),
    "size of nothing": (lambda fs, root: fs.size(f"{root}/none"), errno.ENOENT),
    "read nothing": (lambda fs, root: fs.read_chunks(f"{root}/none", 1), errno.ENOENT),
    "read below a file": (lambda fs, root: fs.read_chunks(f"{root}/f/x", 1), errno.ENOTDIR),
    "read a directory": (lambda fs, root: list(fs.read_chunks(f"{root}/d", 1)), errno.EISDIR),
    "rename nothing": (lambda fs, root: fs.rename(f"{root}/none", f"{root}/x"), errno.ENOENT),
    "rename onto a directory": (lambda fs, root: fs.rename(f"{root}/f", f"{root}/d"), errno.EISDIR),
    "rename a directory onto a file": (lambda fs, root: fs.rename(f"{root}/d", f"{root}/f"), errno.ENOTDIR),
    "link nothing": (lambda fs, root: fs.link(f"{root}/none", f"{root}/x"), errno.ENOENT),
    "unlink nothing": (lambda fs, root: fs.unlink(f"{root}/none"), errno.ENOENT),
    "rmdir of a full one": (lambda fs, root: fs.rmdir(f"{root}/d"), errno.ENOTEMPTY),
    "rmdir of a file": (lambda fs, root: fs.rmdir(f"{root}/f"), errno.ENOTDIR),
    "rmdir of nothing": (lambda fs, root: fs.rmdir(f"{root}/none"), errno.ENOENT),
    "list a file": (lambda fs, root: fs.listdir(f"{root}/f"), errno.ENOTDIR),
    "list nothing": (lambda fs, root: fs.listdir(f"{root}/none"), errno.ENOENT),
    "sync no directory": (lambda fs, root: fs.fsync_dir(f"{root}/none"), errno.ENOENT),
    "a name too long": (lambda fs, root: fs.create(f"{root}/{'x' * 256}"), errno.ENAMETOOLONG),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_have_the_same_number(arm: Arm, case: str) -> None:
    put(arm.fs, f"{arm.root}/f", b"x")
    arm.fs.mkdir(f"{arm.root}/d")
    put(arm.fs, f"{arm.root}/d/f", b"x")
    call, code = REFUSALS[case]
    with pytest.raises(OSError) as caught:
        call(arm.fs, arm.root)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]


def test_a_lock_whose_file_was_swept_away_stands_no_more(arm: Arm) -> None:
    path = f"{arm.root}/lock"
    held = arm.fs.try_lock(path, "first")
    assert held is not None and held.stands()
    arm.other.unlink(path)
    assert not held.stands()
    second = arm.other.try_lock(path, "second")
    assert second is not None and second.stands() and not held.stands(), "it keeps nobody out"
    held.release()
    assert second.stands() and arm.fs.try_lock(path, "third") is None, "and frees nobody else's"
    second.release()
    assert not second.stands()


def test_a_lock_is_exclusive_says_whose_it_is_and_can_be_taken_again(arm: Arm) -> None:
    path = f"{arm.root}/lock"
    held = arm.fs.try_lock(path, "a long first note")
    assert held is not None
    assert arm.other.try_lock(path, "second") is None
    assert arm.fs.try_lock(path, "the same process") is None
    assert content(arm.other, path) == b"a long first note"
    held.release()
    held.release()
    again = arm.other.try_lock(path, "second")
    assert again is not None
    assert content(arm.fs, path) == b"second"
    again.release()


def test_a_whole_run_of_storage(arm: Arm) -> None:
    tokens = Tokens()
    run_dir = f"{arm.root}/new/run"
    run(arm.fs, claim_directory(run_dir, "pid 1"))
    assert run(arm.fs, claim_run(run_dir, RunName("evaluation"), tokens())), "it begins here"
    for name in ("c1", "c2", "c3"):
        where = layout.checkpoint_dir(run_dir, name)
        for kind in (Kind.ENVIRONMENT, Kind.MODEL):
            head = ManifestHead(kind=kind, instance="one", checkpoint_id=name)
            lines = [json.dumps({"id": name, "n": n}) for n in range(4)]
            first = run(arm.fs, write_records(where, head, lines, AbortFlag(), tokens()))
            assert run(arm.other, write_records(where, head, lines, AbortFlag(), tokens())) == first
        run(arm.fs, publish(run_dir, name, {"rows": [name]}, tokens()))
    assert run(arm.fs, prune(run_dir, keep=2)).removed == ("c1",)
    assert run(arm.fs, published(run_dir)).checkpoint_ids == ("c3", "c2")
    where = layout.checkpoint_dir(run_dir, "c3")
    assert run(arm.fs, verify_checkpoint(where)).sound
    _, kept = run(arm.fs, read_records(where, Kind.MODEL, "one", "c3", lambda record: record["n"] > 2))
    assert kept == [{"id": "c3", "n": 3}]
    opened = run(arm.fs, open_log(layout.dispatched(run_dir), lambda row: row))
    run(arm.fs, opened.log.append([b'{"n":1}', b'{"n":2}'], sync=True))
    opened.log.close()
    assert run(arm.fs, open_log(layout.dispatched(run_dir), lambda row: row["n"])).picked == (1, 2)
