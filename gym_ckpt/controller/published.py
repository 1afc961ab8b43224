"""What a published checkpoint of a collection says, and which one a restart uses.

A checkpoint is believed only when its collection, every participant that was there when it was published, and every
byte of their records are right; else the one before is tried, and the reader is told (INV-51). It must not know what is
done with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from gym_ckpt.errors import ConfigError, InvalidCheckpointState, InvalidRolloutId
from gym_ckpt.limits import COLLECT_RETRY_FIRST_S, COLLECT_RETRY_MAX_S, READ_AGAIN_S
from gym_ckpt.ports import Disk, FileSystem, Job
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import is_unread, listed, names_in
from gym_ckpt.storage.publication import published, read_collection
from gym_ckpt.storage.verify import verify_checkpoint
from gym_ckpt.types import ATTEMPT_MAX, EpisodeId
from gym_ckpt.wire.messages import EpisodeRef, refs, scope_of

COLLECTION_SCHEMA = 1


class CollectionFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`collection.json`. `run_id`: of the process that took it; `run`: fingerprint of input and output.

    `continued`, `restarted`: rows as attempts; the first have their state in the checkpoint, the others were in flight
    and start from input after a crash. `participants`: `kind/instance` of each directory of records.
    `checkpoint_id`, `sequence` and `sha256`, of all the rest, are added by publication. `created_at`: seconds since the
    epoch.
    """

    collection_schema: int
    run_id: str
    run: str
    created_at: float
    continued: list[EpisodeRef]
    restarted: list[EpisodeRef]
    participants: list[str]
    checkpoint_id: str = ""
    sequence: int = 0
    sha256: str = ""


def collection_of(
    *,
    run_id: str,
    run: str,
    created_at: float,
    continued: Iterable[EpisodeId],
    restarted: Iterable[EpisodeId],
    participants: Iterable[str],
) -> dict[str, Any]:
    """The contents of `collection.json`, before publication adds its fields."""
    file = CollectionFile(
        collection_schema=COLLECTION_SCHEMA,
        run_id=run_id,
        run=run,
        created_at=created_at,
        continued=refs(continued),
        restarted=refs(restarted),
        participants=sorted(participants),
    )
    made: dict[str, Any] = msgspec.to_builtins(file)
    del made["checkpoint_id"], made["sequence"], made["sha256"]
    return made


def participants_in(checkpoint_dir: str) -> Job[list[str]]:
    """`kind/instance` of every participant that wrote into a checkpoint, sorted. Raises (by the job) `OSError`."""

    def job(fs: FileSystem) -> Generator[str, None, list[str]]:
        yield "checkpoint.list_participants"
        gym = layout.join(checkpoint_dir, layout.GYM)
        return [f"{kind}/{name}" for kind in listed(fs, gym) for name in names_in(fs, layout.join(gym, kind))]

    return job


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint that a restart continues."""

    checkpoint_id: str
    checkpoint_dir: str
    continued: tuple[EpisodeId, ...]


async def newest_valid(
    disk: Disk, run_dir: str, run: str, *, start_over: bool, say: Callable[[str], None]
) -> Source | None:
    """The newest published checkpoint in which every byte is right; None when none was published.

    Raises:
        InvalidCheckpointState: there are some, and none can be used (None instead, when told to `start_over`); or this
            process is not allowed to read the newest.
        ConfigError: a checkpoint is another run's.
    """
    found = await disk.run(published(run_dir))
    if found.damage is not None:
        say(f"looking at the checkpoints themselves: {found.damage}")
    causes: list[str] = []
    for checkpoint_id in found.checkpoint_ids:
        if causes:
            say(f"{causes[-1]}; trying the one before")
        try:
            source = await _patiently(disk, run_dir, checkpoint_id, run)
        except InvalidCheckpointState as error:
            if isinstance(error.__cause__, PermissionError) and not start_over:
                raise  # somebody can give it back, but not the work that an older one lacks
            causes.append(f"checkpoint {checkpoint_id} cannot be used: {error.detail}")
        else:
            if causes:
                say(f"checkpoint {checkpoint_id} is whole, and used instead")
            return source
    if not causes and found.damage is None:
        return None
    why = causes[-1] if causes else "there is none left"
    if not start_over:
        raise InvalidCheckpointState(
            f"no checkpoint in {run_dir} can be used; {why}; or set collect.start_over to run unfinished rows "
            "from their input, or begin again from nothing with --no-resume"
        )
    say(f"no checkpoint in {run_dir} can be used, and unfinished rows start from input, as told; {why}")
    return None


async def _patiently(disk: Disk, run_dir: str, checkpoint_id: str, run: str) -> Source:
    """As `_checked`; what cannot be read is read again for a while, since a network's hiccup is no damage."""
    pause, until = COLLECT_RETRY_FIRST_S, anyio.current_time() + READ_AGAIN_S
    while True:
        try:
            return await _checked(disk, run_dir, checkpoint_id, run)
        except InvalidCheckpointState as error:
            if not is_unread(error.__cause__) or anyio.current_time() + pause >= until:
                raise
        await anyio.sleep(pause)
        pause = min(2 * pause, COLLECT_RETRY_MAX_S)


async def _checked(disk: Disk, run_dir: str, checkpoint_id: str, run: str) -> Source:
    directory = layout.checkpoint_dir(run_dir, checkpoint_id)
    path = layout.collection(directory)
    try:
        file = msgspec.convert(await disk.run(read_collection(run_dir, checkpoint_id)), CollectionFile, strict=True)
        continued = scope_of(file.continued)
    except (msgspec.ValidationError, InvalidRolloutId) as error:
        raise InvalidCheckpointState(f"{path}: {error}") from None
    last = next((episode for episode in continued if episode.attempt >= ATTEMPT_MAX), None)
    if last is not None:
        raise InvalidCheckpointState(f"{path}: no attempt comes after {last}")
    if file.collection_schema != COLLECTION_SCHEMA:
        raise InvalidCheckpointState(f"{path}: schema {file.collection_schema} is not {COLLECTION_SCHEMA}")
    if file.run != run:
        raise ConfigError(f"{path} is of a run with another input or output: choose another checkpoint_dir")
    report = await disk.run(verify_checkpoint(directory))
    if not report.sound:
        raise InvalidCheckpointState(report.problems[0]) from report.unreadable
    missing = sorted(set(file.participants) - {f"{one.kind}/{one.instance}" for one in report.participants})
    if missing:
        raise InvalidCheckpointState(f"{directory}: the records of {missing[0]} are missing")
    return Source(checkpoint_id, directory, continued)
