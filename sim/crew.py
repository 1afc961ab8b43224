"""Worker processes of one machine: blocks of jobs go out, an outcome comes back per job.

A worker that dies takes one run with it, the one it was at, which then is a failure of that seed (`RUN-lost`); so does
one that is killed because a run has no end in real time (`RUN-hung`). The rest of its block goes to another. Nothing
that a run does ends a campaign.

Must not know what a job does, or what is kept of it.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from sim.jobs import Job, Outcome, lost, run_jobs

RUN_MAX_S = 600.0
"""Real seconds after which a run counts as endless. A long one takes a few."""
WORKER_MEMORY_MAX = 512 * 2**20
"""Bytes that a worker may have held at once; then another takes its place between two blocks."""


class Crew(Protocol):
    """Whoever runs jobs. `size`: how many at once."""

    size: int

    @property
    def free(self) -> int:
        """How many blocks it could begin now."""
        ...

    @property
    def busy(self) -> bool:
        """Something was given that has not come back."""
        ...

    def give(self, block: Sequence[Job]) -> None:
        """Begin these jobs."""
        ...

    def wait(self, timeout_s: float) -> list[Outcome]:
        """What has come back; waits for the first, but not longer."""
        ...

    def close(self) -> None:
        """End it, whatever it is at."""
        ...


class _Said(Enum):
    """At the end of a block."""

    DONE = "done"
    LEAVES = "leaves"
    """And it has held so much memory that another should take its place."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    link: Connection
    block: deque[Job] = field(default_factory=deque)
    """Jobs that have not come back; the first is being run."""
    busy: bool = False
    since: float = 0.0


class Processes:
    """A `Crew` of `number` processes. `until`: on this machine's monotonic clock, when to begin no more jobs."""

    def __init__(self, number: int, until: float | None = None) -> None:
        self.size = number
        self._until = until
        self._workers: list[_Worker] = []
        self._left: deque[Job] = deque()
        """Of blocks whose worker is gone."""

    @property
    def free(self) -> int:
        return self.size - sum(worker.busy for worker in self._workers)

    @property
    def busy(self) -> bool:
        return bool(self._left) or self.free < self.size

    def give(self, block: Sequence[Job]) -> None:
        assert self.free > 0, "every worker has a block"
        idle = next((worker for worker in self._workers if not worker.busy), None) or self._hire()
        idle.block.extend(block)
        idle.busy, idle.since = True, time.perf_counter()
        try:
            idle.link.send((list(block), self._until))
        except OSError:  # somebody has killed it between two blocks
            self._dismiss(idle)
            self._left.extend(block)

    def wait(self, timeout_s: float) -> list[Outcome]:
        while self._left and self.free:
            block, self._left = list(self._left), deque()
            self.give(block)
        outcomes: list[Outcome] = []
        links = {worker.link: worker for worker in self._workers}
        for link in connection.wait(list(links), timeout_s):
            assert isinstance(link, Connection)
            outcomes += self._heard(links[link])
        now = time.perf_counter()
        for worker in [each for each in self._workers if each.busy and now - each.since > RUN_MAX_S]:
            worker.process.kill()
            worker.process.join()
            outcomes += self._bury(worker, "RUN-hung", f"it had run for {RUN_MAX_S:g} s of real time")
        return outcomes

    def close(self) -> None:
        for worker in list(self._workers):
            if worker.busy:
                worker.process.kill()
            self._dismiss(worker)

    def _heard(self, worker: _Worker) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            while worker.link.poll():
                said = worker.link.recv()
                worker.since = time.perf_counter()
                if isinstance(said, Outcome):
                    worker.block.popleft()
                    outcomes.append(said)
                    continue
                worker.block.clear()  # what is left of it was not begun: the time was over
                worker.busy = False
                if said is _Said.LEAVES:
                    self._dismiss(worker)
                    break
        except (EOFError, OSError):
            worker.process.join()
            outcomes += self._bury(worker, "RUN-lost", f"the process that ran it ended: {_end_of(worker.process)}")
        return outcomes

    def _bury(self, worker: _Worker, name: str, seen: str) -> list[Outcome]:
        self._dismiss(worker)
        if not worker.block:
            return []
        job = worker.block.popleft()
        self._left.extend(worker.block)
        return [lost(job, name, seen, time.perf_counter() - worker.since)]

    def _hire(self) -> _Worker:
        context = get_context("fork")
        ours, theirs = context.Pipe()
        others = [worker.link for worker in self._workers] + [ours]
        process = context.Process(target=_work, args=(theirs, others), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.link.close()
        worker.process.join()
        worker.process.close()


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode
    return f"signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"status {code}"


def _work(link: Connection, others: list[Connection]) -> None:
    """A worker's life. The campaign hears of an interrupt; a worker ends when its campaign is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    gc.freeze()  # what was imported is no garbage: not to be looked through after each world
    try:
        while True:
            block, until = link.recv()
            for outcome in run_jobs(block, until):
                link.send(outcome)
            leaves = memory() > WORKER_MEMORY_MAX
            link.send(_Said.LEAVES if leaves else _Said.DONE)
            if leaves:
                return
    except (EOFError, OSError):
        return
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def memory() -> int:
    """Bytes that this process has held at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cores() -> int:
    """How many processes this one may run at once: a batch system may give it a part of the machine only."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
