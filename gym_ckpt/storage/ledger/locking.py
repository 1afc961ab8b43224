"""The directory of a ledger, and its locks: one of a fixed number per rollout, shared by all processes.

A job cannot wait, so it gives up before it has done anything and says so; its caller waits and runs it again. The
kernel drops a dead process's locks. It must not know what is done under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from enum import Enum
from operator import attrgetter
from typing import TypeVar

from gym_ckpt.limits import LEDGER_LOCKS
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import Steps, make_dirs, names_in
from gym_ckpt.storage.layout import join
from gym_ckpt.storage.ledger.names import LOCKS, lock_number, lock_path, mould_path
from gym_ckpt.types import EpisodeId

T = TypeVar("T")


class Busy(Enum):
    """What a job returns when another process held its lock: nothing was done, run it again."""

    BUSY = "busy"


BUSY = Busy.BUSY


def open_ledger(directory: str) -> Job[None]:
    """Make the directory and its locks, durably; every process does it before anything else.

    Lock files are made ahead and made durable: one whose name a crash of its maker could undo would be another file
    for the next process, and two would hold "the" lock.

    Raises (by the job):
        OSError: as the file system says.
    """

    def job(fs: FileSystem) -> Generator[str, None, None]:
        locks = join(directory, LOCKS)
        yield from make_dirs(fs, locks, directory)
        yield "ledger.make_locks"
        there = set(names_in(fs, locks))
        for path in (*(lock_path(directory, number) for number in range(LEDGER_LOCKS)), mould_path(directory)):
            if path.rpartition("/")[2] not in there:
                try:
                    fs.create(path).close()
                except FileExistsError:
                    pass  # another process opens the same ledger
        yield "ledger.sync_locks"
        fs.fsync_dir(locks)

    return job


def lock_of(directory: str, rollout_id: str) -> str:
    """The path of a rollout's lock."""
    return lock_path(directory, lock_number(rollout_id))


def locked(directory: str, rollout_id: str, body: Callable[[FileSystem], Steps[T]]) -> Job[T | Busy]:
    """A job that runs `body` under the rollout's lock, or returns BUSY."""

    def job(fs: FileSystem) -> Generator[str, None, T | Busy]:
        yield "ledger.lock"
        lock = fs.try_lock(lock_of(directory, rollout_id), "")
        if lock is None:
            return BUSY
        try:
            return (yield from body(fs))
        finally:
            lock.release()

    return job


def in_order(episodes: Iterable[EpisodeId]) -> list[EpisodeId]:
    """Each once, sorted; thousands of them, so not by comparing objects."""
    return sorted(dict.fromkeys(episodes), key=attrgetter("rollout_id", "attempt"))


def each_locked(
    fs: FileSystem, directory: str, episodes: Iterable[EpisodeId], body: Callable[[list[EpisodeId]], Steps[None]]
) -> Steps[list[EpisodeId]]:
    """Run `body` once per lock, under it, for the episodes that share it; returns those whose lock was held."""
    by_lock: dict[int, list[EpisodeId]] = {}
    for episode in in_order(episodes):
        by_lock.setdefault(lock_number(episode.rollout_id), []).append(episode)
    busy: list[EpisodeId] = []
    for number, sharing in sorted(by_lock.items()):
        yield "ledger.lock"
        lock = fs.try_lock(lock_path(directory, number), "")
        if lock is None:
            busy.extend(sharing)
            continue
        try:
            yield from body(sharing)
        finally:
            lock.release()
    return busy
