"""Export of a checkpoint's rows, and their way back in.

A restore clears first what dead executions left for the target attempts and later ones, fences included, whether or not
the checkpoint has rows for them (INV-62); then it imports attempt N's rows under N+1, as they are (INV-64); then it
retires 0..N (INV-63). One listing says what there is, for all episodes together, so the cost is linear in episodes and
names. No file is synced: the checkpoint is the durable copy, and a crash leads to another restore, which clears again
(INV-65). One directory sync ends it.

Several servers may restore the same checkpoint into one directory, at once or after each other: each rollout's part
runs under its lock, and each server writes the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gym_ckpt.core.lineage import LedgerRow, Poison, Reason, belongs
from gym_ckpt.errors import InvalidCheckpointState, InvalidRequest
from gym_ckpt.limits import LEDGER_ATTEMPTS_MAX
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import Steps, names_in
from gym_ckpt.storage.ledger.locking import each_locked, in_order
from gym_ckpt.storage.ledger.names import LEDGER, Ending, attempt_in, path_of, split_name
from gym_ckpt.storage.ledger.retiring import fence, unlink
from gym_ckpt.storage.ledger.rows import readable_lineage_of
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.messages import plain


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: tuple[LedgerRow, ...]
    poison: tuple[Poison, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """One episode's ledger as a checkpoint carries it: rows, and the poison of every call that was answered.

    A call whose row could not be written was not answered: the checkpoint holds nothing of it, and its poison stays
    behind.
    """

    episode: EpisodeId
    rows: tuple[LedgerRow, ...]
    poison: tuple[Poison, ...] = ()

    def state(self) -> dict[str, Any]:
        """As JSON data."""
        return {"rows": [row.plain() for row in self.rows], "poison": [plain(entry) for entry in self.poison]}

    @classmethod
    def parse(cls, episode: EpisodeId, state: Any) -> Exported:
        """The inverse of `state`, checked before anything is installed.

        Raises:
            InvalidCheckpointState: no such state, a call twice, or a row that is not this rollout's up to this attempt.
        """
        try:
            found = msgspec.convert(state, _State)
        except msgspec.ValidationError as error:
            raise InvalidCheckpointState(f"ledger of {episode.key}: {error}") from None
        calls: set[str] = set()
        for row in found.rows:
            if row.model_call_id in calls:
                raise InvalidCheckpointState(
                    f"ledger of {episode.key}: {Reason.DUPLICATE_CALL} {row.model_call_id!r:.200}"
                )
            if not belongs(row.capture_key, episode):
                raise InvalidCheckpointState(
                    f"ledger of {episode.key}: {Reason.FOREIGN_CAPTURE_KEY} {row.capture_key!r:.220}"
                )
            calls.add(row.model_call_id)
        return cls(episode, found.rows, found.poison)

    @property
    def staging_keys(self) -> tuple[str, ...]:
        """Every staged key that the rows need, each once, in order (INV-46)."""
        return tuple(dict.fromkeys(key for row in self.rows for key in row.staging_keys))


def export(directory: str, episodes: Iterable[EpisodeId]) -> Job[list[Exported]]:
    """The rows of these episodes, sorted; episodes without any are left out.

    Every server that shares the ledger exports the same. Undelivered calls have no row, so they are in no export
    (INV-17). Reads by name: what others keep in the directory costs nothing. A damaged lineage is
    exported as poison: its episode goes on, and cannot be trained on.
    """
    wanted = in_order(episodes)

    def job(fs: FileSystem) -> Steps[list[Exported]]:
        found = []
        for episode in wanted:
            yield "ledger.export"
            lineage = readable_lineage_of(fs, directory, episode)
            poison = tuple(entry for entry in lineage.poison if entry.reason != Reason.ROW_WRITE_FAILED)
            if lineage.rows or poison:
                found.append(Exported(episode, lineage.rows, poison))
        return found

    return job


Found = dict[str, list[tuple[int, Ending]]]
"""What a directory holds of some rollouts: attempt and ending of each file."""


@dataclass(slots=True)
class Restore:
    """A restore in progress: what was listed once, and what is still to do. Attempts are those of the checkpoint."""

    directory: str
    found: Found
    episodes: list[EpisodeId]
    records: Mapping[EpisodeId, Exported] = field(default_factory=dict)


def begin_restore(directory: str, scope: Iterable[EpisodeId], records: Sequence[Exported]) -> Job[Restore]:
    """List the directory, once.

    Args:
        scope: every episode that is restored, as its attempt N in the checkpoint, with rows or without.
        records: what the checkpoint holds of them.

    Raises:
        InvalidRequest: an attempt over `LEDGER_ATTEMPTS_MAX`.
    """
    episodes = in_order(scope)
    by_episode = {record.episode: record for record in records}
    for episode in episodes:
        if episode.attempt >= LEDGER_ATTEMPTS_MAX:
            raise InvalidRequest(f"attempt of {episode.key}: more than {LEDGER_ATTEMPTS_MAX} cannot be retired")
    assert by_episode.keys() <= set(episodes), "records are of the scope"
    assert len({episode.rollout_id for episode in episodes}) == len(episodes), "a rollout is restored once"

    def job(fs: FileSystem) -> Steps[Restore]:
        yield "ledger.list"
        found: Found = {episode.rollout_id: [] for episode in episodes}
        for name in names_in(fs, directory):
            # Most names are others': look at one closely only when it may be of the scope.
            key = name.rpartition(".lineage.")[0]
            if key not in found and key.rpartition("-a")[0] not in found:
                continue
            split = split_name(name)
            at = attempt_in(split[0]) if split is not None else None
            if split is not None and at is not None and at[0] in found:
                found[at[0]].append((at[1], split[1]))
        return Restore(directory, found, episodes, by_episode)

    return job


def continue_restore(work: Restore) -> Job[None]:
    """Clear, import and retire every episode whose lock is free, and make it durable; `work.episodes` is what is left.

    Raises (by the job):
        OSError: the restore has failed; begin another.
    """

    def job(fs: FileSystem) -> Steps[None]:
        def body(sharing: list[EpisodeId]) -> Steps[None]:
            for episode in sharing:
                yield "ledger.clear"
                _clear(fs, work, episode)
                yield "ledger.import"
                _import(fs, work, episode)
                yield "ledger.retire"
                _retire(fs, work, episode)

        work.episodes = yield from each_locked(fs, work.directory, work.episodes, body)
        yield "ledger.sync_dir"
        fs.fsync_dir(work.directory)

    return job


def _clear(fs: FileSystem, work: Restore, episode: EpisodeId) -> None:
    for attempt, ending in work.found[episode.rollout_id]:
        if attempt > episode.attempt:
            unlink(fs, path_of(work.directory, EpisodeId(episode.rollout_id, attempt), ending))


def _import(fs: FileSystem, work: Restore, episode: EpisodeId) -> None:
    record = work.records.get(episode)
    if record is None:
        return
    target = episode.next()
    rows = b"".join([row.encode() + b"\n" for row in record.rows])
    poison = b"".join([entry.encode() + b"\n" for entry in record.poison])
    if rows and not _take_over(fs, work, episode, rows):
        _put(fs, path_of(work.directory, target, Ending.ROWS), rows)
    if poison:
        _put(fs, path_of(work.directory, target, Ending.POISON), poison)


def _take_over(fs: FileSystem, work: Restore, episode: EpisodeId, rows: bytes) -> bool:
    """Give the dead execution's file its new name, if it begins with exactly these rows.

    It usually does, and a rename costs a tenth of a new file and the removal of the old one.
    """
    if (episode.attempt, Ending.ROWS) not in work.found[episode.rollout_id]:
        return False
    source = path_of(work.directory, episode, Ending.ROWS)
    try:
        there = next(fs.read_chunks(source, len(rows) + 1), b"")
        if not there.startswith(rows):
            return False
        if len(there) > len(rows):
            file = fs.append(source)
            try:
                file.truncate(len(rows))
            finally:
                file.close()
        fs.rename(source, path_of(work.directory, episode.next(), Ending.ROWS))
    except FileNotFoundError:
        return False  # another server was faster
    work.found[episode.rollout_id].remove((episode.attempt, Ending.ROWS))
    return True


def _put(fs: FileSystem, path: str, data: bytes) -> None:
    """A new file, in place of one that another server put there after our listing."""
    try:
        file = fs.create(path)
    except FileExistsError:
        fs.unlink(path)
        file = fs.create(path)
    try:
        file.write(data)
    finally:
        file.close()


def _retire(fs: FileSystem, work: Restore, episode: EpisodeId) -> None:
    there = work.found[episode.rollout_id]
    fenced = {attempt for attempt, ending in there if ending is Ending.FENCE}
    for attempt in range(episode.attempt + 1):
        if attempt not in fenced:
            fence(fs, work.directory, EpisodeId(episode.rollout_id, attempt))
    for attempt, ending in there:
        if attempt <= episode.attempt and ending in LEDGER:
            unlink(fs, path_of(work.directory, EpisodeId(episode.rollout_id, attempt), ending))
