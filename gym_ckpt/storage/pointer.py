"""The file `LATEST`: the newest published checkpoint, and those before it that the pointer named.

A checkpoint is published by this file alone: a directory that it never named, complete as it may be, is partial. Order
is the order of publication, by sequence number, never by a clock. It must not know what a collection holds beyond the
fields that publication adds to it: id, sequence number, and a digest of all the rest, since a file that has rotted may
well be JSON that says something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from gym_ckpt.errors import InvalidCheckpointState, InvalidRequest
from gym_ckpt.limits import COLLECTION_MAX_BYTES, MANIFEST_MAX_BYTES
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import dir_there, listed, read_bounded, reason, there
from gym_ckpt.storage.manifest import MEND, SCHEMA_VERSION, damaged
from gym_ckpt.types import check_checkpoint_id
from gym_ckpt.wire import json

DIGEST: Final = "sha256"


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of `LATEST`; `published` is newest first and starts with `checkpoint_id`."""

    schema_version: int
    checkpoint_id: str
    sequence: int
    published: list[str]

    def encode(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self)) + b"\n"


def read_pointer(fs: FileSystem, run_dir: str) -> Pointer | None:
    """The pointer, or None before the first publication.

    Raises:
        InvalidCheckpointState: it is there and cannot be used.
    """
    path = layout.latest(run_dir)
    mend = "remove it, and a restart looks at the checkpoints themselves"
    try:
        value = json.loads(read_bounded(fs, path, MANIFEST_MAX_BYTES))
        pointer = msgspec.convert(value, Pointer, strict=True)
        for checkpoint_id in pointer.published:
            check_checkpoint_id(checkpoint_id)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged(path, f"cannot be read ({reason(error)})", mend) from error
    except (ValueError, msgspec.ValidationError, InvalidRequest) as error:
        raise damaged(path, f"is not a pointer ({error})", mend) from None
    if pointer.schema_version != SCHEMA_VERSION:
        raise damaged(path, f"schema version {pointer.schema_version} is not {SCHEMA_VERSION}", mend)
    if pointer.published[:1] != [pointer.checkpoint_id] or pointer.sequence < 1:
        raise damaged(path, "contradicts itself", mend)
    return pointer


def collection_digest(collection: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of what a collection says beside it."""
    rest = {key: value for key, value in collection.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True)).hexdigest()


def read_collection_file(fs: FileSystem, run_dir: str, checkpoint_id: str) -> dict[str, Any]:
    """A checkpoint's `collection.json`.

    Raises:
        InvalidCheckpointState: missing, damaged, or another checkpoint's.
    """
    path = layout.collection(layout.checkpoint_dir(run_dir, checkpoint_id))
    try:
        value = json.loads(read_bounded(fs, path, COLLECTION_MAX_BYTES))
    except FileNotFoundError:
        directory = layout.checkpoint_dir(run_dir, checkpoint_id)
        raise damaged(path if dir_there(fs, directory) else directory, "is missing") from None
    except OSError as error:
        raise damaged(path, f"cannot be read ({reason(error)})", f"make it readable, or {MEND}") from error
    except ValueError as error:
        raise damaged(path, f"is damaged ({error})") from None
    if not isinstance(value, dict) or value.get("checkpoint_id") != checkpoint_id:
        raise damaged(path, f"is not the collection of checkpoint {checkpoint_id}")
    if value.get(DIGEST) != collection_digest(value):
        raise damaged(path, "is damaged (its digest is another)")
    if type(value.get("sequence")) is not int or value["sequence"] < 1:
        raise damaged(path, "has no sequence number")
    return value


def read_or_rebuilt(fs: FileSystem, run_dir: str, failed: Collection[str] = ()) -> tuple[Pointer | None, str | None]:
    """The pointer; where it is damaged or missing, what it may have said, and why it cannot be used.

    Missing, it was lost, or a crash came just before the first one was written. A collection is written once the
    records of all participants are durable, so that a checkpoint with one is as good as one that was named; but for
    those of which the caller knows that their publication `failed`.
    """
    try:
        pointer = read_pointer(fs, run_dir)
    except InvalidCheckpointState as error:
        return rebuilt(fs, run_dir, failed), error.detail
    if pointer is not None:
        return pointer, None
    lost = rebuilt(fs, run_dir, failed)
    if lost is None:
        return None, None
    why = "is missing, and there are checkpoints (a crash came just before it was written, or it was removed)"
    return lost, damaged(layout.latest(run_dir), why, "the newest whole one of them is used").detail


def rebuilt(fs: FileSystem, run_dir: str, failed: Collection[str] = ()) -> Pointer | None:
    """What a lost pointer may have said: every checkpoint with a sound collection, by sequence number, but those whose
    publication is known to have `failed`.
    """
    found: list[tuple[int, str]] = []
    for checkpoint_id in checkpoint_names(fs, run_dir):
        if checkpoint_id in failed:
            continue
        try:
            found.append((read_collection_file(fs, run_dir, checkpoint_id)["sequence"], checkpoint_id))
        except InvalidCheckpointState:
            continue
    if not found:
        return None
    found.sort(reverse=True)
    names = [name for _, name in found]
    return Pointer(schema_version=SCHEMA_VERSION, checkpoint_id=names[0], sequence=found[0][0], published=names)


def checkpoint_names(fs: FileSystem, run_dir: str) -> list[str]:
    """Checkpoint ids that have a directory, sorted; anything else that stands there is not ours to judge."""
    parent = layout.checkpoints_dir(run_dir)
    return [name for name in listed(fs, parent) if _is_id(name) and dir_there(fs, layout.join(parent, name))]


def still_there(fs: FileSystem, run_dir: str, names: Sequence[str]) -> list[str]:
    """Those of these checkpoints that have a collection; what is left out here is pruned."""
    return [name for name in names if there(fs, layout.collection(layout.checkpoint_dir(run_dir, name)))]


def _is_id(name: str) -> bool:
    try:
        check_checkpoint_id(name)
    except InvalidRequest:
        return False
    return True
