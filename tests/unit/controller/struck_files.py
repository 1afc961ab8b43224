"""A real file system whose calls fail when a test says so, and a bench whose collector has it."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.ports import Disk, File, Lock
from tests.unit.controller.bench import PATIENCE_S, Bench
from tests.unit.controller.fake_gym import thread_disk


class Strikes:
    """Fails the n-th call from `arm` on whose path has `part` in it, before or after its effect; or every write to one
    file. `pairs`: how often which call has met which error."""

    def __init__(self) -> None:
        self.left = 0
        self.after = False
        self.struck = False
        self.code = errno.EIO
        self.part = ""
        self.full: str | None = None
        self.hanging: str | None = None
        """Writes to this one do not return until `answers` is set."""
        self.answers = threading.Event()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def arm(self, nth: int, *, after: bool, code: int = errno.EIO, part: str = "") -> None:
        self.left, self.after, self.struck, self.code, self.part = nth, after, False, code, part

    def call(self, path: str, what: Any, *arguments: Any, writes: bool = False) -> Any:
        if writes and self.hanging is not None and path.endswith(self.hanging):
            assert self.answers.wait(PATIENCE_S), "the test is over"
        if writes and self.full is not None and path.endswith(self.full):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if self.left and self.part in path:
            self.left -= 1
            if not self.left:
                self.struck = True
                self.pairs[what.__name__, errno.errorcode[self.code]] += 1
                if self.after:
                    made = what(*arguments)
                    if hasattr(made, "release"):
                        made.release()  # a lock that nobody has is none
                raise OSError(self.code, os.strerror(self.code), path)
        return what(*arguments)


class StruckFile:
    def __init__(self, file: File, path: str, strikes: Strikes) -> None:
        self._file, self._path, self._strikes = file, path, strikes

    def write(self, data: bytes) -> None:
        self._strikes.call(self._path, self._file.write, data, writes=True)

    def fsync(self) -> None:
        self._strikes.call(self._path, self._file.fsync)

    def truncate(self, size: int) -> None:
        self._strikes.call(self._path, self._file.truncate, size)

    def close(self) -> None:
        self._file.close()


class StruckFiles(PosixFileSystem):
    def __init__(self, strikes: Strikes) -> None:
        self.strikes = strikes

    def mkdir(self, path: str) -> None:
        self.strikes.call(path, super().mkdir, path)

    def create(self, path: str) -> File:
        return StruckFile(self.strikes.call(path, super().create, path), path, self.strikes)

    def append(self, path: str) -> File:
        return StruckFile(self.strikes.call(path, super().append, path), path, self.strikes)

    def size(self, path: str) -> int:
        size: int = self.strikes.call(path, super().size, path)
        return size

    def read_chunks(self, path: str, chunk_bytes: int) -> Iterator[bytes]:
        chunks: Iterator[bytes] = self.strikes.call(path, super().read_chunks, path, chunk_bytes)
        return chunks

    def rename(self, source: str, target: str) -> None:
        self.strikes.call(target, super().rename, source, target)

    def link(self, source: str, target: str) -> None:
        self.strikes.call(target, super().link, source, target)

    def unlink(self, path: str) -> None:
        self.strikes.call(path, super().unlink, path)

    def rmdir(self, path: str) -> None:
        self.strikes.call(path, super().rmdir, path)

    def listdir(self, path: str) -> list[str]:
        names: list[str] = self.strikes.call(path, super().listdir, path)
        return names

    def is_dir(self, path: str) -> bool:
        return self._answered(super().is_dir, path)

    def exists(self, path: str) -> bool:
        return self._answered(super().exists, path)

    def _answered(self, asked: Callable[[str], bool], path: str) -> bool:
        try:
            answer: bool = self.strikes.call(path, asked, path)
        except FileNotFoundError:  # the question's own way to hear it
            return False
        return answer

    def fsync_dir(self, path: str) -> None:
        self.strikes.call(path, super().fsync_dir, path)

    def try_lock(self, path: str, note: str) -> Lock | None:
        lock: Lock | None = self.strikes.call(path, super().try_lock, path, note)
        return lock


class StruckBench(Bench):
    """A bench whose collector has a disk that fails when told to; the gym's own disk is sound."""

    strikes: Strikes

    def disk(self) -> Disk:
        return thread_disk(StruckFiles(self.strikes))


def struck_bench(folder: Path) -> StruckBench:
    made = StruckBench(folder)
    made.strikes = Strikes()
    return made
