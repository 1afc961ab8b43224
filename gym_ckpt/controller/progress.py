"""What a person sees of a run: finished, in flight, restored, failed, rate and the time left; and notable lines.

Three looks: plain lines for logs and pipes, a bar on a terminal, events for programs. None decides anything, and none
may fail a run.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from gym_ckpt.core.collection import Counts
from gym_ckpt.limits import PROGRESS_EVERY_S
from gym_ckpt.ports import Tracer

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar


class Progress(Protocol):
    """Where a run reports to. Called on the event loop: cheap, never raises."""

    def start(self, counts: Counts) -> None:
        """Rows stand like this before the first is dispatched; restored and finished ones are of earlier runs."""
        ...

    def update(self, counts: Counts, rested_by: float = 0.0) -> None:
        """Something changed. `rested_by`: when the last of the rows that rest may be sent, on the run's clock."""
        ...

    def message(self, text: str, event: str = "") -> None:
        """A line worth reading. `event`: the trace event that says the same to programs."""
        ...

    def stop(self) -> None:
        """The run is over, however it ended. Called once after `start`."""
        ...


class Pace:
    """Rows per second and seconds left, from what was finished since the start of this run."""

    def __init__(self, counts: Counts) -> None:
        self._began = anyio.current_time()
        self._finished_before = counts.finished + counts.failed
        self.restored = counts.restored

    def rate(self, counts: Counts) -> float:
        """Rows ended per second; 0 before the first."""
        elapsed = anyio.current_time() - self._began
        return (counts.finished + counts.failed - self._finished_before) / elapsed if elapsed > 0 else 0.0

    def left_s(self, counts: Counts, rested_by: float) -> float | None:
        """Seconds until all rows have ended at this rate, of which those that rest begin only then; None while there is
        no rate."""
        rate = self.rate(counts)
        if rate <= 0:
            return None
        rests_s = max(0.0, rested_by - anyio.current_time()) if counts.resting else 0.0
        return max((counts.rows - counts.finished - counts.failed) / rate, rests_s + counts.resting / rate)

    def parts(self, counts: Counts, rested_by: float) -> list[str]:
        """How the run stands, in words, apart from how many rows have finished."""
        left = self.left_s(counts, rested_by)
        return [
            f"{counts.in_flight} in flight",
            *([f"{counts.retiring} without a reply"] if counts.retiring else []),
            *([f"{counts.resting} wait to be tried again"] if counts.resting else []),
            f"{self.restored} restored",
            f"{counts.failed} failed",
            f"{self.rate(counts):.2f} rows/s",
            "time left unknown" if left is None else f"about {span(left)} left",
        ]


def span(seconds: float) -> str:
    """A duration for people: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def waiting(who: str) -> str:
    """The end of a line, where somebody is waited for."""
    return f"; no answer yet from {who}" if who else ""


class _Alive:
    """What goes on by the clock. `waits`: who is waited for, in words; or nothing."""

    def __init__(self) -> None:
        self._counts: Counts | None = None
        self._rested_by = 0.0
        self.waits: Callable[[], str] = str

    async def run(self) -> None:
        """Say how the run stands although nothing changes, until cancelled: rows may be long, and servers gone."""
        while True:
            await anyio.sleep(PROGRESS_EVERY_S / 10)
            if self._counts is not None:
                self.update(self._counts, self._rested_by)

    def update(self, counts: Counts, rested_by: float = 0.0) -> None:
        raise NotImplementedError


class PlainProgress(_Alive):
    """Lines, one of figures every `PROGRESS_EVERY_S` while `run` runs."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        super().__init__()
        self._write = write
        self._pace: Pace | None = None
        self._next = 0.0

    def start(self, counts: Counts) -> None:
        self._pace, self._counts = Pace(counts), counts
        self._next = anyio.current_time() + PROGRESS_EVERY_S

    def update(self, counts: Counts, rested_by: float = 0.0) -> None:
        self._counts, self._rested_by = counts, rested_by
        now = anyio.current_time()
        if self._pace is not None and now >= self._next:
            self._next = now + PROGRESS_EVERY_S
            self._stands(counts, self._pace)

    def _stands(self, counts: Counts, pace: Pace) -> None:
        stands = [f"{counts.finished}/{counts.rows} finished", *pace.parts(counts, self._rested_by)]
        self._write(", ".join(stands) + waiting(self.waits()))

    def message(self, text: str, event: str = "") -> None:
        self._write(text)

    def stop(self) -> None:
        self._pace = None


class EventProgress(PlainProgress):
    """The same as events: `collector.progress` for the figures, `collector.says` for a line. `logged`: trace events
    that whoever reads these is told of already, so that their messages would say them twice."""

    def __init__(self, tracer: Tracer, logged: Container[str]) -> None:
        super().__init__(lambda text: tracer.emit("collector.says", text=text))
        self._tracer = tracer
        self._logged = logged

    def _stands(self, counts: Counts, pace: Pace) -> None:
        left_s, rate = pace.left_s(counts, self._rested_by), round(pace.rate(counts), 3)
        left = None if left_s is None else round(left_s, 1)
        self._tracer.emit("collector.progress", **asdict(counts), rows_per_s=rate, left_s=left, waits=self.waits())

    def message(self, text: str, event: str = "") -> None:
        if event not in self._logged:
            super().message(text)


class RichProgress(_Alive):
    """A bar on a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        super().__init__()
        self._bar: RichBar = Bar(
            TextColumn("[bold]rollouts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}")
        )
        self._task = self._bar.add_task("rollouts", total=None, figures="")
        self._pace: Pace | None = None

    def start(self, counts: Counts) -> None:
        self._pace = Pace(counts)
        with suppress(OSError):  # the terminal may have gone; here and below
            self._bar.start()
        self.update(counts)

    def update(self, counts: Counts, rested_by: float = 0.0) -> None:
        if self._pace is None:
            return
        self._counts, self._rested_by = counts, rested_by
        figures = " · ".join(self._pace.parts(counts, rested_by)) + waiting(self.waits())
        self._bar.update(self._task, total=counts.rows, completed=counts.finished + counts.failed, figures=figures)

    def message(self, text: str, event: str = "") -> None:
        with suppress(OSError):
            self._bar.console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        with suppress(OSError):
            self._bar.stop()
