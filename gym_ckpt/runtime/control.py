"""The control plane of one participant: carries out what `gym_ckpt.core.phases` decides.

Transitions are serialized by one lock; the waits for readiness, for a write and for an import happen outside it, in
tasks of the server, so that neither a lost connection nor a deadline undoes them. The lease runs on the monotonic
clock: a wall clock that jumps cannot lengthen it (INV-53).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import msgspec

from gym_ckpt.core import phases
from gym_ckpt.core.forgotten import Ended
from gym_ckpt.core.phases import Action, Phase, Target
from gym_ckpt.errors import CheckpointConflict, DeadlineExceeded, ExportFailed, InvalidPhase, ProtocolError, Unavailable
from gym_ckpt.limits import BUDGET_MAX_S
from gym_ckpt.runtime.importing import Imports
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.runtime.participant import Participant
from gym_ckpt.runtime.serialized import Serialized, refuse_late, within
from gym_ckpt.runtime.transfer import LastWrite, export_scope
from gym_ckpt.storage.records import AbortFlag
from gym_ckpt.types import EpisodeId, keys
from gym_ckpt.wire.messages import (
    CheckpointRequest,
    CommitReply,
    CommitRequest,
    ForgetReply,
    ForgetRequest,
    PrepareReply,
    PrepareRequest,
    RenewReply,
    RenewRequest,
    RestoreReply,
    RestoreRequest,
    ResumeReply,
    ResumeRequest,
    RetireReply,
    RetireRequest,
    Status,
    SweepRequest,
    checked_budget,
    directory_of,
    plain,
    rollouts_of,
    scope_of,
)


class ControlPlane:
    """Phases, lease, retire sequence and storage of `participant`. `tasks` lives as long as the server."""

    def __init__(self, participant: Participant, tasks: anyio.abc.TaskGroup, *, grace_s: float) -> None:
        self._participant = participant
        self._admission = participant.admission
        self._ports = participant.ports
        self._tasks = tasks
        self._grace_s = grace_s
        self._state = phases.State()
        self._serial = anyio.Lock()
        self._abort = AbortFlag()
        self._settled: Outcome[None] = Outcome()
        self._settling = anyio.CancelScope()
        self._committed: Outcome[CommitReply] = Outcome()
        self._last_write = LastWrite()
        self._imports = Imports(participant, tasks)

    @property
    def phase(self) -> Phase:
        return self._state.phase

    # Operations, one per route.

    async def status(self) -> Status:
        """Where this participant stands; answered in every phase, without waiting."""
        now, wall = anyio.current_time(), self._ports.clock.wall()
        lease = self._state.lease_until
        return Status(
            kind=self._participant.kind,
            instance=self._participant.instance,
            phase=self._state.phase,
            checkpoint_id=self._state.checkpoint_id,
            lease_expires_at=None if lease is None else wall + lease - now,
            server_time=wall,
            retired_rollouts=len(self._admission.book.marks),
            report=self._participant.report(),
            live=tuple(keys(self._participant.live())),
        )

    async def prepare(self, request: PrepareRequest) -> PrepareReply:
        """Close, settle, and wait for readiness; at the deadline reply with the blockers, still closed (INV-10)."""
        until, lease = self._times(request)
        refuse_late(until, "prepare")
        self._last_write.refuse_behind(request.checkpoint_id)
        event = phases.Prepare(request.checkpoint_id, lease)
        await self._locked(until, lambda: event)
        settled, book = self._settled, self._admission.book
        with anyio.move_on_at(until):
            await self._admission.until(lambda: not self._open(request.checkpoint_id) or (settled.done and book.quiet))
        if settled.error is not None:
            raise settled.error
        if not self._open(request.checkpoint_id):
            phases.step(self._state, event)  # says why: a resume or the lease overtook this wait
            raise InvalidPhase(f"checkpoint {request.checkpoint_id} ended while it was being prepared")
        if settled.done and book.quiet:
            self._apply(phases.Ready(request.checkpoint_id))
        report = msgspec.structs.replace(self._participant.report(), ready=self._state.phase is not Phase.PREPARING)
        self._emit("prepare.replied", request.checkpoint_id, report=lambda: plain(report), live=self._live)
        return PrepareReply(phase=self._state.phase, report=report)

    async def renew(self, request: RenewRequest) -> RenewReply:
        """Keep the lease alive."""
        _, lease = self._times(request)
        self._apply(phases.Renew(request.checkpoint_id, lease))
        assert self._state.lease_until is not None, "an open checkpoint has a lease"
        ahead = self._state.lease_until - anyio.current_time()
        return RenewReply(lease_expires_at=self._ports.clock.wall() + ahead)

    async def commit(self, request: CommitRequest) -> CommitReply:
        """Export the scope and write it; joins a write that is still running (INV-49)."""
        until, lease = self._times(request)
        target = Target(directory_of(request), scope_of(request.episode_ids), request.stop)

        def begin() -> phases.Event:
            restarts = self._participant.restarts() & {episode.key for episode in target.scope}
            return phases.Commit(request.checkpoint_id, target, lease, tuple(sorted(restarts)))

        await self._locked(until, begin)
        return await self._committed.get(until - anyio.current_time(), "commit")

    async def restore(self, request: RestoreRequest) -> RestoreReply:
        """Import the scope under the next attempts; admission stays closed until resume (INV-60, INV-66)."""
        until, lease = self._times(request)
        target = Target(directory_of(request), request.continued())
        refuse_late(until, "restore")
        await self._locked(
            until, lambda: phases.Restore(request.checkpoint_id, target, self._admission.book.served, lease)
        )
        return await self._imports.result.get(until - anyio.current_time(), "restore")

    async def resume(self, request: ResumeRequest) -> ResumeReply:
        """End this checkpoint or restore, in whatever phase it is; repeated, it stays ended.

        Raises:
            StaleCheckpoint: it is a restore of which nothing is left, and has ended.
        """
        until = anyio.current_time() + self._budget(request)
        phases.refuse_lapsed(self._state, request.checkpoint_id)
        await self._locked(until, lambda: phases.Resume(request.checkpoint_id))
        phases.refuse_lapsed(self._state, request.checkpoint_id)
        if self._abort.publishing and not self._committed.done:
            # The manifest may be appearing right now: say "resumed" only once nothing is written any more (INV-50).
            await self._committed.wait(until - anyio.current_time(), "the end of a write")
        with anyio.move_on_at(until):
            await self._imports.until_idle()
        if self._imports.running:
            raise DeadlineExceeded("what the restore still reads has not come back; it opens when that has: repeat")
        self._emit("resume.done", request.checkpoint_id)
        return ResumeReply(phase=Phase.IDLE)

    async def retire(self, request: RetireRequest) -> RetireReply:
        """Mark, stop, wait until the work has left, free (INV-31 … INV-34)."""
        episodes = scope_of(request.episode_ids)
        until = anyio.current_time() + self._budget(request)
        self._apply(phases.Retire(episodes))
        # The mark stands before anything that the deadline limits, the lock included.
        self._admission.stop(episodes)
        self._ports.tracer.emit("retire.marked", episodes=keys(episodes))
        await self._ports.probe("retire.marked")
        async with self._serialized(until, "retire"):
            self._apply(phases.Retire(episodes))  # a checkpoint may have opened meanwhile
            if self._state.given_up:
                await self._imports.result.wait(until - anyio.current_time(), "the end of an import")
                self._admission.stop(episodes)  # an import forgets what was refused before it
            with anyio.move_on_at(until):
                await self._admission.until(lambda: not self._admission.book.remaining(episodes))
            if self._admission.book.remaining(episodes):
                left = {ticket.episode for ticket in self._admission.book.remaining(episodes)}
                raise DeadlineExceeded(f"still stopping {', '.join(keys(left)[:5])}; late calls are refused: repeat")
            self._ports.tracer.emit("retire.freeing", episodes=keys(episodes), live=self._live)
            self._participant.free(episodes)
            with within(until, "retire"):
                await self._durably(self._participant.release(episodes))
            self._ports.tracer.emit(
                "retire.done",
                episodes=keys(episodes),
                remaining=lambda: [ticket.episode for ticket in self._admission.book.remaining(episodes)],
                live=self._live,
                marks=self._admission.book.marks.highest,
            )
        return RetireReply(retired=tuple(keys(episodes)))

    async def forget(self, request: ForgetRequest, ended: Ended | None = None) -> ForgetReply:
        """Drop the marks and everything else kept per rollout (INV-37, INV-39); late copies of `ended` are refused."""
        rollout_ids = rollouts_of(request)
        until = anyio.current_time() + self._budget(request)
        async with self._serialized(until, "forget"):
            self.refuse_while_open()
            marks = self._admission.book.marks.highest()
            retired = [EpisodeId(name, marks[name]) for name in rollout_ids if name in marks]
            with within(until, "forget"):
                await self._durably(self._participant.release_forgotten(rollout_ids, retired))
            self._admission.book.marks.forget(rollout_ids)
            self._participant.forget(rollout_ids)
            if ended is not None:
                self._admission.forgotten.add(rollout_ids, ended, anyio.current_time())
            attempt, marks = (None if ended is None else ended.attempt), self._admission.book.marks.highest()
            self._ports.tracer.emit("forget.done", rollouts=list(rollout_ids), ended=attempt, marks=marks)
        return ForgetReply(forgotten=rollout_ids)

    @asynccontextmanager
    async def between_checkpoints(self, until: float, doing: str) -> AsyncIterator[None]:
        """For further operations on what the participant keeps: no checkpoint is open, and none opens in the body.

        Raises:
            InvalidPhase: one is.
            DeadlineExceeded: another control call was still running, or the body.
        """
        async with self._serialized(until, doing):
            self.refuse_while_open()
            with within(until, doing):
                yield

    def deadline(self, request: RetireRequest | SweepRequest) -> float:
        """Of an operation between checkpoints, on the monotonic clock."""
        return anyio.current_time() + self._budget(request)

    def refuse_while_open(self) -> None:
        """Raises `InvalidPhase` while a checkpoint is open."""
        if (refusal := phases.refuse_forget(self._state)) is not None:
            raise refusal

    # Carrying out.

    def _emit(self, event: str, checkpoint_id: str, **fields: object) -> None:
        self._ports.tracer.emit(event, checkpoint_id=checkpoint_id, **fields)

    async def _durably(self, work: Awaitable[None]) -> None:
        try:
            await work
        except OSError as error:
            raise Unavailable(f"{self._participant.kind} {self._participant.instance}: {error}: repeat") from None

    def _open(self, checkpoint_id: str) -> bool:
        return self._state.checkpoint_id == checkpoint_id

    def _opened(self) -> str:
        assert self._state.checkpoint_id is not None, "the action belongs to an open checkpoint"
        return self._state.checkpoint_id

    def _live(self) -> list[str]:
        return keys(self._participant.live())

    def _target(self) -> Target:
        assert self._state.target is not None, "an export and an import have a target"
        return self._state.target

    def _budget(self, request: CheckpointRequest | RetireRequest | ForgetRequest | SweepRequest) -> float:
        return checked_budget(request, self._ports.clock.wall(), BUDGET_MAX_S)

    def _times(self, request: CheckpointRequest) -> tuple[float, float]:
        """Deadline and end of the lease, on the monotonic clock. Raises `StaleCheckpoint` first of all."""
        until = anyio.current_time() + self._budget(request)
        phases.refuse_stale(self._state, request.checkpoint_id)
        return until, until + self._grace_s

    def _serialized(self, until: float, doing: str) -> Serialized:
        return Serialized(self._serial, until, doing)

    async def _locked(self, until: float, event: Callable[[], phases.Event]) -> None:
        async with self._serialized(until, "the transition"):
            self._apply(event())

    def _apply(self, event: phases.Event) -> None:
        before, opened = self._state.phase, self._state.checkpoint_id
        try:
            self._state, actions = phases.step(self._state, event)
        except CheckpointConflict as error:
            left_s = max((self._state.lease_until or 0.0) - anyio.current_time(), 0.0)
            raise CheckpointConflict(f"{error.detail}, restart this server, or wait {left_s:.0f} s") from None
        if self._state.phase is not before or actions:
            self._ports.tracer.emit(
                "phase",
                kind=str(self._participant.kind),
                instance=self._participant.instance,
                was=str(before),
                now=str(self._state.phase),
                checkpoint_id=self._state.checkpoint_id,
                why=type(event).__name__,
            )
        for action in actions:
            self._act(action)
        if before in phases.IMPORTING and self._state.phase is Phase.IDLE:
            self._ports.tracer.emit(
                "restore.ended",
                restore_id=opened,
                targets=lambda: keys(self._imports.installs),
                live=self._live,
                marks=self._admission.book.marks.highest,
            )
        if self._state.phase is not before:
            self._admission.notify()

    def _act(self, action: Action) -> None:
        match action:
            case Action.CLOSE:
                self._admission.close()
                self._tasks.start_soon(self._watch_lease, self._opened())
            case Action.OPEN:
                self._settling.cancel()
                if self._imports.running:
                    self._tasks.start_soon(self._open_after_import)
                else:
                    self._admission.open()
            case Action.SETTLE:
                self._settled, self._settling = Outcome(), anyio.CancelScope()
                self._tasks.start_soon(self._settle, self._opened(), self._settled, self._settling)
            case Action.EXPORT:
                self._committed, self._abort = Outcome(), AbortFlag()
                self._last_write = LastWrite(self._opened(), self._target().directory, self._committed)
                self._tasks.start_soon(self._export, self._opened(), self._target(), self._committed, self._abort)
            case Action.STOP_WRITING:
                self._abort.abort()
            case Action.IMPORT:
                restore_id = self._opened()
                self._imports.begin(restore_id, self._target(), lambda well: self._imported(restore_id, well))
            case Action.DISCARD:
                self._imports.give_up()
            case Action.EXPIRED:
                self._ports.tracer.emit("lease.expired", instance=self._participant.instance)

    async def _open_after_import(self) -> None:
        """What an import that was ended still does to state and files is not to meet those who come next (INV-66)."""
        await self._imports.until_idle()
        if self._state.phase is Phase.IDLE and self._admission.book.closed:
            self._admission.open()

    async def _watch_lease(self, checkpoint_id: str) -> None:
        while self._open(checkpoint_id):
            assert self._state.lease_until is not None, "an open checkpoint has a lease"
            with anyio.move_on_at(self._state.lease_until):
                await self._admission.until(lambda: not self._open(checkpoint_id))
            self._apply(phases.LeaseCheck(anyio.current_time()))

    async def _settle(self, checkpoint_id: str, outcome: Outcome[None], scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await self._participant.settle()
        except Exception as error:
            if self._participant.broken(error):
                raise
            outcome.fail(error if isinstance(error, ProtocolError) else Unavailable(f"cannot settle: {error!r}"))
            self._apply(phases.PrepareRaised(checkpoint_id))
        else:
            outcome.succeed(None)
            self._admission.notify()

    def _imported(self, restore_id: str, well: bool) -> None:
        self._apply(phases.Installed(restore_id) if well else phases.ImportFailed(restore_id))

    async def _export(
        self, checkpoint_id: str, target: Target, outcome: Outcome[CommitReply], abort: AbortFlag
    ) -> None:
        try:
            reply = await export_scope(self._participant, checkpoint_id, target, abort)
        except Exception as error:  # an author's hook may raise anything; this checkpoint has failed, the server lives
            if self._participant.broken(error):
                raise
            failure = ExportFailed(f"{self._participant.kind} {self._participant.instance}: {error}")
            self._emit("commit.failed", checkpoint_id, why=failure.detail)
            self._apply(phases.CommitFailed(checkpoint_id, failure.detail))
            outcome.fail(failure)
            return
        self._apply(phases.CommitWritten(checkpoint_id))
        outcome.succeed(reply)
