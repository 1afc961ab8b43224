"""Sending rows and taking their replies.

An attempt is durable in the dispatch log before its `/run` is sent; everything that may start at one moment shares one
write and one fsync. The gate is held until every call of the batch has begun, so that a checkpoint finds each row
either sent or not taken (INV-90). A reply is booked and its row queued for the output file in one step, so that a
checkpoint built later leaves out only rows whose output it can wait for.

It must not know what a checkpoint is.
"""

from __future__ import annotations

import anyio
from anyio.abc import TaskGroup

from gym_ckpt.controller.environment import Failed, Finished, Loss, Lost, run_episode
from gym_ckpt.controller.shared import Shared
from gym_ckpt.core.collection import Verdict
from gym_ckpt.errors import GymCkptError, NotLossless
from gym_ckpt.limits import COLLECT_RETRY_FIRST_S, COLLECT_RETRY_MAX_S, ROWS_RETRY_BUDGET_S
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.storage.files import reason
from gym_ckpt.types import EpisodeId


class Rollouts:
    """The rows' side of a run."""

    def __init__(self, shared: Shared, environment_url: str) -> None:
        self._shared = shared
        self._url = environment_url
        self._unlogged = ""
        """Why the last dispatch could not be logged."""

    async def run(self) -> None:
        """Dispatch until cancelled, which drops the calls in flight."""
        shared = self._shared
        delay_s = COLLECT_RETRY_FIRST_S
        failing_since: float | None = None
        async with Tasks() as calls:
            while True:
                shared.collection.rested(anyio.current_time())
                if not shared.collection.dispatchable or shared.interrupts.stopping:
                    with anyio.CancelScope(deadline=shared.collection.next_rested):
                        await shared.dispatch_wake.wait()
                    continue
                async with shared.dispatch_gate:
                    logged = await self._dispatch(calls)
                if logged:
                    delay_s, failing_since = COLLECT_RETRY_FIRST_S, None
                    continue
                failing_since = anyio.current_time() if failing_since is None else failing_since
                if anyio.current_time() - failing_since >= ROWS_RETRY_BUDGET_S:
                    shared.fail(self._unlogged)
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, COLLECT_RETRY_MAX_S)

    async def _dispatch(self, calls: TaskGroup) -> bool:
        """Log and send what may start now; False when it could not be logged."""
        shared = self._shared
        taken = shared.collection.take()
        if not taken:
            return True
        if shared.journal is not None:
            await shared.ports.probe("collector.before_dispatch_log")
            try:
                await shared.journal.dispatched({episode: shared.collection.lost_before(episode) for episode in taken})
            except OSError as error:
                shared.collection.give_back(taken)
                self._unlogged = f"no row can start: {shared.journal.path} cannot be written ({reason(error)})"
                shared.progress.message(self._unlogged)
                return False
            except GymCkptError as error:
                shared.collection.give_back(taken)
                shared.fail(str(error))
                return False
            await shared.ports.probe("collector.dispatch_logged")
        begun = _Countdown(len(taken))
        for episode in taken:
            shared.sent(episode)
            calls.start_soon(self._one, episode, begun)
        await begun.wait()
        shared.progress.update(shared.collection.counts(), shared.collection.last_rested)
        return True

    async def _one(self, episode: EpisodeId, begun: _Countdown) -> None:
        shared = self._shared
        shared.ports.tracer.emit("collector.dispatch", episode=episode.key)
        begun.one()
        task = shared.tasks[episode.rollout_id]
        continued = shared.collection.is_continued(episode)
        run = None if shared.coordination is None else shared.run  # nobody forgets without it
        outcome = await run_episode(shared.ports.http, self._url, episode, task, run=run, continued=continued)
        await shared.ports.probe("collector.replied")
        self.settle(episode, outcome)

    def settle(self, episode: EpisodeId, outcome: Finished | Failed | Lost) -> None:
        """Book the end of an attempt's `/run`."""
        shared, now = self._shared, anyio.current_time()
        line = b""
        if isinstance(outcome, Finished):
            try:
                line = shared.rows.encode(episode, outcome.result)
            except NotLossless as error:
                outcome = Failed(f"the result cannot be written: {error}")
        if isinstance(outcome, Finished):
            if shared.collection.finished(episode) is Verdict.FINAL:
                shared.rows.finished(episode, line)
        elif isinstance(outcome, Failed):
            verdict = shared.collection.failed(episode, now)
            if verdict is not Verdict.IGNORED:
                shared.failed(episode, outcome.reason, final=verdict is Verdict.FINAL)
        elif shared.collection.lost(episode, now, unreached=outcome.how is Loss.UNREACHED) is not Verdict.IGNORED:
            shared.losses_in_a_row += 1
            if outcome.how is not Loss.UNREACHED:
                shared.lose(episode)
            shared.unsaid_losses.append((episode, outcome.reason, outcome.how))
            shared.ports.tracer.emit("collector.lost", episode=episode.key, reason=outcome.reason)
        if not isinstance(outcome, Lost):
            shared.losses_in_a_row = 0
        shared.ports.tracer.emit("collector.settled", episode=episode.key, outcome=type(outcome).__name__)
        shared.settled(episode)
        shared.changed()


class _Countdown:
    """Waits until as many tasks have begun."""

    __slots__ = ("_event", "_left")

    def __init__(self, left: int) -> None:
        self._left = left
        self._event = anyio.Event()

    def one(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
