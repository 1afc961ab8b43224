"""Virtual time: a trio clock that jumps to the next timer when nothing can run.

Holds a heap of its own beside trio's deadlines: `call_at` is several times cheaper than a sleeping task, and its ties
are ordered by age, never by address. When there is nothing left to wait for, or the next timer lies beyond the
horizon, the clock reports that at once (`MockClock` would spin for ever).

Must not know nodes, networks or faults.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

import trio

_PRUNE_FROM = 256
_IDLE_POLLS = 3
"""Looks at trio's thread-safe queue before silence counts as a deadlock: finalizers of abandoned generators use it."""


class Stuck(Exception):
    """The run cannot or must not go on. Always a failure of the run, never a pass."""


class Deadlock(Stuck):
    """Nothing can run and no timer is set; the text names the blocked tasks and where they wait."""


class HorizonReached(Stuck):
    """The next timer lies beyond the last instant that this run may reach."""


class Livelock(Stuck):
    """Tasks run for ever without time passing."""


class Timer:
    """A call that is due. `cancel` is idempotent and cheap."""

    __slots__ = ("_clock", "_fn", "args")

    def __init__(self, clock: VirtualClock, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._clock = clock
        self._fn: Callable[..., object] | None = fn
        self.args = args

    def cancel(self) -> None:
        """Forget the call, if it was not made yet."""
        if self._fn is not None:
            self._fn, self.args = None, ()
            self._clock._forgotten += 1

    def _fire(self) -> None:
        fn, self._fn = self._fn, None
        if fn is not None:
            fn(*self.args)


class VirtualClock(trio.abc.Clock):
    """Seconds since the start of the world. Advances only while every task is blocked."""

    def __init__(self, horizon_s: float = math.inf) -> None:
        self.horizon_s = horizon_s
        self.jumps = 0
        """How often time has advanced."""
        self.stall: Callable[[Stuck], None] | None = None
        """Told once when the run cannot go on."""
        self.hold: Callable[[], bool] | None = None
        """While it says true, time stands still: something must be finished at this instant."""
        self.fault: Callable[[BaseException], None] | None = None
        """Told of an exception out of a timer's call."""
        self._now = 0.0
        self._seq = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._forgotten = 0
        self._idle = 0

    @property
    def idle(self) -> bool:
        """Nothing can run and no timer is set, as far as was seen."""
        return self._idle > 0

    def start_clock(self) -> None:
        """Nothing to do: time starts at 0."""

    def current_time(self) -> float:
        return self._now

    def call_at(self, when: float, fn: Callable[..., object], *args: Any) -> Timer:
        """Call `fn(*args)` at virtual time `when`, outside any task; calls of one instant run in the order made."""
        timer = Timer(self, fn, args)
        self._seq += 1
        heapq.heappush(self._heap, (when if when > self._now else self._now, self._seq, timer))
        if self._forgotten > _PRUNE_FROM and self._forgotten * 2 > len(self._heap):
            self._prune()
        return timer

    def call_after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> Timer:
        """`call_at`, `delay_s` from now."""
        return self.call_at(self._now + delay_s, fn, *args)

    async def sleep(self, delay_s: float) -> None:
        """Like `trio.sleep`, at a fifth of its cost. A checkpoint, also for 0."""
        if delay_s <= 0:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        timer = self.call_at(self._now + delay_s, trio.lowlevel.reschedule, task)

        def abort(_: object) -> trio.lowlevel.Abort:
            timer.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def sleep_through(self, delay_s: float) -> None:
        """Like `sleep` inside a shielded scope, at half the cost: only the reaper ends it early."""
        until = self._now + delay_s
        try:
            await self.sleep(delay_s)
        except trio.Cancelled:
            # Raised again by the next wait. Refusing to abort instead would leave the task without an abort function:
            # the reaper could only bury it, and its timer would wake the dead.
            with trio.CancelScope(shield=True):
                await self.sleep(until - self._now)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task can run. Never lets it sleep."""
        if self.hold is not None and self.hold():
            return 0.0
        heap = self._heap
        while heap and heap[0][2]._fn is None:
            heapq.heappop(heap)
            self._forgotten -= 1
        due = heap[0][0] if heap else math.inf
        when = due if due < deadline else deadline
        if when == math.inf:
            self._idle += 1
            if self._idle > _IDLE_POLLS:
                self._report(Deadlock(f"at {self._now:.6f} s nothing can run and no timer is set"))
            return 0.0
        self._idle = 0
        if when > self.horizon_s:
            self._now = max(self._now, self.horizon_s)
            self._report(HorizonReached(f"the next timer is at {when:.6f} s, the horizon at {self.horizon_s:.6f} s"))
            return 0.0
        if when > self._now:
            self._now = when
            self.jumps += 1
        while heap and heap[0][0] <= self._now:
            timer = heapq.heappop(heap)[2]
            if timer._fn is None:
                self._forgotten -= 1
                continue
            try:
                timer._fire()
            except Exception as exc:
                if self.fault is None:
                    raise
                self.fault(exc)
        return 0.0

    def progress(self) -> None:
        """A task is about to run, so silence begins anew."""
        self._idle = 0

    def _report(self, stuck: Stuck) -> None:
        self._idle = 0
        stall, self.stall = self.stall, None
        if stall is None:
            raise stuck
        stall(stuck)

    def _prune(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2]._fn is not None]
        heapq.heapify(self._heap)
        self._forgotten = 0
