"""A participant's manifest: what it says, how it is read, and how it is created exactly once (INV-49).

The manifest is the last file of a participant's directory. It appears whole or not at all, is never replaced, and of
two writers one creates it. It must not know what records hold.
"""

from __future__ import annotations

import errno

import msgspec

from gym_ckpt.errors import ConfigError, InvalidCheckpointState, InvalidRequest
from gym_ckpt.limits import MANIFEST_MAX_BYTES
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import NO_LINKS, Steps, discard, read_bounded, reason, there
from gym_ckpt.types import Kind, check_checkpoint_id
from gym_ckpt.wire import json

SCHEMA_VERSION = 1
MEND = "put it back from a copy"


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """Whose records they are, known before they are written."""

    kind: Kind
    instance: str
    checkpoint_id: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file `manifest.json`."""

    schema_version: int
    kind: Kind
    instance: str
    checkpoint_id: str
    records_file: str
    records_sha256: str
    record_count: int

    @classmethod
    def of(cls, head: ManifestHead, sha256: str, count: int) -> Manifest:
        return cls(
            schema_version=SCHEMA_VERSION,
            kind=head.kind,
            instance=head.instance,
            checkpoint_id=head.checkpoint_id,
            records_file=layout.records_name(sha256),
            records_sha256=sha256,
            record_count=count,
        )

    def encode(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self)) + b"\n"


def damaged(path: str, why: str, mend: str = MEND) -> InvalidCheckpointState:
    """The error for a file that cannot be used: what, why, and the mend."""
    return InvalidCheckpointState(f"{path}: {why}; {mend}")


def read(fs: FileSystem, directory: str) -> Manifest | None:
    """The manifest in a participant's directory, or None if there is none.

    Raises:
        InvalidCheckpointState: it is there and cannot be used.
    """
    path = layout.join(directory, layout.MANIFEST)
    try:
        data = read_bounded(fs, path, MANIFEST_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged(path, f"cannot be read ({reason(error)})", f"make it readable, or {MEND}") from error
    try:
        value = json.loads(data)
        if isinstance(value, dict) and value.get("schema_version") != SCHEMA_VERSION:
            raise damaged(
                path,
                f"schema version {value.get('schema_version')!r:.40} is not {SCHEMA_VERSION}",
                "use the release that wrote it",
            )
        manifest = msgspec.convert(value, Manifest, strict=True)
    except (ValueError, msgspec.ValidationError) as error:
        raise damaged(path, f"is not a manifest ({error})") from None
    if manifest.records_file != layout.records_name(manifest.records_sha256) or not layout.is_records(
        manifest.records_file
    ):
        raise damaged(path, "records_file and records_sha256 do not belong together")
    if manifest.record_count < 0:
        raise damaged(path, f"record_count is {manifest.record_count}")
    try:
        check_checkpoint_id(manifest.checkpoint_id)
        layout.check_instance(manifest.instance)
    except (InvalidRequest, ConfigError) as error:
        raise damaged(path, str(error)) from None
    return manifest


def create_once(fs: FileSystem, source: str, target: str) -> Steps[None]:
    """Give the synced file `source` the name `target` unless something has it; `source` may keep its own name.

    Raises:
        FileExistsError: `target` is there already; it was not touched.
        OSError: anything else; `target` is there whole, or not at all.
    """
    try:
        fs.link(source, target)
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
    # No hard links here. A rename is as atomic but replaces silently, so a lock keeps a second writer out meanwhile.
    yield "manifest.lock"
    lock_path = layout.join(layout.parent_of(target), layout.MANIFEST_LOCK)
    lock = fs.try_lock(lock_path, source)
    if lock is None:
        raise BlockingIOError(errno.EAGAIN, "another attempt is creating this manifest", target)
    try:
        yield "manifest.look"
        if there(fs, target):
            raise FileExistsError(errno.EEXIST, "the manifest is there already", target)
        yield "manifest.rename"
        fs.rename(source, target)
    finally:
        lock.release()


def remove_orphan(fs: FileSystem, directory: str, ours: Manifest, winner: Manifest) -> None:
    """Remove the records of an attempt that lost to another manifest, unless the winner's are the same."""
    if ours.records_file != winner.records_file:
        discard(fs, layout.join(directory, ours.records_file))
