"""One participant's records in one checkpoint: written once, streamed, hashed on the way in and on the way out.

Order of a write, each durable before the next (INV-48): records under a name of this attempt alone, their final name,
the manifest. A directory with a manifest never changes: the same commit again returns it, another is refused, and of
two racing writers one wins (INV-49). A write that was aborted publishes nothing (INV-50). Reading keeps only what is
in scope (INV-40) and believes nothing before the digest of every byte is right.

It must not know what a record means, nor who commits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from gym_ckpt.errors import NotLossless, ScopeMismatch
from gym_ckpt.limits import READ_CHUNK_BYTES, RECORD_MAX_BYTES
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import layout, manifest
from gym_ckpt.storage.abort import AbortFlag, WriteAborted
from gym_ckpt.storage.files import Steps, chunks_of, discard, listed, make_dirs, reason, write_new
from gym_ckpt.storage.lines import LineTooLong, split_lines
from gym_ckpt.storage.manifest import MEND, Manifest, ManifestHead, damaged
from gym_ckpt.types import Kind
from gym_ckpt.wire import json
from gym_ckpt.words import counted

__all__ = [
    "AbortFlag",
    "Manifest",
    "ManifestHead",
    "WriteAborted",
    "instances_of",
    "read_records",
    "write_records",
]

Records = Iterable[bytes] | Callable[[], Iterable[bytes]]
"""Lines of JSON without newline, or how to get them: called inside the job, so that the work is done there."""


def write_records(
    checkpoint_dir: str, head: ManifestHead, records: Records, abort: AbortFlag, attempt_token: str
) -> Job[Manifest]:
    """Write all records of one participant and publish its manifest, or leave no manifest.

    Args:
        checkpoint_dir: made if need be; the directory that holds it should stand durably already (`claim` sees to it).
        attempt_token: fresh lower-case hexadecimal; never used before in this directory.

    Raises (by the job):
        WriteAborted: `abort` came before publication.
        ScopeMismatch: this checkpoint has other records here already.
        InvalidCheckpointState: the directory belongs to something else, or its manifest is damaged.
        NotLossless: a record is over `RECORD_MAX_BYTES`.
        OSError: as the file system says. Whether a manifest was created is then open; the checkpoint has failed.
        Anything that iterating over `records` raises.
    """

    def job(fs: FileSystem) -> Generator[str, None, Manifest]:
        directory = layout.participant_dir(checkpoint_dir, head.kind, head.instance)
        abort.check()
        yield from make_dirs(fs, directory, checkpoint_dir)
        yield "records.look"
        there = manifest.read(fs, directory)
        if there is not None:
            ours = yield from _hash_only(head, records, abort)
            return (yield from _same_commit(fs, directory, ours, there))
        temp = layout.temporary(layout.join(directory, "records"), attempt_token)
        ours = yield from _stream(fs, temp, head, records, abort)
        try:
            yield "records.rename"
            fs.rename(temp, layout.join(directory, ours.records_file))
        except OSError:
            discard(fs, temp)
            raise
        yield "records.sync_dir"
        fs.fsync_dir(directory)
        return (yield from _publish(fs, directory, ours, abort, attempt_token))

    return job


def _publish(fs: FileSystem, directory: str, ours: Manifest, abort: AbortFlag, token: str) -> Steps[Manifest]:
    target = layout.join(directory, layout.MANIFEST)
    temp = layout.temporary(target, token)
    abort.check()
    yield from write_new(fs, temp, ours.encode())
    lost = False
    try:
        yield "records.publish"
        abort.begin_publication()
        yield from manifest.create_once(fs, temp, target)
    except FileExistsError:
        lost = True
    except Exception:
        discard(fs, temp)
        raise
    discard(fs, temp)
    yield "records.sync_manifest"
    fs.fsync_dir(directory)
    if not lost:
        return ours
    there = manifest.read(fs, directory)
    if there is None:
        raise damaged(target, "was there and is gone", "take another checkpoint")
    if there != ours:
        manifest.remove_orphan(fs, directory, ours, there)
    return (yield from _same_commit(fs, directory, ours, there))


def _same_commit(fs: FileSystem, directory: str, ours: Manifest, there: Manifest) -> Steps[Manifest]:
    """The manifest that exists, made durable, if it is that of this very commit."""
    path = layout.join(directory, layout.MANIFEST)
    if (there.kind, there.instance, there.checkpoint_id) != (ours.kind, ours.instance, ours.checkpoint_id):
        raise damaged(path, f"belongs to {_whose(there)}, not to {_whose(ours)}", "commit into a directory of its own")
    if there != ours:
        raise ScopeMismatch(f"{path}: {_whose(ours)} was committed here with other records; take another checkpoint")
    yield "records.sync_manifest"
    fs.fsync_dir(directory)
    return there


def _whose(named: Manifest) -> str:
    return f"{named.kind.value} {named.instance} of checkpoint {named.checkpoint_id}"


def _checked(records: Records, abort: AbortFlag) -> Iterator[bytes]:
    """The records, each asked about before it is taken."""
    source = iter(records() if callable(records) else records)
    count = 0
    while True:
        abort.check()
        record = next(source, None)
        if record is None:
            return
        abort.check()
        assert record and b"\n" not in record, "a record is one line of JSON"
        if len(record) > RECORD_MAX_BYTES:
            raise NotLossless(f"record {count}", f"{len(record)} bytes are more than {RECORD_MAX_BYTES}")
        count += 1
        yield record


def _hash_only(head: ManifestHead, records: Records, abort: AbortFlag) -> Steps[Manifest]:
    digest, count = hashlib.sha256(), 0
    for record in _checked(records, abort):
        yield "records.hash"
        digest.update(record + b"\n")
        count += 1
    return Manifest.of(head, digest.hexdigest(), count)


def _stream(fs: FileSystem, temp: str, head: ManifestHead, records: Records, abort: AbortFlag) -> Steps[Manifest]:
    """Write the records to `temp` and make them durable there."""
    digest, count = hashlib.sha256(), 0
    buffer = bytearray()
    yield "records.create"
    file = fs.create(temp)
    try:
        for record in _checked(records, abort):
            yield "records.record"
            buffer += record
            buffer += b"\n"
            count += 1
            if len(buffer) >= READ_CHUNK_BYTES:
                digest.update(buffer)
                file.write(bytes(buffer))
                buffer.clear()
        yield "records.write"
        digest.update(buffer)
        file.write(bytes(buffer))
        yield "records.fsync"
        file.fsync()
    except Exception:
        discard(fs, temp)
        raise
    finally:
        file.close()
    return Manifest.of(head, digest.hexdigest(), count)


def read_records(
    checkpoint_dir: str,
    kind: Kind,
    instance: str,
    checkpoint_id: str | None,
    keep: Callable[[dict[str, Any]], bool],
) -> Job[tuple[Manifest, list[dict[str, Any]]]]:
    """The records that `keep` accepts, in file order, once the digest and the count of all of them are verified.

    Raises (by the job):
        InvalidCheckpointState: naming the file, what is wrong with it and the mend.
    """

    def job(fs: FileSystem) -> Generator[str, None, tuple[Manifest, list[dict[str, Any]]]]:
        yield "records.read_manifest"
        found = _expected(fs, checkpoint_dir, kind, instance, checkpoint_id)
        directory = layout.participant_dir(checkpoint_dir, kind, instance)
        yield "records.read"
        return found, [record for record in verified_records(fs, directory, found) if keep(record)]

    return job


def verified_records(fs: FileSystem, directory: str, named: Manifest) -> Iterator[dict[str, Any]]:
    """Every record of a manifest; the digest is judged after the last, so use none before the end.

    Raises:
        InvalidCheckpointState: at the first thing that is wrong.
    """
    path = layout.join(directory, named.records_file)
    digest, count = hashlib.sha256(), 0

    def hashed() -> Iterator[bytes]:
        for chunk in chunks_of(fs, path, READ_CHUNK_BYTES):
            digest.update(chunk)
            yield chunk

    try:
        for line, whole in split_lines(hashed(), RECORD_MAX_BYTES):
            count += 1
            record = json.loads(line)
            if not whole or not isinstance(record, dict):
                raise damaged(path, f"line {count} is {'no record' if whole else 'torn'}")
            yield record
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    except OSError as error:
        raise damaged(path, f"cannot be read ({reason(error)})", f"make it readable, or {MEND}") from error
    except LineTooLong as error:
        raise damaged(path, str(error)) from None
    except ValueError as error:
        raise damaged(path, f"line {count} is damaged ({error})") from None
    if digest.hexdigest() != named.records_sha256:
        raise damaged(path, "its bytes do not match the digest in the manifest")
    if count != named.record_count:
        raise damaged(path, f"it holds {counted(count, 'record')} and the manifest says {named.record_count}")


def _expected(fs: FileSystem, checkpoint_dir: str, kind: Kind, instance: str, checkpoint_id: str | None) -> Manifest:
    directory = layout.participant_dir(checkpoint_dir, kind, instance)
    path = layout.join(directory, layout.MANIFEST)
    found = manifest.read(fs, directory)
    if found is None:
        raise damaged(path, "is missing: this participant never finished its part of the checkpoint")
    wanted_id = found.checkpoint_id if checkpoint_id is None else checkpoint_id
    if (found.kind, found.instance, found.checkpoint_id) != (kind, instance, wanted_id):
        raise damaged(path, f"belongs to {_whose(found)}, not to {kind.value} {instance} of checkpoint {wanted_id}")
    return found


def instances_of(checkpoint_dir: str, kind: Kind) -> Job[list[str]]:
    """Participants of a kind that have a directory in the checkpoint, sorted. Raises (by the job) `OSError`."""

    def job(fs: FileSystem) -> Steps[list[str]]:
        yield "records.list"
        directory = layout.join(checkpoint_dir, layout.GYM, kind)
        return listed(fs, directory)

    return job
