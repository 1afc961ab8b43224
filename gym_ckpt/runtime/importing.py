"""The imports of one participant: one after the other, each to its end, or given up with nothing left (INV-60).

An import runs in a task of the server. Giving it up cancels it, which comes too late for what a thread does: whatever
that installs is discarded when it has ended. Knows neither phases nor leases; the control plane says when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.abc

from gym_ckpt.core.phases import Target
from gym_ckpt.errors import InvalidPhase
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.runtime.participant import Participant
from gym_ckpt.runtime.transfer import import_scope, not_restored
from gym_ckpt.types import EpisodeId, keys
from gym_ckpt.wire.messages import RestoreReply

Ended = Callable[[bool], None]


class Imports:
    """`result`: of the last one. `installs`: the attempts that it was for."""

    def __init__(self, participant: Participant, tasks: anyio.abc.TaskGroup) -> None:
        self._participant = participant
        self._admission = participant.admission
        self._tracer = participant.ports.tracer
        self._tasks = tasks
        self._serial = anyio.Lock()
        self._scope = anyio.CancelScope()
        self._running = 0
        self._idle = anyio.Event()
        self.result: Outcome[RestoreReply] = Outcome()
        self.installs: tuple[EpisodeId, ...] = ()

    def begin(self, restore_id: str, target: Target, ended: Ended) -> None:
        """Import in a task of the server. `ended`: told whether everything is installed, before `result` has it."""
        self.result, self._scope = Outcome(), anyio.CancelScope()
        self.installs = target.installs
        self._running += 1
        self._tracer.emit("import.begun", restore_id=restore_id)
        self._tasks.start_soon(self._run, restore_id, target, ended, self.result, self._scope)

    def give_up(self) -> None:
        """Nothing that the last one has installed, or still will, is left; and its attempts are refused."""
        self._scope.cancel()
        self._discard(self.installs)
        self._tasks.start_soon(self._release_discarded, self.installs)

    @property
    def running(self) -> bool:
        """Whether one is at work: given up ones, too, that a thread still has to come back from."""
        return self._running > 0

    async def until_idle(self) -> None:
        """Until none is."""
        while self.running:
            await self._idle.wait()

    async def _run(
        self, restore_id: str, target: Target, ended: Ended, outcome: Outcome[RestoreReply], scope: anyio.CancelScope
    ) -> None:
        try:
            await self._import(restore_id, target, ended, outcome, scope)
        finally:
            self._running -= 1
            self._tracer.emit("import.ended", restore_id=restore_id)
            if not self.running:
                self._idle.set()
                self._idle = anyio.Event()

    async def _import(
        self, restore_id: str, target: Target, ended: Ended, outcome: Outcome[RestoreReply], scope: anyio.CancelScope
    ) -> None:
        reply: RestoreReply | None = None
        # One after the other: an import that was ended must have cleaned up before the next one installs.
        async with self._serial:
            try:
                with scope:
                    reply = await import_scope(self._participant, restore_id, target, lambda: scope.cancel_called)
                if reply is None:
                    raise InvalidPhase("the restore was ended before it was done")
            except Exception as error:  # an author's hook may raise anything; this restore has failed, the server lives
                if self._participant.broken(error):
                    raise
                self._discard(target.installs)
                await self._release(target.installs)
                ended(False)
                outcome.fail(not_restored(self._participant, error))
                return
        ended(True)
        outcome.succeed(reply)

    def _discard(self, installed: Sequence[EpisodeId]) -> None:
        """All or nothing (INV-60): no state of the attempts that a restore was for, and no late call of them."""
        self._participant.free(installed)
        self._admission.stop(installed)
        self._tracer.emit("restore.discarded", episodes=keys(installed))

    async def _release_discarded(self, installed: Sequence[EpisodeId]) -> None:
        async with self._serial:  # before the next import, which may install the same attempts again
            await self._release(installed)

    async def _release(self, installed: Sequence[EpisodeId]) -> None:
        try:
            await self._participant.release(installed)
        except Exception as error:  # as for an import
            if self._participant.broken(error):
                raise
            # They are refused, and whoever restored them retires them: that does it again, until it is done.
            self._tracer.emit("restore.release_failed", why=str(error))
