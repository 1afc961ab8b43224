"""What a commit and a restore move between a participant and its records in a checkpoint directory.

Knows neither phases nor leases: the control plane says when, and what becomes of a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gym_ckpt.core.phases import Phase, Target
from gym_ckpt.errors import (
    ExportFailed,
    InvalidCheckpointState,
    InvalidPhase,
    InvalidRolloutId,
    NotLossless,
    ProtocolError,
    Unavailable,
)
from gym_ckpt.invariants import within_scope
from gym_ckpt.limits import RECORD_MAX_BYTES
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.runtime.participant import Participant, Record, digests
from gym_ckpt.storage.files import is_unread
from gym_ckpt.storage.records import AbortFlag, ManifestHead, instances_of, read_records, write_records
from gym_ckpt.types import EpisodeId, keys
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CommitReply, ManifestInfo, RestoreReply


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The last export and write of a checkpoint; at first none. `outcome`: its own."""

    checkpoint_id: str = ""
    directory: str = ""
    outcome: Outcome[CommitReply] | None = None

    def refuse_behind(self, checkpoint_id: str) -> None:
        """Raises `Unavailable` while that of another checkpoint has not ended, though it was told to stop.

        It holds a thread of the disk: one more would hang with each checkpoint until none was left, and with the
        checkpoint's disk the ledger, on a disk that is well, would stand still.
        """
        if self.outcome is not None and not self.outcome.done and self.checkpoint_id != checkpoint_id:
            what = f"the write of checkpoint {self.checkpoint_id} into {self.directory}"
            raise Unavailable(f"{what} was told to stop and has not ended: that disk, or the export before it, hangs")


async def export_scope(participant: Participant, checkpoint_id: str, target: Target, abort: AbortFlag) -> CommitReply:
    """Export the scope and make it durable, records before manifest (INV-48), unless `abort` comes first (INV-50).

    Raises: what the participant's hook or the files raise; `ExportFailed` for state that JSON cannot carry.
    """
    ports = participant.ports
    records = await participant.export(frozenset(target.scope), target.stop)
    exported = sorted(record.episode for record in records)
    beyond = within_scope(exported, target.scope)
    assert beyond is None, beyond  # INV-40
    ports.tracer.emit(
        "commit.exported",
        kind=str(participant.kind),
        instance=participant.instance,
        checkpoint_id=checkpoint_id,
        episodes=keys(exported),
        scope=keys(target.scope),
        digests=lambda: digests(records),
    )
    await ports.probe("commit.exported")
    head = ManifestHead(kind=participant.kind, instance=participant.instance, checkpoint_id=checkpoint_id)
    manifest = await ports.disk.run(
        write_records(target.directory, head, lambda: _lines(records), abort, ports.entropy.token())
    )
    await participant.committed(frozenset(target.scope), target.stop)
    staged = participant.staged(records)
    return CommitReply(
        phase=Phase.COMMITTED,
        episode_ids=tuple(keys(exported)),
        manifest=msgspec.convert(msgspec.to_builtins(manifest), ManifestInfo),
        staging_keys=None if staged is None else staged[0],
        staging_keys_by_episode=None if staged is None else staged[1],
    )


async def import_scope(
    participant: Participant, restore_id: str, target: Target, ended: Callable[[], bool]
) -> RestoreReply:
    """Read the scope's records, check them all, then install them under the next attempts; retire 0..N (INV-63).

    `ended`: whether the restore was ended meanwhile. Its cancellation comes too late for work in a thread, which goes
    on to its end: what lives here then, and its marks, are of others, and nothing may count as installed (INV-31,
    INV-60, INV-66).

    Raises: what the participant's hooks or the files raise. Something may then be installed: the caller discards it.
    """
    ports, scope, marks = participant.ports, frozenset(target.scope), participant.admission.book.marks
    source, records = await _read(participant, target.directory, scope)
    _refuse_ended(ended)
    await participant.check(records)
    _refuse_ended(ended)  # neither of the two need have waited for anything that a cancellation reaches
    saved = participant.saved(records)
    # Whatever an earlier restore left in this process for these rollouts, marks included, is not part of this one.
    rollout_ids = {episode.rollout_id for episode in scope}
    participant.free([each for each in participant.live() if each.rollout_id in rollout_ids])
    marks.forget(rollout_ids)
    participant.admission.stop(target.scope)  # calls of survivors that wait here already included (INV-35)
    await participant.restore(target.scope, records)
    if ended():
        raise InvalidPhase("the restore was ended while its last records were being installed")
    ports.tracer.emit(
        "restore.installed",
        kind=str(participant.kind),
        instance=participant.instance,
        source=source,
        restore_id=restore_id,
        scope=keys(target.scope),
        digests=lambda: digests(records),
        live=lambda: keys(participant.live()),
        marks=marks.highest,
    )
    await ports.probe("restore.installed")
    return RestoreReply(
        phase=Phase.RESTORED,
        source_checkpoint_id=source,
        installed=tuple(keys(record.episode for record in records)),
        saved=saved,
    )


