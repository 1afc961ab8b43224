"""Rows and poison of one capture key: append-only lines, each durable before its answer is sent (INV-16).

A line that a crash or an error tore was never acknowledged: readers pass over it and the next append cuts it off. The
directory entry is made durable before the first byte is written, so a file that holds anything is there for good. A row
whose write failed is taken back; should that fail too, its poison hides it (INV-19). Nothing is written for an attempt
that is fenced or marked (INV-36, INV-38).

It must not know what a row means beyond its call id, nor who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from gym_ckpt.core.lineage import LedgerRow, Poison, Reason, parse_row, written_before
from gym_ckpt.errors import InvalidCheckpointState, NotLossless
from gym_ckpt.limits import LEDGER_LINE_MAX_BYTES, POISON_DETAIL_MAX_CHARS, READ_CHUNK_BYTES
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import Steps, chunks_of, there
from gym_ckpt.storage.ledger.locking import Busy, locked
from gym_ckpt.storage.ledger.names import Ending, path_of
from gym_ckpt.storage.lines import LineTooLong, split_lines
from gym_ckpt.storage.manifest import damaged
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json

T = TypeVar("T")
MEND = "retire the rollout, or delete its ledger"


class Appended(StrEnum):
    """What became of a row or of poison."""

    WRITTEN = "written"
    REPEATED = "repeated"
    """The same stood there already."""
    FENCED = "fenced"
    """Discarded: the attempt is retired on disk."""
    MARKED = "marked"
    """Discarded: the attempt is retired on this server."""
    POISONED = "poisoned"
    """Discarded: an earlier write of this call's row failed, and its answer was refused for good."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """One capture key's rows, in the order of their writing, and its poison."""

    rows: tuple[LedgerRow, ...]
    poison: tuple[Poison, ...]
    """With any, the rollout must not be trained on."""


def append_row(
    directory: str,
    episode: EpisodeId,
    row: LedgerRow,
    marked: Callable[[], bool] = lambda: False,
    keep: Job[None] | None = None,
) -> Job[Appended | Busy]:
    """Write a row once, durably. `marked`: whether the attempt is retired on this server; asked under the lock.

    `keep`: what must be durable before the row is, and must not be done for a row that is refused.

    Raises (by the job):
        RowConflict: the call has another row already.
        NotLossless: the row is no line of JSON of bounded length.
        InvalidCheckpointState: the file is damaged in a way that no crash explains.
        OSError: not written; poison the call.
    """

    def body(fs: FileSystem) -> Steps[Appended]:
        line = row.encode()
        if len(line) > LEDGER_LINE_MAX_BYTES:
            raise NotLossless(f"row of {row.model_call_id!r:.80}", f"longer than {LEDGER_LINE_MAX_BYTES} bytes")
        yield "ledger.check"
        refused = _refused(fs, directory, episode, marked)
        if refused is not None:
            return refused
        hidden = _hidden(_read_poison(fs, directory, episode))
        if row.model_call_id in hidden:
            return Appended.POISONED
        yield "ledger.read"
        scan = Scan(path_of(directory, episode, Ending.ROWS))
        rows, end = [], 0
        for each in scan.rows(fs):  # all of them: the end must be known
            rows.append(each)
            if each.model_call_id not in hidden:
                end = scan.end
        scan.end = end  # what could not be undone is cut now: it may never be durable, and would be a hole
        stands = written_before(episode.key, rows, row)
        if keep is not None:
            yield from keep(fs)
        return (yield from _append(fs, directory, scan, b"" if stands else line + b"\n"))

    return locked(directory, episode.rollout_id, body)


def append_poison(
    directory: str,
    episode: EpisodeId,
    poison: Poison,
    marked: Callable[[], bool] = lambda: False,
    *,
    afresh: bool = False,
) -> Job[Appended | Busy]:
    """Make the rollout unusable for training, durably, with the reason. The same again changes nothing.

    `afresh`: an earlier try has failed, and what it left may never be durable, whoever syncs it: write it again.

    Raises (by the job):
        OSError: not written.
    """

    def body(fs: FileSystem) -> Steps[Appended]:
        line = poison.encode()[: LEDGER_LINE_MAX_BYTES + 1]
        assert len(line) <= LEDGER_LINE_MAX_BYTES, "a reason is short"
        yield "ledger.check"
        refused = _refused(fs, directory, episode, marked)
        if refused is not None:
            return refused
        yield "ledger.read"
        scan = Scan(path_of(directory, episode, Ending.POISON))
        try:
            stands, end = False, 0
            for each in scan.poison(fs):
                stands = stands or each == poison
                if each != poison:
                    end = scan.end
        except InvalidCheckpointState:
            return Appended.REPEATED  # a damaged file says as much: see `readable_lineage_of`
        if afresh:
            stands, scan.end = False, end  # in the same place: a hole would take the line behind it along
        return (yield from _append(fs, directory, scan, b"" if stands else line + b"\n"))

    return locked(directory, episode.rollout_id, body)


def read_lineage(directory: str, episode: EpisodeId) -> Job[Lineage]:
    """What stands under a capture key; empty when nothing does. Takes no lock: a torn end is passed over.

    Raises (by the job):
        InvalidCheckpointState: a file is damaged in a way that no crash explains.
    """

    def job(fs: FileSystem) -> Steps[Lineage]:
        yield "ledger.read"
        return lineage_of(fs, directory, episode)

    return job


def lineage_of(fs: FileSystem, directory: str, episode: EpisodeId) -> Lineage:
    """As `read_lineage`, inside a job."""
    poison = _read_poison(fs, directory, episode)
    hidden = _hidden(poison)
    rows = Scan(path_of(directory, episode, Ending.ROWS)).rows(fs)
    return Lineage(tuple(row for row in rows if row.model_call_id not in hidden), poison)


def readable_lineage_of(fs: FileSystem, directory: str, episode: EpisodeId) -> Lineage:
    """As `lineage_of`; of a damaged one nothing but poison that says so, since it is its rollout's trouble (INV-19)."""
    try:
        return lineage_of(fs, directory, episode)
    except InvalidCheckpointState as error:
        return Lineage((), (Poison("", Reason.DAMAGED, error.detail[:POISON_DETAIL_MAX_CHARS]),))


