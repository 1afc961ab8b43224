"""Many seeds over all cores or machines, for a number of seeds or of seconds: old failures first, some runs done twice.

A crew (`sim.crew`, `sim.ray_crew`) runs blocks of jobs and gives back an outcome of each. One failure of each kind is
run again here, shrunk, shown and kept; all of them are in the history, whose next campaign begins with them.

Must not know what a seed does.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from faults.apps import with_apps
from faults.draw import draw
from faults.plan import App, dump
from sim.crew import Crew, Processes, cores
from sim.history import History, trouble_with
from sim.jobs import Figures, Job, Outcome, explained, run_jobs
from sim.report import screen, write_artefact
from sim.run import Verdict
from sim.sources import versions
from sim.streams import stream
from sim.summary import ProgressLine, Summary, kinds, progress_text, replay_command, summary_line

__all__ = [
    "ProgressLine",
    "Summary",
    "campaign",
    "explained",
    "progress_text",
    "replay_command",
    "run_block",
    "show_failure",
    "summary_line",
]

BLOCK_SEEDS = 8
FAILURES_MAX = 25
"""Failing seeds after which a campaign has seen enough."""
EXPLAINED_MAX = 3
"""Kinds of failures that a campaign shrinks and keeps with their traces."""
DOUBLE = 0.05
"""The share of runs that are done twice."""
WAIT_S = 0.5
Progress = Callable[[Figures, float], None]
T = TypeVar("T")


def campaign(
    seeds: Iterable[int],
    profile: str,
    *,
    seconds: float | None = None,
    jobs: int | None = None,
    bug: str | None = None,
    failures_max: int = FAILURES_MAX,
    progress: Progress | None = None,
    explain: bool = True,
    double: float = 0.0,
    history: History | None = None,
    crew: Callable[[float | None], Crew] | None = None,
    say: Callable[[str], None] | None = None,
    apps: tuple[App, ...] = (),
) -> Summary:
    """Run `seeds` in order until they, the seconds, or the patience for failures are spent.

    Args:
        explain: run one failure of each kind again, shrunk and with its whole trace; not after Ctrl-C.
        double: the share of runs that are done again in another process and compared.
        history: where results are kept, and from where old failures come.
        say: told what takes long, once the seeds are done.
        apps: servers of the gym that are an author's own.
        crew: made with the moment, on this machine's monotonic clock, when no more runs begin; processes otherwise.
    """
    began = time.perf_counter()
    until = None if seconds is None else began + seconds
    workers = Processes(jobs or cores(), until) if crew is None else crew(until)
    book = _Book(history, profile, workers.size)
    before = book.twice()
    todo = _blocks([*book.old()], _drawn(seeds, profile, bug, double, apps))
    figures = Figures()
    interrupted = False
    try:
        while True:
            enough = len(figures.failed) >= failures_max or (until is not None and time.perf_counter() >= until)
            while not enough and workers.free and (block := next(todo, None)) is not None:
                workers.give(block)
            if not workers.busy or len(figures.failed) >= failures_max:
                break
            outcomes = workers.wait(WAIT_S)
            for outcome in outcomes:
                figures.add(outcome)
            book.record(outcomes)
            if progress is not None:
                progress(figures, time.perf_counter() - began)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        workers.close()
    spent = time.perf_counter() - began
    figures.failed.sort(key=lambda outcome: outcome.job.seed)
    shown = kinds(figures.failed, EXPLAINED_MAX) if explain and not interrupted else []
    verdicts: list[Verdict] = []
    try:
        for outcome in shown:
            verdicts += _explained(outcome, say)
    except KeyboardInterrupt:
        interrupted = True
    told = tuple(verdicts)
    summary = Summary(
        profile, bug, figures, spent, workers.size, told, book.number, before, interrupted, book.trouble, apps
    )
    book.end(spent, summary.ok)
    return summary


class _Book:
    """The history, or none. What it cannot keep is said at the end: a campaign goes on without."""

    def __init__(self, history: History | None, profile: str, jobs: int) -> None:
        self._history = history
        self._profile = profile
        self.trouble: tuple[str, ...] = ()
        self.number = self._try(None, lambda history: history.begin(profile, jobs))

    def old(self) -> Sequence[Job]:
        return self._try([], lambda history: history.old_failures(self._profile))

    def twice(self) -> int:
        return self._try(0, lambda history: history.twice())

    def record(self, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            self._try(None, lambda history: history.record(outcomes))

    def end(self, seconds: float, ok: bool) -> None:
        self._try(None, lambda history: history.end(seconds, ok))

    def _try(self, otherwise: T, do: Callable[[History], T]) -> T:
        if self._history is None:
            return otherwise
        try:
            return do(self._history)
        except sqlite3.Error as error:
            self.trouble, self._history = (f"results are not kept: {trouble_with(self._history.path, error)}",), None
            return otherwise


def run_block(seeds: range, profile: str, bug: str | None = None, until: float | None = None) -> Figures:
    """The figures of these seeds, run here; `until`: on this machine's monotonic clock, when to stop."""
    figures = Figures()
    for outcome in run_jobs((Job(seed, profile, bug) for seed in seeds), until):
        figures.add(outcome)
    return figures


def show_failure(verdict: Verdict) -> str:
    """Keep the failure, and give its first screen."""
    write_artefact(verdict)
    return screen(verdict, replay_command(verdict))


def _explained(outcome: Outcome, say: Callable[[str], None] | None) -> list[Verdict]:
    """The failure with a small plan; none where running it here would end this process, or where it passes here."""
    job, broken = outcome.job, outcome.violation
    if broken is None or broken.invariant in ("RUN-lost", "RUN-hung", "RUN-harness"):
        return []
    if say is not None:
        say(f"shrinking seed {job.seed} ({broken.invariant})")
    verdict = explained(job.seed, job.profile, job.bug, outcome.plan)
    return [verdict] if verdict.violations else []


def _drawn(seeds: Iterable[int], profile: str, bug: str | None, double: float, apps: tuple[App, ...]) -> Iterator[Job]:
    """The new jobs. Which ones are done twice differs from code to code, and not from one day to the next."""
    sources = versions()["sources"] if 0 < double < 1 else ""
    for seed in seeds:
        twice = double >= 1 or (double > 0 and stream(seed, "twice", sources).random() < double)
        yield Job(seed, profile, bug, dump(with_apps(draw(seed, profile), apps)) if apps else None, twice)


def _blocks(first: Iterable[Job], then: Iterator[Job]) -> Iterator[list[Job]]:
    for job in first:
        yield [job]
    while block := list(islice(then, BLOCK_SEEDS)):
        yield block