def _refuse_ended(ended: Callable[[], bool]) -> None:
    if ended():
        raise InvalidPhase("the restore was ended while its records were being read")


async def _read(participant: Participant, directory: str, scope: frozenset[EpisodeId]) -> tuple[str, list[Record]]:
    """The checkpoint's id, and the records of the scope that are this participant's, as the attempts to continue.

    Raises: what the files raise; `InvalidCheckpointState` when two servers have a record of one episode.
    """
    disk, kind, instance = participant.ports.disk, participant.kind, participant.instance
    instances = await disk.run(instances_of(directory, kind)) if participant.shared else [instance]
    if not instances:
        raise InvalidCheckpointState(f"{directory} holds no records of kind {kind}")
    sources: set[str] = set()
    found: dict[EpisodeId, Record] = {}
    for each in instances:
        manifest, rows = await disk.run(
            read_records(directory, kind, each, None, lambda row: _is_wanted(participant, row, scope))
        )
        sources.add(manifest.checkpoint_id)
        for row in rows:
            record = Record(_episode_of(row, each).next(), row["state"])
            if record.episode in found:
                raise InvalidCheckpointState(
                    f"two servers of kind {kind} have a record of one episode: {record.episode}"
                )
            found[record.episode] = record
    if len(sources) > 1:
        raise InvalidCheckpointState(f"{directory} holds records of several checkpoints: {', '.join(sorted(sources))}")
    return sources.pop(), list(found.values())


def _is_wanted(participant: Participant, row: dict[str, object], scope: frozenset[EpisodeId]) -> bool:
    episode = _episode_of(row, participant.instance)
    return episode in scope and participant.owns(episode)


def _lines(records: Sequence[Record]) -> Iterator[bytes]:
    """Records as JSON lines, one at a time: the file is never whole in memory."""
    for record in records:
        row = {"episode": {"rollout_id": record.episode.rollout_id, "attempt": record.episode.attempt}}
        try:
            line = json.dumps(row | {"state": record.state})
        except NotLossless as error:
            raise ExportFailed(f"episode {record.episode.key} cannot be exported: {error}") from None
        if len(line) > RECORD_MAX_BYTES:
            raise ExportFailed(
                f"episode {record.episode.key} cannot be exported: its record has {len(line):,} bytes, and "
                f"{RECORD_MAX_BYTES:,} are allowed"
            )
        yield line


def _episode_of(row: dict[str, object], instance: str) -> EpisodeId:
    match row.get("episode"):
        case {"rollout_id": str(rollout_id), "attempt": int(attempt)} if "state" in row and type(attempt) is int:
            try:
                return EpisodeId.checked(rollout_id, attempt)
            except InvalidRolloutId as error:
                raise InvalidCheckpointState(f"a record of {instance}: {error}") from None
    raise InvalidCheckpointState(f"a record of {instance} has no episode or no state")


def not_restored(participant: Participant, error: Exception) -> ProtocolError:
    """What a failed import says to the controller. A disk that fails is no damage: only a permission is refused for
    good, since somebody can give it back."""
    named = f"{participant.kind} {participant.instance}"
    if isinstance(error, ProtocolError):
        why = error.__cause__
        hiccup = isinstance(error, InvalidCheckpointState) and is_unread(why) and not isinstance(why, PermissionError)
        return Unavailable(f"{named}: {error.detail}") if hiccup else error
    if isinstance(error, OSError):
        return Unavailable(f"{named}: checkpoint files cannot be read: {error}")
    return InvalidCheckpointState(f"{named}: its records cannot be restored: {error!r}")
