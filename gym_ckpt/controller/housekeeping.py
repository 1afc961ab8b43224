"""Retiring attempts that got no reply, survivors of earlier runs among them, and forgetting finished rollouts.

Both happen everywhere at once, in batches, under the checkpoint lock and so never inside a checkpoint (INV-93), and are
repeated until they succeed: a row does not start its next attempt while the last may still run somewhere. A rollout is
forgotten once its row is durable, since a row that a crash takes back runs again.

It must not know why an attempt is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio

from gym_ckpt.controller.calls import each
from gym_ckpt.controller.shared import Shared
from gym_ckpt.core.forgotten import Ended
from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import (
    COLLECT_RETRY_FIRST_S,
    COLLECT_RETRY_MAX_S,
    FORGET_AT_END_S,
    FORGET_BATCH,
    FORGET_PAST_SILENCE_S,
    LOST_ATTEMPTS_MAX,
    OVER_DISCOVERY_S,
    RETIRE_BATCH,
)
from gym_ckpt.types import EpisodeId, keys

SERVERS_GONE: Final = (
    "if servers are gone, start them again (gym-ckpt serve CONFIG), and these rows start from input; or stop this run "
    "first, then start both, and it goes on from the checkpoint in force"
)


class Housekeeping:
    """The servers' bookkeeping of rows that ended or were lost."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def run(self) -> None:
        """Retire and forget as rows need it, until cancelled."""
        shared = self._shared
        delay_s = COLLECT_RETRY_FIRST_S
        while True:
            if not shared.collection.to_retire and len(shared.collection.forget_batch(FORGET_BATCH)) < FORGET_BATCH:
                await shared.housekeeping_wake.wait()
                continue
            await anyio.sleep(self._gather_s())
            shared.say_losses()
            try:
                async with shared.checkpoint_lock:
                    if shared.left_closed:
                        return
                    with shared.interrupts.bookkeeping() as limit:
                        await self.retire_waiting()
                        if len(shared.collection.forget_batch(FORGET_BATCH)) == FORGET_BATCH:
                            await self._forget(FORGET_BATCH)
                if limit.cancelled_caught:
                    return  # the run stops
            except (GymCkptError, OSError) as error:
                shared.progress.message(f"retiring lost rows has to wait: {error}; {SERVERS_GONE}")
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, COLLECT_RETRY_MAX_S)
            else:
                delay_s = COLLECT_RETRY_FIRST_S

    async def retire_waiting(self) -> None:
        """Retire everything that has to be; the caller holds the checkpoint lock.

        Raises:
            GymCkptError: some participant could not be reached; what was retired is retired again later.
        """
        shared = self._shared
        while batch := shared.collection.retire_batch(RETIRE_BATCH):
            shared.ports.tracer.emit("collector.retire", episodes=batch)
            await shared.ports.probe("collector.before_retire")
            if shared.coordination is not None:
                await shared.coordination.retire(batch)
            await shared.ports.probe("collector.retired")
            self._retired(batch)

    async def forget_rest(self) -> None:
        """At the end of a run: forget what is left, as far as that goes in `FORGET_AT_END_S`, or less at a stop.

        A stop whose checkpoint has waited for a server in vain does not wait for it once more (INV-96).
        """
        coordination = self._shared.coordination
        if self._shared.over and not await self._servers_there():
            return
        said = ""
        silent = self._shared.interrupts.stopping and coordination is not None and coordination.cut_off()
        async with self._shared.checkpoint_lock:
            with self._shared.interrupts.bookkeeping(FORGET_PAST_SILENCE_S if silent else FORGET_AT_END_S):
                while self._shared.collection.to_forget:
                    try:
                        await self._forget(RETIRE_BATCH)
                    except OSError:  # of the output, which tells how many rows wait for it
                        await anyio.sleep(COLLECT_RETRY_FIRST_S)
                    except GymCkptError as error:
                        if str(error) != said:
                            said = str(error)
                            self._shared.progress.message(f"some finished rollouts could not be forgotten: {said}")
                        await anyio.sleep(COLLECT_RETRY_FIRST_S)

    async def _servers_there(self) -> bool:
        """Whether any server of a run that was over before it began answers: if none does, it ends without them."""
        shared = self._shared
        if shared.coordination is None:
            return False
        with shared.interrupts.bookkeeping(OVER_DISCOVERY_S):
            if await shared.coordination.anybody(OVER_DISCOVERY_S):
                return True
        shared.progress.message("every row had ended before, and no server answers: none is needed, or told to forget")
        return False

    async def _forget(self, limit: int) -> None:
        shared = self._shared
        batch = shared.collection.forget_batch(limit)
        await shared.rows.sync()
        shared.ports.tracer.emit("collector.forget", episodes=keys(batch))

        async def ended_with(attempt: int) -> None:
            alike = [episode for episode in batch if episode.attempt == attempt]
            if shared.coordination is not None:
                ended = Ended(shared.run, attempt)
                await shared.coordination.forget([episode.rollout_id for episode in alike], ended=ended)
            shared.collection.forgotten(alike)

        # By attempt: of a rollout that ended earlier than others, a later one is no late copy, but a run begun anew. At
        # the same time, so that a server that is slow to forget some keeps nobody from hearing of the others.
        await each(sorted({episode.attempt for episode in batch}), ended_with)

    def _retired(self, batch: Iterable[EpisodeId]) -> None:
        shared = self._shared
        for episode in shared.collection.retired(batch):
            shared.failed(episode, f"{LOST_ATTEMPTS_MAX} attempts ended without a reply", final=True)
        shared.changed()

    def _gather_s(self) -> float:
        """Long enough that rows lost by one event are retired together, and longer while nothing replies at all."""
        doublings = min(self._shared.losses_in_a_row // max(1, self._shared.settings.concurrency), 16)
        return float(min(COLLECT_RETRY_FIRST_S * 2**doublings, COLLECT_RETRY_MAX_S))
