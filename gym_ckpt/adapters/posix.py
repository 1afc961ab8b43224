"""`FileSystem` on real files, and `Disk` in worker threads.

Keeps the promises of `ports.FileSystem` about durability: `fsync` reaches the platter where the system offers that
(F_FULLFSYNC), and an entry is durable after `fsync_dir`. Errors pass through as the `OSError` that they are; a question
such as `exists` is answered "no" only when the system said so, not when it could not tell.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, cast

import anyio.to_thread

from gym_ckpt.limits import DISK_THREADS, SWEPT_TRIES, WAITING_SAID_AFTER_S
from gym_ckpt.ports import File, FileSystem, Job, Lock

T = TypeVar("T")
_FULL_SYNC: Final = cast("int | None", getattr(fcntl, "F_FULLFSYNC", None))


def _sync(fd: int) -> None:
    if _FULL_SYNC is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, _FULL_SYNC)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """The system names a file in its errors only where it was given a name, not a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise


class _File:
    """`ports.File`."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        with _named(self._path):
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def fsync(self) -> None:
        with _named(self._path):
            _sync(self._fd)

    def truncate(self, size: int) -> None:
        with _named(self._path):
            os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close_quietly(fd)


class _FileLock:
    """`ports.Lock`: flock, which the kernel drops with the process."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close_quietly(fd)

    def stands(self) -> bool:
        with _named(self._path):
            return self._fd >= 0 and _is_named(self._path, self._fd)


class _Chunks(Iterator[bytes]):
    """The contents of an open file. Closes it at the end, at an error, or when dropped."""

    def __init__(self, fd: int, path: str, chunk_bytes: int) -> None:
        self._fd = fd
        self._path = path
        self._chunk_bytes = chunk_bytes

    def __next__(self) -> bytes:
        if self._fd < 0:
            raise StopIteration
        try:
            with _named(self._path):
                chunk = os.read(self._fd, self._chunk_bytes)
        except OSError:
            self._close()
            raise
        if not chunk:
            self._close()
            raise StopIteration
        return chunk

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close_quietly(fd)

    def __del__(self) -> None:
        self._close()


class PosixFileSystem:
    """`ports.FileSystem`."""

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def create(self, path: str) -> File:
        return _File(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path)

    def append(self, path: str) -> File:
        return _File(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read_chunks(self, path: str, chunk_bytes: int) -> Iterator[bytes]:
        return _Chunks(os.open(path, os.O_RDONLY), path, chunk_bytes)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def is_dir(self, path: str) -> bool:
        mode = _mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def exists(self, path: str) -> bool:
        return _mode(path) is not None

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with _named(path):
                _sync(fd)
        finally:
            os.close(fd)

    def try_lock(self, path: str, note: str) -> Lock | None:
        for _ in range(SWEPT_TRIES):
            lock = self._lock_opened(path, note)
            if lock is not _SWEPT:
                return lock
        return None

    def _lock_opened(self, path: str, note: str) -> _FileLock | None:
        """The lock of the file that the path names; `_SWEPT` when it named another by the time that it was locked."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with _named(path):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_named(path, fd):  # whoever comes next would lock the file that is there: two owners
                    os.close(fd)
                    return _SWEPT
                os.ftruncate(fd, 0)
                os.pwrite(fd, note.encode(), 0)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return _FileLock(fd, path)


_SWEPT: Final = _FileLock(-1, "")


class _Running:
    """A job that has been asked for: since when, and the step that it is at."""

    __slots__ = ("since", "step")

    def __init__(self) -> None:
        self.since = anyio.current_time()
        self.step = "to begin"


class ThreadDisk:
    """`ports.Disk`: each job whole in a worker thread, at most DISK_THREADS at once, in the order of their coming."""

    def __init__(self, files: FileSystem | None = None) -> None:
        self._files = files or PosixFileSystem()
        self._slots = anyio.CapacityLimiter(DISK_THREADS)
        self._running: dict[_Running, None] = {}

    async def run(self, job: Job[T]) -> T:
        at = _Running()
        self._running[at] = None
        try:
            # Not abandoned when cancelled: a job that went on alone could write after its owner had moved on.
            return await anyio.to_thread.run_sync(
                _exhaust, job, self._files, at, limiter=self._slots, abandon_on_cancel=False
            )
        finally:
            del self._running[at]

    def waits(self) -> str:
        """For people: the disk, when a job has waited for it for a while, and at which step; or nothing."""
        for oldest in self._running:
            waited_s = anyio.current_time() - oldest.since
            return f"the disk ({oldest.step}, {waited_s:.0f} s)" if waited_s >= WAITING_SAID_AFTER_S else ""
        return ""


def _exhaust(job: Job[T], files: FileSystem, at: _Running) -> T:
    steps = job(files)
    while True:
        try:
            at.step = next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_named(path: str, fd: int) -> bool:
    """Whether the path names the open file, and not one that came after it, or none."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _close_quietly(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass
