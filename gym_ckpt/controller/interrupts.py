"""What signals ask of a run, from its first line to its last (INV-96).

SIGUSR1: a checkpoint. SIGTERM: a checkpoint, then stop. A second SIGTERM: stop at once; but one that comes with the
first is the first: a batch system that tells a job's shell and its steps sends two for one cause, and the second must
not cost the checkpoint that the first asked for. SIGINT: a person wants it to end, at once. Before anything was
dispatched there is nothing to save, so the first SIGTERM ends that part by cancelling it; and once the run ends, for
whatever reason, no signal leads to another checkpoint. What is said of a signal is what comes of it. It must not know
how a checkpoint is taken.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import anyio

from gym_ckpt.limits import STOP_REST_S
from gym_ckpt.ports import Tracer


class Wake:
    """Wakes one waiting task; a `set` while nobody waits is kept."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Until the next `set`, or at once if one was kept."""
        await self._event.wait()
        self._event = anyio.Event()


class Interrupts:
    """Pending requests of one run. `together_s`: SIGTERMs within so many seconds of the first count as the first.
    `say`: gets a line for people about each that has a consequence."""

    def __init__(self, tracer: Tracer, together_s: float, say: Callable[[str], object] = lambda _: None) -> None:
        self._together_s = together_s
        self.told = math.inf
        """When the first SIGTERM came, on the monotonic clock."""
        self.hurry: Callable[[float], object] = lambda _: None
        """Called when the run is to end, with how long whatever is undone on servers may take: at once is 0."""
        self.checkpoint = False
        """A checkpoint was asked for and none has begun since."""
        self.stopping = False
        self.killed = False
        """A second SIGTERM came."""
        self.interrupted = False
        """SIGINT came."""
        self.wake = Wake()
        self.everything = anyio.CancelScope()
        """Around the whole run; cancelled by the second SIGTERM and by SIGINT."""
        self._tracer = tracer
        self._say = say
        self._abortable: anyio.CancelScope | None = None
        self._patient: dict[anyio.CancelScope, float] = {}
        """What a SIGTERM gives so many seconds from then on."""
        self._ending = False

    @property
    def cut_short(self) -> bool:
        """The run ends at once, with nothing but what is on the disk by now."""
        return self.killed or self.interrupted

    async def watch(self, signals: AsyncIterator[str]) -> None:
        """Take signals until cancelled."""
        async for name in signals:
            self.signal(name)

    def signal(self, name: str) -> None:
        """One signal, by its name."""
        answer = self._sigusr1() if name == "SIGUSR1" else self._sigint() if name == "SIGINT" else self._sigterm()
        self._tracer.emit("collector.signal", signal=name, answer=answer)
        if answer:
            self._say(f"{name}: {answer}")
        self.wake.set()

    def ending(self) -> None:
        """The run is over but for its last steps: all rows have ended, it stops, or it cannot go on."""
        self._ending = True

    def _sigint(self) -> str:
        self.interrupted = True
        self._end_at_once()
        return ""  # the end itself says it

    def _sigusr1(self) -> str:
        if self._ending:
            return "the run is ending, and nothing is left to checkpoint"
        self.checkpoint = True
        if self.stopping:
            return "the run stops already, with a checkpoint if rows are in flight"
        if self._abortable is not None:
            return "a checkpoint is taken as soon as rows are sent, then the run goes on"
        return "a checkpoint is taken, then the run goes on"

    def _sigterm(self) -> str:
        if self.stopping and anyio.current_time() - self.told < self._together_s:
            return ""
        if self.stopping:
            self.killed = True
            self._end_at_once()
            return ""
        self.stopping, self.told = True, anyio.current_time()
        self.hurry(STOP_REST_S)
        for scope, told_s in self._patient.items():
            scope.deadline = min(scope.deadline, self.told + told_s)
        if self._abortable is not None:
            self._abortable.cancel()
            return "the run stops before it sends a row"
        if self._ending:
            return "the run is ending already; a second SIGTERM ends it at once"
        return "a checkpoint is taken if rows are in flight, then the run stops; a second SIGTERM stops it at once"

    def _end_at_once(self) -> None:
        self.hurry(0.0)
        self.everything.cancel()

    @contextmanager
    def bookkeeping(self, limit_s: float = math.inf, told_s: float = STOP_REST_S) -> Iterator[anyio.CancelScope]:
        """Around work for which no stop waits at any price: cut off after `limit_s`, and `told_s` after a SIGTERM.

        A stop under way when it begins gives it `STOP_REST_S` at the least.
        """
        now = anyio.current_time()
        if self.stopping:
            limit_s = min(limit_s, max(self.told + told_s - now, STOP_REST_S))
        with anyio.CancelScope(deadline=now + limit_s) as scope:
            self._patient[scope] = told_s
            try:
                yield scope
            finally:
                del self._patient[scope]

    def abortable(self) -> anyio.CancelScope:
        """For `with`: a part of the run that the first SIGTERM ends; look at `stopping` after it."""
        self._abortable = anyio.CancelScope()
        if self.stopping:
            self._abortable.cancel()
        return self._abortable

    def unstoppable(self) -> None:
        """From here on rows are sent: the first SIGTERM takes a checkpoint."""
        self._abortable = None