def _refused(fs: FileSystem, directory: str, episode: EpisodeId, marked: Callable[[], bool]) -> Appended | None:
    if marked():
        return Appended.MARKED
    return Appended.FENCED if there(fs, path_of(directory, episode, Ending.FENCE)) else None


def _read_poison(fs: FileSystem, directory: str, episode: EpisodeId) -> tuple[Poison, ...]:
    return tuple(Scan(path_of(directory, episode, Ending.POISON)).poison(fs))


def _hidden(poison: tuple[Poison, ...]) -> set[str]:
    """Calls whose row may stand although its write failed."""
    return {entry.model_call_id for entry in poison if entry.reason == Reason.ROW_WRITE_FAILED}


def _append(fs: FileSystem, directory: str, scan: Scan, data: bytes) -> Steps[Appended]:
    """Cut what is torn, write, sync; no data means that it stands and must only be durable."""
    yield "ledger.open"
    file = fs.append(scan.path)
    try:
        if not scan.size:
            yield "ledger.sync_dir"
            fs.fsync_dir(directory)
        try:
            if scan.end < scan.size:
                yield "ledger.cut"
                file.truncate(scan.end)
            if data:
                yield "ledger.write"
                file.write(data)
            yield "ledger.fsync"
            file.fsync()
        except OSError:
            try:
                file.truncate(scan.end)
                file.fsync()
            except OSError:
                pass  # the poison that the caller writes hides it
            raise
    finally:
        file.close()
    return Appended.WRITTEN if data else Appended.REPEATED


class Scan:
    """One reading of a file of lines, which finds where its sound part ends. A missing file is empty."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.end = 0

    def rows(self, fs: FileSystem) -> Iterator[LedgerRow]:
        """Raises: InvalidCheckpointState."""
        return self._typed(fs, parse_row)

    def poison(self, fs: FileSystem) -> Iterator[Poison]:
        """Raises: InvalidCheckpointState."""
        return self._typed(fs, lambda value: msgspec.convert(value, Poison))

    def _typed(self, fs: FileSystem, parse: Callable[[Any], T]) -> Iterator[T]:
        for number, value in self.values(fs):
            try:
                yield parse(value)
            except msgspec.ValidationError as error:
                raise damaged(self.path, f"line {number}: {error}", MEND) from None

    def values(self, fs: FileSystem) -> Iterator[tuple[int, Any]]:
        """Number and plain data of each whole line. Raises: InvalidCheckpointState."""
        try:
            chunks = chunks_of(fs, self.path, READ_CHUNK_BYTES)
        except FileNotFoundError:
            return
        number = 0
        torn = False
        try:
            for line, whole in split_lines(chunks, LEDGER_LINE_MAX_BYTES):
                number += 1
                self.size += len(line) + whole
                # Blocks that never reached the disk read as zeros. Where a line behind them can be read, it was
                # acknowledged, and so was all before it: no crash did that.
                torn = torn or not whole or b"\0" in line
                try:
                    value = json.loads(line)
                except ValueError as error:
                    if torn:
                        continue
                    raise damaged(self.path, f"line {number} is damaged ({error})", MEND) from None
                if torn and whole:
                    raise damaged(self.path, f"a line before line {number} is damaged", MEND)
                if torn:
                    continue
                self.end = self.size
                yield number, value
        except LineTooLong as error:
            raise damaged(self.path, f"line {number + 1}: {error}", MEND) from None
