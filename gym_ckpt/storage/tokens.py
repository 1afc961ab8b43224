"""A token store in a directory: one immutable file per staged call, named by the call's digest.

    <directory>/<first two digits>/<digest>

The staging key is the digest of the staged call, so a key tells its content: the same call staged twice is one file,
damage shows, and no key names a path. A file is one line of JSON with the call's fields, then the three arrays in the
encodings that the digest is made of. Written under a name of its own, synced, renamed, directory synced; a reader
believes nothing before the digest is right. Rollouts' arrays are never in a checkpoint (INV-52).

It must not know ledgers or checkpoints.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import STAGED_HEAD_MAX_BYTES, STAGED_MAX_BYTES
from gym_ckpt.ports import Disk, Entropy, FileSystem, Job
from gym_ckpt.storage.files import Steps, TooLong, discard, make_dirs, read_bounded, write_new
from gym_ckpt.storage.layout import join, parent_of, temporary
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import InvalidStaging, StagedCall, encode_floats, encode_ids, staging_digest

_KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ARRAYS: Final = ("delta", "mask", "log_probabilities")
_BYTES_PER_TOKEN: Final = 8 + 4 + 4


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
    """`ports.TokenStore` on a directory that every server and the trainer can reach."""

    def __init__(self, disk: Disk, entropy: Entropy, directory: str) -> None:
        self._disk = disk
        self._entropy = entropy
        self._directory = directory

    async def open(self) -> None:
        """Make the directories; before anything else."""
        await self._disk.run(open_store(self._directory))

    async def put(self, call: StagedCall) -> str:
        return await self._disk.run(put(self._directory, call, self._entropy.token()))

    async def get(self, staging_key: str) -> StagedCall:
        return await self._disk.run(get(self._directory, staging_key))

    async def discard(self, staging_keys: Sequence[str]) -> None:
        await self._disk.run(remove(self._directory, staging_keys))


def open_store(directory: str) -> Job[None]:
    """Make the directories, durably, so that staging a call syncs its own file and directory and no other.

    Raises (by the job):
        OSError: as the file system says.
    """

    def job(fs: FileSystem) -> Steps[None]:
        yield from make_dirs(fs, directory, directory)
        yield "tokens.make_dirs"
        there = set(fs.listdir(directory))
        for number in range(256):
            if f"{number:02x}" not in there:
                try:
                    fs.mkdir(join(directory, f"{number:02x}"))
                except FileExistsError:
                    pass  # another process opens the same store
        yield "tokens.sync_dirs"
        fs.fsync_dir(directory)

    return job


def put(directory: str, call: StagedCall, attempt_token: str) -> Job[str]:
    """Keep a staged call. Raises as `ports.TokenStore.put`, by the job."""

    def job(fs: FileSystem) -> Steps[str]:
        key = staging_digest(call)
        path = path_of(directory, key)
        yield "tokens.look"
        if not _sound(fs, path, key):
            temp = temporary(path, attempt_token)
            yield from write_new(fs, temp, encode(call))
            try:
                yield "tokens.rename"
                fs.rename(temp, path)
            except OSError:
                discard(fs, temp)
                raise
        # Also when it stood already: who put it there may not have come as far as this.
        yield "tokens.sync_dir"
        fs.fsync_dir(parent_of(path))
        return key

    return job


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


def remove(directory: str, staging_keys: Iterable[str]) -> Job[None]:
    """Remove staged calls. Raises as `ports.TokenStore.discard`, by the job."""
    wanted = sorted({key for key in staging_keys if _KEY.fullmatch(key)})

    def job(fs: FileSystem) -> Steps[None]:
        touched = set()
        for key in wanted:
            path = path_of(directory, key)
            yield "tokens.remove"
            try:
                fs.unlink(path)
                touched.add(parent_of(path))
            except FileNotFoundError:
                pass
        for parent in sorted(touched):
            yield "tokens.sync_dir"
            fs.fsync_dir(parent)

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


def _sound(fs: FileSystem, path: str, key: str) -> bool:
    try:
        decode(read_bounded(fs, path, STAGED_MAX_BYTES), key)
    except (FileNotFoundError, TooLong, StagedDamaged):
        return False
    return True
