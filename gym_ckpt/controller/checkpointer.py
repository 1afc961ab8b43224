"""When checkpoints are taken: asked for by a signal or the timer, and once more to stop (INV-96).

A missed prepare names its blockers; they are retired, and the prepare is tried again `retry_prepare` times. All tries
share one `checkpoint_timeout_s`, which begins with the SIGTERM if that is earlier, so that a stop ends within it and
`STOP_REST_S`, whatever blocks or hangs, and fits between the SIGTERM and the SIGKILL of a batch system. How one
checkpoint is taken is in `gym_ckpt.controller.taking`.
"""

from __future__ import annotations

import math

import anyio

from gym_ckpt.controller.housekeeping import Housekeeping
from gym_ckpt.controller.shared import Shared
from gym_ckpt.controller.taking import Missed, Taken, Taking
from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import PREPARE_SHARE
from gym_ckpt.types import keys
from gym_ckpt.words import counted


class Checkpointer:
    """This run's checkpoints. `stopped`: see `run`."""

    def __init__(self, shared: Shared, taking: Taking, housekeeping: Housekeeping) -> None:
        self._shared = shared
        self._taking = taking
        self._housekeeping = housekeeping
        self.stopped = False
        self.failure: str | None = None
        """Once stopped: why the stop has no checkpoint of its own, if it has none."""
        self.nothing_to_save = False
        """... which is because no row was in flight."""
        self._missed = ""
        """Why the last one asked for without a stop failed: it may have left no time for that of a stop."""

    @property
    def taken(self) -> list[Taken]:
        """Those published by this run, in order."""
        return self._taking.taken

    @property
    def previous(self) -> str | None:
        """The checkpoint in force, None before the first."""
        return self._taking.previous

    async def tidy(self) -> None:
        """The run is complete: leave no partial checkpoint behind. The caller holds the checkpoint lock."""
        await self._taking.tidy()

    async def run(self) -> None:
        """Take checkpoints until a stop is complete (`stopped`) or this is cancelled."""
        interrupts = self._shared.interrupts
        while not self.stopped:
            if not (interrupts.stopping or interrupts.checkpoint or await self._timer()):
                continue
            stopping = interrupts.stopping
            interrupts.checkpoint = False
            if stopping and not self._shared.collection.unfinished_started:
                self.nothing_to_save = True
                self._stop(self._why_nothing_to_save())
            else:
                self._conclude(stopping, await self._take())

    def _why_nothing_to_save(self) -> str:
        unreached = self._shared.collection.unreached
        lost = self._shared.collection.counts().retiring - unreached
        ran = f"{counted(lost, 'row')} lost with the servers that ran them" if lost else ""
        never = (
            f"{counted(unreached, 'row')} sent and not begun, since the environment cannot be reached"
            if unreached
            else ""
        )
        return ", ".join(part for part in (ran, never) if part) or "no row was in flight"

    def _conclude(self, stopping: bool, result: Taken | str) -> None:
        """What a checkpoint, or the reason for having none, means; `stopping`: a stop was asked for before it began."""
        if isinstance(result, Taken):
            if self._shared.left_closed:
                self._stop(None)
        elif not stopping:
            self._missed = result
        else:
            self.nothing_to_save = not self._shared.collection.unfinished_started
            self._stop(result)

    def _stop(self, failure: str | None) -> None:
        self.stopped, self.failure = True, failure
        self._shared.end()

    async def _timer(self) -> bool:
        """Until a signal or the timer; True when the timer fired while rows are in flight."""
        every_s = self._shared.settings.checkpoint_every_s
        with anyio.move_on_after(every_s):
            await self._shared.interrupts.wake.wait()
            return False
        return self._shared.collection.counts().in_flight > 0

    async def _take(self) -> Taken | str:
        """A checkpoint, or why there is none after all tries."""
        shared = self._shared
        until = math.inf
        tries = 1 + shared.settings.retry_prepare
        failure = self._missed
        for last in [False] * (tries - 1) + [True]:
            async with shared.checkpoint_lock:
                began = min(anyio.current_time(), shared.interrupts.told)
                until = min(until, began + shared.settings.checkpoint_timeout_s)
                if until <= anyio.current_time():
                    break
                try:
                    if shared.ended.is_set():
                        raise Missed(shared.fatal or "the run is ending, and nothing is left to save")
                    return await self._closed_take(until, 1.0 if last else PREPARE_SHARE)
                except Missed as missed:
                    failure = str(missed)
                    again = not last and bool(missed.blockers)
                    shared.ports.tracer.emit(
                        "collector.checkpoint_failed", reason=failure, blockers=keys(missed.blockers), again=again
                    )
                    shared.progress.message(
                        f"no checkpoint: {failure}; {self._in_force()}", event="collector.checkpoint_failed"
                    )
                    if not again:
                        break
                    blockers = [episode for episode in missed.blockers if shared.collection.is_current(episode)]
                for episode in blockers:
                    shared.collection.lost(episode, anyio.current_time())
                try:
                    with anyio.CancelScope(deadline=until) as limit:
                        await self._housekeeping.retire_waiting()
                except GymCkptError as error:
                    return f"{failure}; its blockers could not be retired ({error})"
                if limit.cancelled_caught:
                    return f"{failure}; its blockers could not be retired in time{self._taking.no_answer()}"
        return failure

    async def _closed_take(self, until: float, prepare_share: float) -> Taken:
        """One try, with no row starting until it is over, or ever again when the run stops with it."""
        shared = self._shared
        with anyio.CancelScope(deadline=until) as waiting:
            async with shared.dispatch_gate:
                waiting.deadline = math.inf
                left_s = max(until - anyio.current_time(), 0.0)
                shared.collection.open_checkpoint()
                shared.ports.tracer.emit("collector.checkpoint_opened")
                try:
                    return await self._taking.take(left_s, prepare_share * left_s)
                finally:
                    if not shared.left_closed:
                        shared.collection.close_checkpoint()
                        shared.ports.tracer.emit("collector.checkpoint_closed")
                        shared.changed()
        raise Missed("the dispatch log hangs: no checkpoint is taken while rows are being written to it")

    def _in_force(self) -> str:
        if self._taking.gone:
            return "every checkpoint went with it"
        return f"checkpoint {self.previous} stays in force" if self.previous else "there is none before it"
