"""Publication of a checkpoint by its controller: `collection.json`, then the pointer, each durable before the next.

Keeps INV-48 (whatever crashes where, the pointer names a complete checkpoint or the one before) and its part of INV-51
(a failure at any call leaves the previous checkpoint restorable and the next one possible). Participants' manifests
are durable before this starts; it looks that they are there. It must not know what continued rows are.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import Any

from gym_ckpt.errors import CheckpointConflict, InvalidCheckpointState
from gym_ckpt.limits import PUBLISHED_LISTED_MAX
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import layout, manifest
from gym_ckpt.storage.files import Steps, listed, make_dirs, names_in, replace, there
from gym_ckpt.storage.manifest import SCHEMA_VERSION, damaged
from gym_ckpt.storage.pointer import (
    DIGEST,
    Pointer,
    checkpoint_names,
    collection_digest,
    read_collection_file,
    read_or_rebuilt,
    read_pointer,
    still_there,
)
from gym_ckpt.wire import json


@dataclass(frozen=True, slots=True)
class Published:
    """Published checkpoints, newest first. `damage` is why the pointer itself could not be used, if it could not."""

    checkpoint_ids: tuple[str, ...]
    damage: str | None = None


def publish(
    run_dir: str, checkpoint_id: str, collection: dict[str, Any], attempt_token: str, failed: Collection[str] = ()
) -> Job[int]:
    """Write `collection.json` and point `LATEST` at this checkpoint; returns its sequence number.

    The file holds `collection` plus `checkpoint_id`, `sequence` and a digest. Publishing the same again is the same
    publication. `failed`: ids whose publication failed, which no lost pointer can have named.

    Raises (by the job):
        CheckpointConflict: the id is published already, with another collection or before a newer one.
        InvalidCheckpointState: a participant's directory has no manifest of this checkpoint.
        NotLossless: `collection` is not JSON.
        OSError: as the file system says. Whether it is published is then open: `latest` knows.
    """

    def job(fs: FileSystem) -> Generator[str, None, int]:
        directory = layout.checkpoint_dir(run_dir, checkpoint_id)
        yield "publish.look"
        pointer, _ = read_or_rebuilt(fs, run_dir, failed)  # damaged or lost, it takes none of those before with it
        sequence = _next_sequence(fs, run_dir, pointer)
        if pointer is not None and checkpoint_id in pointer.published:
            _check_same(fs, run_dir, checkpoint_id, collection, pointer)
            sequence = pointer.sequence
        else:
            whole = {**collection, "checkpoint_id": checkpoint_id, "sequence": sequence}
            data = json.dumps({**whole, DIGEST: collection_digest(whole)}) + b"\n"
            yield from make_dirs(fs, directory, layout.checkpoints_dir(run_dir))
            yield from _sync_participants(fs, directory, checkpoint_id)
            yield from replace(fs, layout.collection(directory), data, attempt_token)
        kept = [name for name in (pointer.published if pointer else []) if name != checkpoint_id]
        latest = Pointer(
            schema_version=SCHEMA_VERSION,
            checkpoint_id=checkpoint_id,
            sequence=sequence,
            published=[checkpoint_id, *still_there(fs, run_dir, kept)][:PUBLISHED_LISTED_MAX],
        )
        yield from replace(fs, layout.latest(run_dir), latest.encode(), attempt_token)
        return sequence

    return job


def _next_sequence(fs: FileSystem, run_dir: str, pointer: Pointer | None) -> int:
    """Above everything published, and above what a failed publication may have left."""
    known = set(pointer.published) if pointer else set()
    highest = pointer.sequence if pointer else 0
    for name in checkpoint_names(fs, run_dir):
        if name not in known:
            try:
                highest = max(highest, read_collection_file(fs, run_dir, name)["sequence"])
            except InvalidCheckpointState:
                continue
    return highest + 1


def _check_same(fs: FileSystem, run_dir: str, checkpoint_id: str, collection: dict[str, Any], pointer: Pointer) -> None:
    if pointer.checkpoint_id != checkpoint_id:
        raise CheckpointConflict(f"checkpoint {checkpoint_id} was published before {pointer.checkpoint_id}")
    there = read_collection_file(fs, run_dir, checkpoint_id)
    wanted = {**collection, "checkpoint_id": checkpoint_id, "sequence": there["sequence"]}
    if there[DIGEST] != collection_digest(wanted):
        raise CheckpointConflict(f"checkpoint {checkpoint_id} is published with another collection")


def _sync_participants(fs: FileSystem, directory: str, checkpoint_id: str) -> Steps[None]:
    """Every participant's directory here has its manifest, and all names down to the files are durable."""
    gym = layout.join(directory, layout.GYM)
    kinds = listed(fs, gym)
    if not kinds:
        return
    for kind in kinds:
        for instance in names_in(fs, layout.join(gym, kind)):
            participant = layout.join(gym, kind, instance)
            found = manifest.read(fs, participant)
            path = layout.join(participant, layout.MANIFEST)
            if found is None:
                raise damaged(path, "is missing: this participant did not commit", "take another checkpoint")
            if (found.kind, found.instance, found.checkpoint_id) != (kind, instance, checkpoint_id):
                raise damaged(path, "is another participant's or checkpoint's", "take another checkpoint")
            yield "publish.sync_participant"
            fs.fsync_dir(participant)
        yield "publish.sync_kind"
        fs.fsync_dir(layout.join(gym, kind))
    yield "publish.sync_gym"
    fs.fsync_dir(gym)
    yield "publish.sync_checkpoint"
    fs.fsync_dir(directory)


def published(run_dir: str) -> Job[Published]:
    """Published checkpoints, newest first; see `read_or_rebuilt`. The newest is named though it be gone, since nothing
    prunes it; of those before it, those that are there."""

    def job(fs: FileSystem) -> Generator[str, None, Published]:
        yield "publish.read"
        pointer, damage = read_or_rebuilt(fs, run_dir)
        names = pointer.published if pointer else []
        before = [name for name in names[1:] if there(fs, layout.checkpoint_dir(run_dir, name))]
        return Published((*names[:1], *before), damage)

    return job


def latest(run_dir: str) -> Job[str | None]:
    """The id that the pointer names, None before the first publication.

    Raises (by the job):
        InvalidCheckpointState: the pointer is damaged.
    """

    def job(fs: FileSystem) -> Generator[str, None, str | None]:
        yield "publish.read"
        pointer = read_pointer(fs, run_dir)
        return pointer.checkpoint_id if pointer else None

    return job


def sync_pointer(run_dir: str) -> Job[None]:
    """Make the pointer that stands now the one that a crash leaves. Raises (by the job) `OSError`."""

    def job(fs: FileSystem) -> Generator[str, None, None]:
        yield "publish.sync_pointer"
        fs.fsync_dir(run_dir)

    return job


def read_collection(run_dir: str, checkpoint_id: str) -> Job[dict[str, Any]]:
    """A checkpoint's `collection.json`, with the `checkpoint_id` and `sequence` that publication added.

    Raises (by the job):
        InvalidCheckpointState: missing, damaged, or another checkpoint's.
    """

    def job(fs: FileSystem) -> Generator[str, None, dict[str, Any]]:
        yield "publish.read"
        return read_collection_file(fs, run_dir, checkpoint_id)

    return job
