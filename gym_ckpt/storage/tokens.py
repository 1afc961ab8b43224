"""A token store in a directory: one immutable file per staged call, named by the call's digest.

    <directory>/<first two digits>/<digest>          kept: some ledger row names it
    <directory>/staged/<server>/<digest>.<token>     staged: its call has not been delivered yet
    <directory>/locks/<server>                       held by a server as long as it lives

The staging key is the digest of the staged call, so a key tells its content: the same call staged twice is one file,
damage shows, and no key names a path. A file is one line of JSON with the call's fields, then the three arrays in the
encodings that the digest is made of. A staged call is written and synced under a name of its own; it gets its key's
name, durably, when its row is written and not before. So what a server leaves behind when it dies, however many answers
it held, lies in one directory that its next life empties, without asking any ledger. A reader believes nothing before
the digest is right. Rollouts' arrays are never in a checkpoint (INV-52).

It must not know ledgers or checkpoints.
"""

from __future__ import annotations

import errno
import re
import struct
from typing import Any, Final

import msgspec

from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import READ_HEAD_BYTES, STAGED_HEAD_MAX_BYTES, STAGED_MAX_BYTES
from gym_ckpt.ports import Disk, Entropy, FileSystem, Job, Lock, Staged
from gym_ckpt.storage.files import Steps, TooLong, chunks_of, make_dirs, names_in, read_bounded, write_new
from gym_ckpt.storage.layout import check_instance, join, parent_of
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import InvalidStaging, StagedCall, encode_floats, encode_ids, staging_digest

_KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ARRAYS: Final = ("delta", "mask", "log_probabilities")
_BYTES_PER_TOKEN: Final = 8 + 4 + 4
_STAGED: Final = "staged"
_LOCKS: Final = "locks"


class StagedMissing(GymCkptError):
    """The token store has nothing under this staging key."""


class StagedDamaged(GymCkptError):
    """What the token store has under this staging key is not what was staged."""


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    rollout_id: str
    model_call_id: str
    parent_call_id: str | None
    mode: str
    prev_len: int
    delta_len: int
    cum_len: int
    weight_version: int
    extras: Any
    chain_hash: str
    cumulative_hash: str


class FileTokenStore:
    """`ports.TokenStore` on a directory that every server and the trainer can reach. `instance`: of this server."""

    def __init__(self, disk: Disk, entropy: Entropy, directory: str, instance: str) -> None:
        self._disk = disk
        self._entropy = entropy
        self._directory = directory
        self._instance = check_instance(instance)
        self._lock: Lock | None = None

    async def open(self) -> None:
        """Make the directories and remove what dead servers left; before anything else.

        Raises:
            OSError: as the file system says; EAGAIN while another server of this name lives.
        """
        await self._disk.run(open_store(self._directory, self._instance))
        if self._lock is None:
            self._lock = await self._disk.run(take_over(self._directory, self._instance))

    def close(self) -> None:
        """The server ends; its heir may begin."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def stage(self, call: StagedCall) -> Staged:
        return await self._disk.run(stage(self._directory, self._instance, call, self._entropy.token()))

    def keep(self, staged: Staged) -> Job[None]:
        return keep(self._directory, staged)

    async def drop(self, staged: Staged) -> None:
        await self._disk.run(drop(staged))

    async def get(self, staging_key: str) -> StagedCall:
        return await self._disk.run(get(self._directory, staging_key))


def open_store(directory: str, instance: str) -> Job[None]:
    """Make the directories, durably, so that keeping a call syncs one directory and no other.

    Raises (by the job):
        OSError: as the file system says.
    """
    own = join(directory, _STAGED, instance)
    locks = join(directory, _LOCKS)

    def job(fs: FileSystem) -> Steps[None]:
        for path in (directory, own, locks):
            yield from make_dirs(fs, path, directory)
        yield "tokens.make_dirs"
        there = set(names_in(fs, directory))
        for number in range(256):
            if f"{number:02x}" not in there:
                try:
                    fs.mkdir(join(directory, f"{number:02x}"))
                except FileExistsError:
                    pass  # another process opens the same store
        try:
            fs.create(join(locks, instance)).close()
        except FileExistsError:
            pass
        yield "tokens.sync_dirs"
        fs.fsync_dir(directory)
        fs.fsync_dir(locks)

    return job


def take_over(directory: str, instance: str) -> Job[Lock]:
    """Take this server's lock, and remove what it and other dead servers had staged; the lock's holder lives.

    Raises (by the job):
        OSError: as the file system says; EAGAIN when another server of this name lives, or one is just being swept.
    """

    def job(fs: FileSystem) -> Steps[Lock]:
        yield "tokens.lock"
        own = fs.try_lock(join(directory, _LOCKS, instance), instance)
        if own is None:
            raise OSError(errno.EAGAIN, f"another server {instance!r} uses this token store", directory)
        try:
            for name in names_in(fs, join(directory, _STAGED)):
                lock = own if name == instance else fs.try_lock(join(directory, _LOCKS, name), name)
                if lock is None:
                    continue  # it lives
                try:
                    yield from _empty(fs, join(directory, _STAGED, name))
                finally:
                    if lock is not own:
                        lock.release()
        except BaseException:
            own.release()
            raise
        return own

    return job


def _empty(fs: FileSystem, directory: str) -> Steps[None]:
    """Durably: the directory's server may begin once its lock is free, and must not see again what is gone."""
    names = names_in(fs, directory)
    for name in names:
        yield "tokens.sweep"
        try:
            fs.unlink(join(directory, name))
        except FileNotFoundError:
            pass
    if names:
        yield "tokens.sync_swept"
        fs.fsync_dir(directory)


