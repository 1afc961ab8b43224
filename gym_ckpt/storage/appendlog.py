"""An append-only file of JSON objects, one a line: output, failures, dispatch log.

A crash can leave the end of it torn. Opening repairs that before anything is appended: a whole object without its
newline gets one, a torn end is cut off. Zero bytes (blocks that never reached the disk) are a torn end too, whatever
follows them; every such line was appended after the last sync. Damage of another sort is not a crash's, and is refused
rather than cut. A failed append leaves the log as it was, for the next append of this process.

One process writes a log (INV-95), one job at a time. It must not know what rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.limits import LOG_LINE_MAX_BYTES, LOG_UNSYNCED_MAX_BYTES, READ_CHUNK_BYTES
from gym_ckpt.ports import File, FileSystem, Job
from gym_ckpt.storage.files import Steps, chunks_of, discard, make_dirs, there, write_new
from gym_ckpt.storage.layout import parent_of, temporary
from gym_ckpt.storage.lines import LineTooLong, split_lines
from gym_ckpt.storage.manifest import damaged
from gym_ckpt.wire import json
from gym_ckpt.words import counted

T = TypeVar("T")
Pick = Callable[[dict[str, Any]], T | None]
"""What is wanted of a row; None drops it. Rows can be large: keep little."""
MEND = "restore the file from a copy, or remove that line"


@dataclass(frozen=True, slots=True)
class Opened(Generic[T]):
    """A log ready for appending, what was picked of its rows, and what was repaired (a line for a person, or None)."""

    log: AppendLog
    picked: tuple[T, ...]
    repair: str | None


def open_log(path: str, pick: Pick[T]) -> Job[Opened[T]]:
    """Create or repair the log at `path`, read it, and make all of it durable.

    Raises (by the job):
        InvalidCheckpointState: a line is damaged in a way that no crash explains; nothing was changed.
        OSError: as the file system says.
    """

    def job(fs: FileSystem) -> Generator[str, None, Opened[T]]:
        yield from make_dirs(fs, parent_of(path), path)
        yield "log.read"
        scan = _Scan(path)
        picked = tuple(scan.rows(fs, pick)) if there(fs, path) else ()
        yield "log.open"
        file = fs.append(path)
        try:
            if scan.torn_bytes:
                yield "log.cut"
                file.truncate(scan.end)
            if scan.newline_missing:
                yield "log.newline"
                file.write(b"\n")
            yield "log.fsync"
            file.fsync()
        finally:
            file.close()
        yield "log.sync_dir"
        fs.fsync_dir(parent_of(path))
        log = AppendLog(path, scan.end + scan.newline_missing)
        return Opened(log, picked, scan.repair())

    return job


def read_lines(path: str, pick: Pick[T]) -> Job[tuple[T, ...]]:
    """What `pick` wants of each whole row, changing nothing; a torn end is left out, a missing file is empty.

    Raises (by the job):
        InvalidCheckpointState: a line is damaged in a way that no crash explains.
    """

    def job(fs: FileSystem) -> Generator[str, None, tuple[T, ...]]:
        yield "log.read"
        return tuple(_Scan(path).rows(fs, pick)) if there(fs, path) else ()

    return job


def rewritten(log: AppendLog, rows: Sequence[bytes], attempt_token: str) -> Job[AppendLog]:
    """Put a file with only `rows` in the place of an open, durable log that this process has not appended to.

    Returns the log that is in force: the old one when the new could not be written.

    Raises (by the job):
        OSError: which of the two a crash would leave is not certain; append to neither.
    """

    def job(fs: FileSystem) -> Generator[str, None, AppendLog]:
        temp = temporary(log.path, attempt_token)
        try:
            yield from write_new(fs, temp, b"".join([row + b"\n" for row in rows]))
        except OSError:
            return log
        log.close()
        try:
            yield "log.replace"
            fs.rename(temp, log.path)
        except OSError:
            discard(fs, temp)
        # Also after an error: it may have come after the effect. Whichever file has the name now keeps it.
        yield "log.sync_dir"
        fs.fsync_dir(parent_of(log.path))
        return AppendLog(log.path, fs.size(log.path))

    return job


class AppendLog:
    """The writing end of an open log. Its state is what the file holds for certain."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self._durable = size
        self._tail = bytearray()
        """Rows after `_durable` that no sync has covered: a failed sync may have lost them, so they are kept."""
        self._file: File | None = None
        self._sound = True
        """Whether the file is exactly durable bytes plus tail."""

    def append(self, rows: Sequence[bytes], *, sync: bool) -> Job[None]:
        """Append `rows` (each one JSON object without newline), and with `sync` make everything so far durable.

        Raises (by the job):
            OSError: none of `rows` counts as appended; after a crash some may be there all the same.
        """
        data = b"".join([row + b"\n" for row in rows])
        assert data.count(b"\n") == len(rows), "a row is one line"

        def job(fs: FileSystem) -> Generator[str, None, None]:
            sound, self._sound = self._sound, False
            if not sound:
                yield from self._cut(fs)
            if self._file is None:
                yield "log.open"
                self._file = fs.append(self.path)
            yield "log.write"
            self._file.write(data if sound else bytes(self._tail) + data)
            if sync or len(self._tail) + len(data) > LOG_UNSYNCED_MAX_BYTES:
                yield "log.fsync"
                self._file.fsync()
                self._durable += len(self._tail) + len(data)
                self._tail.clear()
            else:
                self._tail += data
            self._sound = True

        return job

    def _cut(self, fs: FileSystem) -> Steps[None]:
        """After a failure: back to what is durable, on a fresh handle."""
        self.close()
        yield "log.open"
        self._file = fs.append(self.path)
        if fs.size(self.path) < self._durable:
            raise damaged(self.path, "lost rows while it was open", "stop whatever else writes to it, then restart")
        yield "log.cut"
        self._file.truncate(self._durable)

    def close(self) -> None:
        """Close the file; what was not synced is not now either."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _Scan:
    """One reading of a log, which finds where its sound part ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = 0
        self.end = 0
        self.newline_missing = False

    @property
    def torn_bytes(self) -> int:
        return self._size - self.end

    def repair(self) -> str | None:
        if self.torn_bytes:
            return f"{self._path}: cut off {counted(self.torn_bytes, 'byte')} that a crash had left torn"
        return f"{self._path}: completed its last line" if self.newline_missing else None

    def rows(self, fs: FileSystem, pick: Pick[T]) -> Iterator[T]:
        torn = False
        number = 0
        try:
            for line, whole in split_lines(chunks_of(fs, self._path, READ_CHUNK_BYTES), LOG_LINE_MAX_BYTES):
                number += 1
                self._size += len(line) + whole
                # Rows after a hole were never synced either: keeping them would make a log with rows missing inside.
                torn = torn or b"\0" in line
                if torn:
                    continue
                try:
                    row = self._row(line, number)
                except InvalidCheckpointState:
                    if whole:
                        raise
                    continue  # cut short by a crash
                self.end = self._size
                self.newline_missing = not whole
                wanted = pick(row)
                if wanted is not None:
                    yield wanted
        except LineTooLong as error:
            raise damaged(self._path, f"line {number + 1}: {error}", MEND) from None

    def _row(self, line: bytes, number: int) -> dict[str, Any]:
        """An object: the one kind of JSON no proper beginning of which is JSON too, so that torn shows."""
        try:
            row = json.loads(line)
        except ValueError as error:
            raise damaged(self._path, f"line {number} is damaged ({error})", MEND) from None
        if not isinstance(row, dict):
            raise damaged(self._path, f"line {number} is not a JSON object", MEND)
        return row
