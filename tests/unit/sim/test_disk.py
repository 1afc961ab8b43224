"""The simulated disk forgets what POSIX lets it forget, and nothing else."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from sim.disk import DeadOwner, SimFileSystem


def made(seed: int = 0, **options: bool) -> SimFileSystem:
    disk = SimFileSystem(random.Random(seed), **options)
    disk.make_dirs("/d")
    return disk


def outcomes(
    build: Callable[[SimFileSystem], None], *, journalled: bool, torn: bool = True, seeds: int = 300
) -> set[tuple[tuple[str, bytes], ...]]:
    """Every tree that a crash of `a` left over many seeds."""
    seen = set()
    for seed in range(seeds):
        disk = made(seed, journalled=journalled, torn=torn)
        build(disk)
        disk.crash("a")
        assert disk.tree() == disk.durable_tree(), "what a crash left is on the disk"
        seen.add(tuple(disk.tree().items()))
    return seen


def synced_file(disk: SimFileSystem, path: str, data: bytes) -> None:
    file = disk.view("a").create(path)
    file.write(data)
    file.fsync()


def two_names(disk: SimFileSystem) -> None:
    synced_file(disk, "/d/x", b"1")
    synced_file(disk, "/d/y", b"2")


def test_journalled_directories_keep_a_prefix_and_others_any_subset() -> None:
    x, y = ("/d/x", b"1"), ("/d/y", b"2")
    assert outcomes(two_names, journalled=True) == {(), (x,), (x, y)}
    assert outcomes(two_names, journalled=False) == {(), (x,), (y,), (x, y)}


def test_what_was_synced_is_kept() -> None:
    def build(disk: SimFileSystem) -> None:
        two_names(disk)
        disk.view("a").fsync_dir("/d")
        disk.view("a").unlink("/d/x")

    y = ("/d/y", b"2")
    assert outcomes(build, journalled=False) == {(y,), (("/d/x", b"1"), y)}


def test_a_rename_is_atomic_and_a_name_can_outlive_its_data() -> None:
    def build(disk: SimFileSystem) -> None:
        synced_file(disk, "/d/L", b"old")
        disk.view("a").fsync_dir("/d")
        disk.view("a").create("/d/t").write(b"new!")
        disk.view("a").rename("/d/t", "/d/L")

    seen = {dict(tree).get("/d/L") for tree in outcomes(build, journalled=False)}
    assert seen >= {b"old", b"new!", b"", b"ne", bytes(4)}
    assert None not in seen


def test_without_tearing_a_write_is_whole_or_gone() -> None:
    def build(disk: SimFileSystem) -> None:
        file = disk.view("a").append("/d/f")
        disk.view("a").fsync_dir("/d")
        file.write(b"12")
        file.write(b"34")

    contents = {dict(tree)["/d/f"] for tree in outcomes(build, journalled=True, torn=False)}
    assert contents == {b"", b"12", b"1234", b"\0\x0034"}


def test_only_the_crashed_node_loses_anything_and_its_handles_are_dead() -> None:
    disk = made()
    mine, theirs = disk.view("a"), disk.view("b")
    handle, other = mine.create("/d/a"), theirs.create("/d/b")
    other.write(b"kept")
    lock = mine.try_lock("/d/lock", "a")
    assert lock is not None
    disk.crash("a")
    assert disk.tree()["/d/b"] == b"kept"
    for call in (lambda: handle.write(b"x"), lambda: mine.exists("/d"), handle.fsync):
        with pytest.raises(DeadOwner):
            call()
    handle.close()
    heir = disk.view("a").try_lock("/d/lock", "again")
    lock.release()
    assert heir is not None and theirs.try_lock("/d/lock", "b") is None, "the dead cannot free their heir's lock"


def test_an_orderly_end_loses_nothing() -> None:
    disk = made()
    disk.view("a").create("/d/f").write(b"x")
    disk.end("a")
    assert disk.tree() == {"/d/f": b"x"}
    disk.crash("a")
    assert set(disk.tree()) <= {"/d/f"}


def test_a_failed_sync_can_lose_data_that_a_later_one_does_not_bring_back() -> None:
    kept = set()
    for seed in range(40):
        disk = made(seed)
        file = disk.view("a").append("/d/f")
        disk.view("a").fsync_dir("/d")
        file.write(b"x")

        def fail(_owner: str, op: str, _path: str) -> None:
            if op == "fsync":
                raise OSError(errno.EIO, "I/O error")

        disk.on_op = fail
        with pytest.raises(OSError):
            file.fsync()
        disk.on_op = None
        file.fsync()
        disk.crash("a")
        kept.add(disk.tree()["/d/f"])
    assert kept == {b"", b"x"}


def test_errors_are_those_of_posix() -> None:
    disk = made()
    fs = disk.view("a")
    fs.create("/d/f").write(b"abc")
    for call, code in (
        (lambda: fs.create("/d/f"), errno.EEXIST),
        (lambda: fs.mkdir("/d"), errno.EEXIST),
        (lambda: fs.mkdir("/no/such"), errno.ENOENT),
        (lambda: fs.link("/d/f", "/d/f"), errno.EEXIST),
        (lambda: fs.unlink("/d/none"), errno.ENOENT),
        (lambda: fs.unlink("/d"), errno.EISDIR),
        (lambda: fs.rmdir("/d"), errno.ENOTEMPTY),
        (lambda: fs.rmdir("/d/f"), errno.ENOTDIR),
        (lambda: fs.rename("/d/none", "/d/x"), errno.ENOENT),
        (lambda: fs.rename("/d/f", "/d"), errno.EISDIR),
        (lambda: fs.read_chunks("/d/none", 1), errno.ENOENT),
        (lambda: fs.listdir("/d/f"), errno.ENOTDIR),
        (lambda: fs.create("/d/" + "x" * 256), errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == code
    assert list(fs.read_chunks("/d/f", 2)) == [b"ab", b"c"]
    assert (fs.size("/d/f"), fs.listdir("/d"), fs.is_dir("/d/f"), fs.exists("/d/f/g")) == (3, ["f"], False, False)


def test_one_seed_has_one_outcome() -> None:
    def tree(seed: int) -> dict[str, bytes]:
        disk = made(seed, journalled=False)
        for n in range(20):
            disk.view("a").create(f"/d/{n}").write(bytes([65 + n]) * n)
        disk.crash("a")
        return disk.tree()

    assert [tree(seed) for seed in range(5)] == [tree(seed) for seed in range(5)]
    assert tree(1) != tree(2)