def stage(directory: str, instance: str, call: StagedCall, token: str) -> Job[Staged]:
    """Write a staged call, durably, under a name of its own. Raises as `ports.TokenStore.stage`, by the job."""

    def job(fs: FileSystem) -> Steps[Staged]:
        key = staging_digest(call)
        path = join(directory, _STAGED, instance, f"{key}.{token}")
        yield from write_new(fs, path, encode(call))
        return Staged(key, path)

    return job


def keep(directory: str, staged: Staged) -> Job[None]:
    """Give a staged call its key's name, durably. Raises as `ports.TokenStore.keep`, by the job."""

    def job(fs: FileSystem) -> Steps[None]:
        path = path_of(directory, staged.key)
        yield "tokens.rename"
        fs.rename(staged.path, path)
        yield "tokens.sync_dir"
        fs.fsync_dir(parent_of(path))

    return job


def drop(staged: Staged) -> Job[None]:
    """Remove what was staged; nothing when it has been kept. Raises as `ports.TokenStore.drop`, by the job."""

    def job(fs: FileSystem) -> Steps[None]:
        yield "tokens.drop"
        try:
            fs.unlink(staged.path)
        except FileNotFoundError:
            pass

    return job


def listed(fs: FileSystem, directory: str) -> list[str]:
    """Keys of the calls that are kept, sorted."""
    shards = (f"{number:02x}" for number in range(256))
    return [key for shard in shards for key in names_in(fs, join(directory, shard)) if _KEY.fullmatch(key)]


def staged_by(fs: FileSystem, directory: str, staging_key: str) -> str | None:
    """The capture key that a kept call says it was staged under; None when its file says nothing of the kind."""
    head = b""
    try:
        for chunk in chunks_of(fs, path_of(directory, staging_key), READ_HEAD_BYTES):
            head += chunk
            if b"\n" in chunk or len(head) > STAGED_HEAD_MAX_BYTES:
                break
        return msgspec.convert(json.loads(head.partition(b"\n")[0]), _Head).rollout_id
    except (FileNotFoundError, ValueError, msgspec.ValidationError):
        return None


def remove(fs: FileSystem, directory: str, staging_key: str) -> bool:
    """Whether it was there. Not synced: one that comes back is removed again."""
    try:
        fs.unlink(path_of(directory, staging_key))
    except FileNotFoundError:
        return False
    return True


def get(directory: str, staging_key: str) -> Job[StagedCall]:
    """Read a staged call. Raises as `ports.TokenStore.get`, by the job."""

    def job(fs: FileSystem) -> Steps[StagedCall]:
        if not _KEY.fullmatch(staging_key):
            raise StagedMissing(f"{staging_key[:80]!r} is no staging key of this store")
        yield "tokens.read"
        try:
            data = read_bounded(fs, path_of(directory, staging_key), STAGED_MAX_BYTES)
        except FileNotFoundError:
            raise StagedMissing(f"no staged tokens under {staging_key} in {directory}") from None
        except TooLong as error:
            raise StagedDamaged(f"{path_of(directory, staging_key)}: {error.strerror}") from None
        return decode(data, staging_key)

    return job


def path_of(directory: str, staging_key: str) -> str:
    return join(directory, staging_key[:2], staging_key)


def encode(call: StagedCall) -> bytes:
    """The bytes of a file. Raises `InvalidStaging`, and `NotLossless` for text that JSON cannot carry."""
    head = {name: getattr(call, name) for name in _Head.__struct_fields__}
    arrays = (encode_ids(call.delta), *(encode_floats(getattr(call, name), name) for name in _ARRAYS[1:]))
    return b"".join((json.dumps(head, sort_keys=True), b"\n", *arrays))


def decode(data: bytes, staging_key: str) -> StagedCall:
    """The staged call in a file's bytes.

    Raises:
        StagedDamaged: they are not those of the call that `staging_key` names.
    """
    try:
        end = data.index(b"\n", 0, STAGED_HEAD_MAX_BYTES)
        head = msgspec.convert(json.loads(data[:end]), _Head)
        count, expected = head.delta_len, 3 * 8 + head.delta_len * _BYTES_PER_TOKEN
        if len(data) - end - 1 != expected:
            raise ValueError(f"{len(data) - end - 1} bytes of arrays, not {expected}")
        read = struct.unpack_from(f">Q{count}QQ{count}fQ{count}f", data, end + 1)
        if (read[0], read[count + 1], read[2 * count + 2]) != (count,) * 3:
            raise ValueError("an array is not as long as the call says")
        fields = {name: getattr(head, name) for name in _Head.__struct_fields__}
        call = StagedCall(
            **fields,
            delta=read[1 : count + 1],
            mask=read[count + 2 : 2 * count + 2],
            log_probabilities=read[2 * count + 3 :],
        )
        if staging_digest(call) != staging_key:
            raise ValueError("its digest is another one")
    except (ValueError, struct.error, msgspec.ValidationError, InvalidStaging) as error:
        raise StagedDamaged(f"staged tokens {staging_key}: {error}") from None
    return call
