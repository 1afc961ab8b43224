"""Small durable steps that storage is made of: make directories, replace a file, create one once, read a bounded one.

Each is a generator to be used with `yield from` inside a job; it yields the name of a step before each step that a
crash could separate. After an error or a crash at any of them, what was there before is still there whole (INV-48), and
a leftover has the name of its attempt and is in nobody's way.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator
from typing import Final, TypeVar, cast

from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.layout import parent_of, temporary

T = TypeVar("T")
Steps = Generator[str, None, T]
"""A part of a job, to be used with `yield from`."""

MISTAKES: Final = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EINVAL,
})  # fmt: skip
"""What the system says of a path that is the wrong one, or nobody's to use."""
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""How file systems say that they have no hard links."""


class TooLong(OSError):
    """A file is longer than anything that we would have written there."""


def finish(fs: FileSystem, job: Job[T]) -> T:
    """Run a job to its end, here and now: for who reads files and serves nobody. Raises what it raises."""
    steps = job(fs)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def make_dirs(fs: FileSystem, path: str, root: str) -> Steps[None]:
    """Create `path` with its parents; make its name and each parent's durable, up to and including `root`'s.

    Every directory is synced, not only those with a new entry: who made an entry earlier may have failed to sync it.
    Above `root`, only directories made here are.
    """
    missing = []
    at = path
    while at != "/" and not fs.is_dir(at):
        missing.append(at)
        at = parent_of(at)
    for new in reversed(missing):
        yield "files.mkdir"
        try:
            fs.mkdir(new)
        except FileExistsError:
            if not fs.is_dir(new):
                raise
    stop = parent_of(root)
    at = path
    while at != "/":
        at = parent_of(at)
        below = at == stop or at.startswith(stop.rstrip("/") + "/")
        if not below and not any(parent_of(new) == at for new in missing):
            return
        yield "files.sync_parent"
        fs.fsync_dir(at)


def write_new(fs: FileSystem, path: str, data: bytes) -> Steps[None]:
    """A new file with `data`, its contents durable and its name not yet; removed again if that fails."""
    yield "files.create"
    file = fs.create(path)
    try:
        yield "files.write"
        file.write(data)
        yield "files.fsync"
        file.fsync()
    except OSError:
        discard(fs, path)
        raise
    finally:
        file.close()


def replace(fs: FileSystem, path: str, data: bytes, attempt_token: str) -> Steps[None]:
    """Make `path` hold `data`, durably and atomically: a reader and a crash see the old file or the new one."""
    temp = temporary(path, attempt_token)
    yield from write_new(fs, temp, data)
    try:
        yield "files.rename"
        fs.rename(temp, path)
    except OSError:
        discard(fs, temp)
        raise
    yield "files.sync_dir"
    fs.fsync_dir(parent_of(path))


def read_bounded(fs: FileSystem, path: str, limit: int) -> bytes:
    """The whole of a small file; that it is missing is asked for twice, like `there`.

    Raises:
        TooLong: over `limit` bytes.
        OSError: as the file system says.
    """
    try:
        return _whole(fs, path, limit)
    except FileNotFoundError:
        return _whole(fs, path, limit)


def _whole(fs: FileSystem, path: str, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for chunk in fs.read_chunks(path, min(limit + 1, 1024 * 1024)):
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise TooLong(errno.EFBIG, f"longer than {limit} bytes", path)
    return b"".join(parts)


def there(fs: FileSystem, path: str) -> bool:
    """Whether there is anything of this name. A network file system may say ENOENT once of what is there, and what is
    believed gone is forgotten, overwritten or pruned: so a no is asked for twice."""
    return fs.exists(path) or fs.exists(path)


def dir_there(fs: FileSystem, path: str) -> bool:
    """Whether there is a directory of this name; a no is asked for twice, like `there`."""
    return fs.is_dir(path) or fs.is_dir(path)


def size_of(fs: FileSystem, path: str) -> int:
    """Bytes of a file; that it is missing is asked for twice, like `there`."""
    try:
        return fs.size(path)
    except FileNotFoundError:
        return fs.size(path)


def names_in(fs: FileSystem, path: str) -> list[str]:
    """Names in a directory; that it is missing is asked for twice, like `there`. Raises `OSError`."""
    try:
        return fs.listdir(path)
    except FileNotFoundError:
        return fs.listdir(path)


def listed(fs: FileSystem, path: str) -> list[str]:
    """As `names_in`; none where there is no directory."""
    try:
        return names_in(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def chunks_of(fs: FileSystem, path: str, chunk_bytes: int) -> Iterator[bytes]:
    """Contents of a file; that it is missing is asked for twice, like `there`."""
    try:
        return fs.read_chunks(path, chunk_bytes)
    except FileNotFoundError:
        return fs.read_chunks(path, chunk_bytes)


def discard(fs: FileSystem, path: str) -> None:
    """Remove a leftover of a failed attempt if that can be done; it is harmless if not, and pruning finds it."""
    try:
        fs.unlink(path)
    except OSError:
        pass


def is_unread(cause: BaseException | None) -> bool:
    """Whether something is unusable because it could not be read: that says nothing about its bytes, and may pass."""
    return isinstance(cause, OSError) and not isinstance(cause, TooLong)


def may_pass(error: OSError) -> bool:
    """Whether the same may work later without anybody mending a path or a permission: a full disk, a server that is
    away."""
    return error.errno not in MISTAKES


def reason(error: OSError) -> str:
    """An `OSError` as a few words for a person."""
    return error.strerror or str(error) or type(error).__name__
