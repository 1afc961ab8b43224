"""The output file and the failure file: rows appended as they finish, by one writer.

Rows that wait at one moment are written together, with one fsync when the run keeps checkpoints: a checkpoint leaves
finished rows out, so they must be durable before it is published. A row that cannot be written (a full disk) stays in
memory and is tried again. It must not know what a checkpoint is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio

from gym_ckpt.controller.interrupts import Wake
from gym_ckpt.errors import GymCkptError, NotLossless
from gym_ckpt.limits import (
    COLLECT_RETRY_FIRST_S,
    COLLECT_RETRY_MAX_S,
    LOG_LINE_MAX_BYTES,
    REASON_MAX_CHARS,
    ROWS_RETRY_BUDGET_S,
    ROWS_WAIT_SAID_EVERY_S,
)
from gym_ckpt.ports import Ports
from gym_ckpt.storage.appendlog import AppendLog
from gym_ckpt.storage.files import reason
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.words import counted


def failures_path(output: str) -> str:
    """`<output>_failures.jsonl`, without the output's own `.jsonl`."""
    return f"{output.removesuffix('.jsonl')}_failures.jsonl"


class RowFiles:
    """Both files of one run. `durable`: every write is synced."""

    def __init__(self, ports: Ports, output: AppendLog, failures: AppendLog, *, durable: bool) -> None:
        self._ports = ports
        self._output = output
        self._failures = failures
        self._durable = durable
        self._rows: list[tuple[EpisodeId, bytes]] = []
        self._failed: list[tuple[EpisodeId, bytes]] = []
        self._wake = Wake()
        self._queued = 0
        self._written = 0
        self._attempted = anyio.Event()
        self._error: OSError | GymCkptError | None = None

    @staticmethod
    def encode(episode: EpisodeId, result: dict[str, Any]) -> bytes:
        """An output row. Raises `NotLossless`, also for one that no restart could read again."""
        own = {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
        line = json.dumps({**own, **{key: value for key, value in result.items() if key not in own}})
        if len(line) > LOG_LINE_MAX_BYTES:
            raise NotLossless("$", f"its row has {len(line):,} bytes, and {LOG_LINE_MAX_BYTES:,} are allowed")
        return line

    def finished(self, episode: EpisodeId, line: bytes) -> None:
        """Queue an output row made by `encode`."""
        self._rows.append((episode, line))
        self._queued += 1
        self._wake.set()

    def failed(self, episode: EpisodeId, why: str, *, final: bool) -> None:
        """Queue a failure row; `final`: the rollout is given up."""
        # A reason is text from elsewhere: what JSON cannot carry of it is shown, not refused.
        text = why[:REASON_MAX_CHARS].encode(errors="backslashreplace").decode()
        row = {"rollout_id": episode.rollout_id, "attempt": episode.attempt, "reason": text, "final": final}
        self._failed.append((episode, json.dumps(row)))
        self._queued += 1
        self._wake.set()
        self._ports.tracer.emit("collector.failure", episode=episode.key, reason=text, final=final)

    @property
    def written(self) -> bool:
        """Whether everything queued is in the files."""
        return self._written == self._queued

    @property
    def unwritten(self) -> int:
        """How many finished rows are not in the output yet."""
        return len(self._rows)

    async def sync(self) -> None:
        """Until everything queued before now is written, and durable where the run is.

        Raises:
            OSError: writing failed meanwhile; it is tried again all the same.
            GymCkptError: nothing more can be written.
        """
        wanted = self._queued
        while self._written < wanted:
            if not isinstance(self._error, GymCkptError):
                await self._attempted.wait()
            if self._written < wanted and self._error is not None:
                raise self._error

    async def run(self, give_up: Callable[[str], None], say: Callable[[str], None]) -> None:
        """Write until cancelled. `give_up` is called when rows could not be written for `ROWS_RETRY_BUDGET_S`."""
        delay_s = COLLECT_RETRY_FIRST_S
        failing_since: float | None = None
        say_at = 0.0
        while True:
            if not self._rows and not self._failed:
                await self._wake.wait()
                continue
            try:
                await self._write()
            except OSError as error:
                now = anyio.current_time()
                self._tell(error)
                failing_since = now if failing_since is None else failing_since
                if now >= say_at:
                    say_at = now + ROWS_WAIT_SAID_EVERY_S
                    left_min = math.ceil((failing_since + ROWS_RETRY_BUDGET_S - now) / 60)
                    path = self._output.path
                    say(
                        f"finished rows wait in memory ({self.unwritten} of them): {path} cannot be written "
                        f"({reason(error)}); make room within {counted(max(1, left_min), 'minute')}"
                    )
                if now - failing_since >= ROWS_RETRY_BUDGET_S:
                    give_up(f"finished rows could not be written to {self._output.path} ({reason(error)})")
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, COLLECT_RETRY_MAX_S)
            except GymCkptError as error:
                self._tell(error)
                give_up(str(error))
                return
            else:
                failing_since, say_at, delay_s = None, 0.0, COLLECT_RETRY_FIRST_S
                self._tell(None)

    async def close(self) -> None:
        """Make durable what was written, and close. Raises `OSError`."""
        if not self._durable:
            await self._ports.disk.run(self._output.append([], sync=True))
            await self._ports.disk.run(self._failures.append([], sync=True))
        self._output.close()
        self._failures.close()

    async def _write(self) -> None:
        rows, failed = list(self._rows), list(self._failed)
        if rows:
            await self._ports.probe("collector.before_output")
            with anyio.CancelScope(shield=True):  # short; a row is written and booked, or neither
                await self._ports.disk.run(self._output.append([line for _, line in rows], sync=self._durable))
                del self._rows[: len(rows)]
                self._written += len(rows)
                for episode, _ in rows:
                    self._ports.tracer.emit("collector.row", episode=episode.key)
            await self._ports.probe("collector.output_written")
        if failed:
            with anyio.CancelScope(shield=True):
                await self._ports.disk.run(self._failures.append([line for _, line in failed], sync=self._durable))
                del self._failed[: len(failed)]
                self._written += len(failed)

    def _tell(self, error: OSError | GymCkptError | None) -> None:
        """A write ended: whoever waits in `sync` looks."""
        self._error = error
        attempted, self._attempted = self._attempted, anyio.Event()
        attempted.set()
