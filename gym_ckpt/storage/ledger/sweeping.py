"""Staged tokens that nothing needs any more: no row of the ledger names them, and nobody asks to keep them.

Retire and delete leave tokens alone, because a checkpoint that is kept may name them; which ones those do, only the
framework knows (INV-46: a commit's reply says). So it says when. The store is listed before the rows are read, and each
removal looks once more at the rows of the token's own key, under its rollout's lock: that is where a call that is being
delivered meanwhile would have its row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gym_ckpt.errors import InvalidRolloutId
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import tokens
from gym_ckpt.storage.files import Steps, names_in
from gym_ckpt.storage.ledger.locking import lock_of
from gym_ckpt.storage.ledger.names import Ending, attempt_in, path_of, split_name
from gym_ckpt.storage.ledger.rows import Scan
from gym_ckpt.types import EpisodeId


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Staged calls that nothing names, and how many others there are."""

    keys: tuple[str, ...]
    kept: int


@dataclass(frozen=True, slots=True)
class Swept:
    """How many staged calls were removed, how many are needed, and how many another process was busy with."""

    removed: int
    kept: int
    busy: int


def unneeded(directory: str, token_dir: str, keep: Collection[str]) -> Job[Unneeded]:
    """Staged calls that neither a row nor `keep` names.

    Raises (by the job):
        InvalidCheckpointState: a file of rows is damaged, so that nobody knows what it names.
    """

    def job(fs: FileSystem) -> Steps[Unneeded]:
        yield "ledger.list_tokens"
        there = tokens.listed(fs, token_dir)
        needed = set(keep)
        for name in names_in(fs, directory):
            split = split_name(name)
            at = attempt_in(split[0]) if split is not None and split[1] is Ending.ROWS else None
            if at is not None:
                yield "ledger.read"
                needed |= _named(fs, directory, EpisodeId(*at))
        candidates = tuple(key for key in there if key not in needed)
        return Unneeded(candidates, len(there) - len(candidates))

    return job


def sweep(directory: str, token_dir: str, keys: Sequence[str]) -> Job[Swept]:
    """Remove those of these staged calls, found `unneeded` before, that are so still.

    Raises (by the job):
        InvalidCheckpointState: a file of rows has become damaged; some may be removed.
        OSError: some may be removed; run it again.
    """

    def job(fs: FileSystem) -> Steps[Swept]:
        removed = busy = 0
        for key in keys:
            yield "ledger.sweep"
            gone = _remove(fs, directory, token_dir, key)
            removed += gone is True
            busy += gone is None
        return Swept(removed, len(keys) - removed - busy, busy)

    return job


def _remove(fs: FileSystem, directory: str, token_dir: str, key: str) -> bool | None:
    """Whether it is gone; None when the lock was held."""
    owner = _owner(fs, token_dir, key)
    if owner is None:
        return tokens.remove(fs, token_dir, key)
    lock = fs.try_lock(lock_of(directory, owner.rollout_id), "")
    if lock is None:
        return None
    try:
        return key not in _named(fs, directory, owner) and tokens.remove(fs, token_dir, key)
    finally:
        lock.release()


def _owner(fs: FileSystem, token_dir: str, key: str) -> EpisodeId | None:
    """Whose call it was; None when that cannot be read: then it can be nobody's."""
    name = tokens.staged_by(fs, token_dir, key)
    try:
        return None if name is None else EpisodeId.from_key(name)
    except InvalidRolloutId:
        return None


def _named(fs: FileSystem, directory: str, episode: EpisodeId) -> set[str]:
    """Staged keys in a file of rows, hidden rows included."""
    return {key for row in Scan(path_of(directory, episode, Ending.ROWS)).rows(fs) for key in row.staging_keys}
