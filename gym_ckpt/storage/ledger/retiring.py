"""What ends a ledger: retire, forget, delete; and the marker that says that a restored attempt has begun.

A retire fences attempts 0..N before it removes what they left, so that no late row recreates a ledger (INV-36); N+1 is
never touched (INV-31). The fence goes when the rollout is forgotten (INV-39). An attempt that was restored and never
called is deleted without a fence, and only if its marker does not stand: marker and check share the rollout's lock, so
that of a first call and a delete one comes first on every server (INV-42, INV-43).

Work is linear in the episodes named and their attempts; the directory is never listed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.limits import LEDGER_ATTEMPTS_MAX
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import NO_LINKS, Steps, there
from gym_ckpt.storage.ledger.locking import Busy, each_locked, in_order, locked
from gym_ckpt.storage.ledger.names import LEDGER, Ending, mould_path, path_of
from gym_ckpt.types import EpisodeId

_NO_MORE_LINKS: Final = NO_LINKS | {errno.EMLINK, errno.ENOENT}


class Start(StrEnum):
    """What became of an attempt's first call."""

    STARTED = "started"
    AGAIN = "again"
    """The marker stood already: another server, or an earlier call."""
    RETIRED = "retired"
    """No marker is made: the attempt is fenced or marked."""


@dataclass(slots=True)
class Discarded:
    """What became of attempts that a commit left out; sorted within each list."""

    deleted: list[EpisodeId] = field(default_factory=list)
    started: list[EpisodeId] = field(default_factory=list)
    """Somebody's by now: kept."""
    failed: dict[EpisodeId, str] = field(default_factory=dict)
    """To be tried again by the next commit (INV-44), with the reason."""
    busy: list[EpisodeId] = field(default_factory=list)
    """Not tried: another process held the lock."""


def start(directory: str, episode: EpisodeId, marked: Callable[[], bool] = lambda: False) -> Job[Start | Busy]:
    """Make the marker of a restored attempt, before its first call can write a row or be held. Not synced: a crash ends
    the attempt anyway.

    Raises (by the job):
        OSError: the attempt may or may not count as started.
    """

    def body(fs: FileSystem) -> Steps[Start]:
        yield "ledger.start"
        if marked() or there(fs, path_of(directory, episode, Ending.FENCE)):
            return Start.RETIRED
        try:
            fs.create(path_of(directory, episode, Ending.STARTED)).close()
        except FileExistsError:
            return Start.AGAIN
        return Start.STARTED

    return locked(directory, episode.rollout_id, body)


def discard_unstarted(directory: str, episodes: Iterable[EpisodeId]) -> Job[Discarded]:
    """Delete restored attempts that nobody has started, rows first, without a fence.

    An error concerns its episode alone and is reported, not raised.
    """
    wanted = tuple(episodes)

    def job(fs: FileSystem) -> Steps[Discarded]:
        made = Discarded()

        def body(sharing: list[EpisodeId]) -> Steps[None]:
            for episode in sharing:
                try:
                    yield "ledger.discard"
                    if there(fs, path_of(directory, episode, Ending.STARTED)):
                        made.started.append(episode)
                        continue
                    for ending in LEDGER:
                        unlink(fs, path_of(directory, episode, ending))
                    made.deleted.append(episode)
                except OSError as error:
                    made.failed[episode] = error.strerror or str(error)

        try:
            made.busy = yield from each_locked(fs, directory, wanted, body)
        except OSError as error:  # of a lock; what was not reached stays pending as well
            done = {*made.deleted, *made.started, *made.failed}
            made.failed |= {each: error.strerror or str(error) for each in in_order(wanted) if each not in done}
        made.deleted.sort()
        made.started.sort()
        return made

    return job


def retire(directory: str, episodes: Iterable[EpisodeId]) -> Job[list[EpisodeId]]:
    """Fence each attempt and all earlier ones, then remove their rows, poison and markers; durable once it returns.

    Returns the episodes whose lock was held: run it again for them.

    Raises (by the job):
        InvalidRequest: an attempt over `LEDGER_ATTEMPTS_MAX`; nothing was done.
        OSError: some may be retired; run it again.
    """
    wanted = _bounded(episodes)

    def job(fs: FileSystem) -> Steps[list[EpisodeId]]:
        def body(sharing: list[EpisodeId]) -> Steps[None]:
            for episode in sharing:
                yield "ledger.fence"
                for attempt in range(episode.attempt + 1):
                    fence(fs, directory, EpisodeId(episode.rollout_id, attempt))
                yield "ledger.remove"
                for attempt in range(episode.attempt + 1):
                    for ending in LEDGER:
                        unlink(fs, path_of(directory, EpisodeId(episode.rollout_id, attempt), ending))

        return (yield from _durably(fs, directory, wanted, body))

    return job


def delete(directory: str, episodes: Iterable[EpisodeId]) -> Job[list[EpisodeId]]:
    """Remove rows, poison and marker of exactly these attempts; a fence stays. Durable once it returns.

    Returns the episodes whose lock was held: run it again for them. Raises as `retire`.
    """
    wanted = tuple(episodes)

    def job(fs: FileSystem) -> Steps[list[EpisodeId]]:
        def body(sharing: list[EpisodeId]) -> Steps[None]:
            for episode in sharing:
                yield "ledger.remove"
                for ending in LEDGER:
                    unlink(fs, path_of(directory, episode, ending))

        return (yield from _durably(fs, directory, wanted, body))

    return job


def forget(directory: str, episodes: Iterable[EpisodeId]) -> Job[list[EpisodeId]]:
    """Remove everything of each attempt and all earlier ones, fences last. Durable once it returns.

    Returns the episodes whose lock was held: run it again for them. Raises as `retire`.
    """
    wanted = _bounded(episodes)

    def job(fs: FileSystem) -> Steps[list[EpisodeId]]:
        def body(sharing: list[EpisodeId]) -> Steps[None]:
            for episode in sharing:
                yield "ledger.remove"
                attempts = [EpisodeId(episode.rollout_id, attempt) for attempt in range(episode.attempt + 1)]
                for ending in (*LEDGER, Ending.FENCE):
                    for each in attempts:
                        unlink(fs, path_of(directory, each, ending))

        return (yield from _durably(fs, directory, wanted, body))

    return job


def _bounded(episodes: Iterable[EpisodeId]) -> tuple[EpisodeId, ...]:
    wanted = tuple(episodes)
    for episode in wanted:
        if episode.attempt > LEDGER_ATTEMPTS_MAX:
            raise InvalidRequest(f"attempt of {episode.key}: more than {LEDGER_ATTEMPTS_MAX} are not kept of a rollout")
    return wanted


def _durably(
    fs: FileSystem, directory: str, episodes: tuple[EpisodeId, ...], body: Callable[[list[EpisodeId]], Steps[None]]
) -> Steps[list[EpisodeId]]:
    busy = yield from each_locked(fs, directory, episodes, body)
    yield "ledger.sync_dir"
    fs.fsync_dir(directory)
    return busy


def fence(fs: FileSystem, directory: str, episode: EpisodeId) -> None:
    """Make one fence: a further name of one empty file, which costs a tenth of a file of its own where links exist."""
    path = path_of(directory, episode, Ending.FENCE)
    try:
        try:
            fs.link(mould_path(directory), path)
        except OSError as error:
            if error.errno not in _NO_MORE_LINKS:
                raise
            fs.create(path).close()
    except FileExistsError:
        pass


def unlink(fs: FileSystem, path: str) -> None:
    """Remove a file that may not be there."""
    try:
        fs.unlink(path)
    except FileNotFoundError:
        pass
