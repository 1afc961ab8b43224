"""Coordination: drives the participants of a gym through a checkpoint, a restore, a retire, in the right order.

Keeps nothing durable and decides nothing that `gym_ckpt.core.coordination` can. Every call is repeated until its
deadline: operations are idempotent, so a lost reply is never a lost checkpoint. What was opened is always resumed,
shielded from cancellation and bounded in time; a participant that cannot be reached then ends by its lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from gym_ckpt.controller.calls import ControlCalls, Times, WayOut, each, is_stale, to_what
from gym_ckpt.controller.opened import OpenCheckpoint
from gym_ckpt.core import coordination as rules
from gym_ckpt.core.coordination import Committed, Member, Stages
from gym_ckpt.core.forgotten import Ended
from gym_ckpt.errors import CoordinationError, NotCheckpointable, ParticipantFailed, RestoreLapsed
from gym_ckpt.limits import DISCOVERY_BUDGET_S, RESUME_BUDGET_S, RETIRE_BUDGET_S, WAITING_SAID_AFTER_S
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.asgi import of_run
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire.messages import (
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
    refs,
)


class Coordination:
    """The participants of one gym, as its controller drives them.

    Args:
        servers: name → base url of every configured server, participants or not.
        token: the gym's control token.
    """

    def __init__(self, servers: Mapping[str, str], token: str, ports: Ports) -> None:
        self._servers = dict(servers)
        self._calls = ControlCalls(token, ports)
        self._ports = ports
        self._members: tuple[Member, ...] = ()
        self._way_out = WayOut()
        self._restored: tuple[str, frozenset[EpisodeId]] = ("", frozenset())
        """The last restore that stood, and the attempts that it installed: until it is resumed it may lapse."""
        self.saved: Mapping[str, int] = {}
        """Work that the last restore saved, as far as its participants know: `model_calls`, `tokens`."""

    def hurry(self, rest_s: float) -> None:
        """The controller ends: undoing what was begun gets `rest_s` seconds at a time from now on, under way or not."""
        self._way_out.hurry(rest_s)

    def waits(self) -> str:
        """For people: servers that have let a call wait for a while, and which; or nothing. Not those that failed one:
        they have lines of their own."""
        waiting = self._calls.waiting
        return to_what({name: to for name, to in waiting.silent(WAITING_SAID_AFTER_S).items() if name not in waiting})

    def cut_off(self) -> str:
        """For people: servers whose answers the last checkpoint could not wait for, and to what; or nothing."""
        return to_what(self._calls.waiting.cut_off)

    async def discover(
        self, say: Callable[[str], object] | None = None, budget_s: float = DISCOVERY_BUDGET_S
    ) -> tuple[Member, ...]:
        """Ask every server for its status. A 404 takes no part; whoever cannot be asked makes checkpoints unsafe.

        `say`: gets a line now and then that names servers which are waited for, here and in every later call.

        Raises:
            NotCheckpointable: a server cannot be asked in time, or no policy model takes part.
        """
        waiting = self._calls.waiting
        waiting.say = say or waiting.say
        try:
            until = anyio.current_time() + budget_s
            found = await each(list(self._servers.items()), lambda server: self._calls.member(server, until))
        except ParticipantFailed as error:
            refused = error.server not in waiting
            who = f"{error.server} ({error.error})" if refused else f"{waiting.words()}{waiting.mend()}"
            raise NotCheckpointable(f"no status from {who}") from None
        members = tuple(member for member in found if member is not None)
        if not any(member.kind is Kind.MODEL for member in members):
            raise NotCheckpointable("no policy-model server takes part in checkpoints: set `checkpoint` on the gym")
        self._members = members
        return members

    async def anybody(self, budget_s: float) -> bool:
        """Whether any server answers, in so many seconds."""
        return await self._calls.anybody(self._servers.items(), anyio.current_time() + budget_s)

    async def statuses(self, budget_s: float = DISCOVERY_BUDGET_S) -> dict[str, Status]:
        """The status of every participant, by server name. Raises `ParticipantFailed`."""
        return await self._statuses(self._members or await self.discover(), anyio.current_time() + budget_s)

    async def _statuses(self, members: Sequence[Member], until: float) -> dict[str, Status]:
        replies = await each(members, lambda member: self._calls.status(member.name, member.url, until))
        return {member.name: status for member, status in zip(members, replies, strict=True) if status is not None}

    @asynccontextmanager
    async def prepared(
        self,
        checkpoint_id: str,
        budget_s: float,
        abandoned: Callable[[], bool] = lambda: False,
        prepare_s: float | None = None,
    ) -> AsyncIterator[OpenCheckpoint]:
        """Prepare every participant; while the body runs, keep the lease; on the way out always resume.

        Args:
            budget_s: seconds for the whole checkpoint; the commit gets what prepare has left.
            prepare_s: seconds for the prepare alone, where it may not have all of them.
            abandoned: asked on the way out; True leaves everything to its lease, for a controller that must end now.

        Raises:
            NotReady: some participant was not ready in time; everything has been resumed.
            CoordinationError: a participant failed; everything has been resumed.
        """
        self._calls.waiting.cut_off.clear()
        until = anyio.current_time() + budget_s
        await self.discover(budget_s=min(budget_s, DISCOVERY_BUDGET_S))
        opened = OpenCheckpoint(self.commit, checkpoint_id, until)
        ready_by = until if prepare_s is None else min(until, anyio.current_time() + prepare_s)
        async with Tasks() as renewing:
            try:
                await self._prepare(opened, ready_by)
                renewing.start_soon(self._keep_lease, checkpoint_id, budget_s)
                yield opened
            finally:
                renewing.cancel_scope.cancel()
                if not (opened.stays_closed or abandoned()):
                    with anyio.CancelScope(shield=True):
                        await self._resume_all(checkpoint_id)

    async def restore(
        self, restore_id: str, checkpoint_dir: str, scope: Iterable[EpisodeId], budget_s: float
    ) -> frozenset[EpisodeId]:
        """Restore the scope on every participant, all or nothing (INV-60); everything stays closed until `resume`.

        Returns: the attempts (N+1) that will continue.

        Raises:
            CoordinationError: it failed somewhere; N+1 is retired everywhere, and everything has been resumed.
        """
        if not self._members:
            await self.discover()
        wanted = sorted(set(scope))
        until = anyio.current_time() + budget_s

        def request(times: Times) -> RestoreRequest:
            return RestoreRequest(
                checkpoint_id=restore_id,
                checkpoint_dir=checkpoint_dir,
                episode_ids=refs(wanted),
                deadline_ts=times[0],
                budget_s=times[1],
            )

        done = False
        try:
            replies = await self._calls.of_all(self._members, "restore", request, RestoreReply, until)
            answered = list(zip(self._members, replies, strict=True))
            installed = rules.installed(wanted, answered)
            self.saved = rules.saved(answered)
            self._restored = (restore_id, installed)
            done = True
            return installed
        finally:
            if not done:
                with anyio.CancelScope(shield=True):
                    await self._undo_restore(restore_id, [episode.next() for episode in wanted])

    async def resume(self, checkpoint_id: str) -> None:
        """End a checkpoint or a restore everywhere.

        Raises:
            RestoreLapsed: a participant's lease had ended this restore before: its attempts have been retired
                everywhere, as after a restore that failed.
            ParticipantFailed: the first that could not be resumed in time; the others were, and its lease will end it.
        """
        failures = await self._resume_all(checkpoint_id)
        restored, installed = self._restored
        for failure in failures if restored == checkpoint_id else ():
            if is_stale(failure):
                self._ports.tracer.emit("coordination.restore_lapsed", restore_id=checkpoint_id, why=str(failure))
                with anyio.CancelScope(shield=True):
                    await self._undo_restore(checkpoint_id, sorted(installed))
                raise RestoreLapsed(f"{failure}: nothing of it is continued")
        if failures:
            raise failures[0]

    async def retire(self, episodes: Iterable[EpisodeId], budget_s: float = RETIRE_BUDGET_S) -> None:
        """Stop and free these attempts, and earlier ones, everywhere. Only while no checkpoint is open.

        Raises:
            ParticipantFailed: the first that did not, after the others have; repeat the whole.
        """
        failures = await self._retire_all(sorted(set(episodes)), budget_s)
        if failures:
            raise failures[0][1]

    async def forget(
        self, rollout_ids: Iterable[str], budget_s: float = RETIRE_BUDGET_S, *, ended: Ended | None = None
    ) -> None:
        """Stop refusing late calls of these rollouts, and drop what is kept per rollout. Raises as `retire`.

        `ended`: all calls for them said that they were this run's, and this attempt was their last: copies of such
        calls are refused for `FORGOTTEN_S` more, since a network may deliver one again when its rollout is over.
        """
        wanted = sorted(set(rollout_ids))

        def request(times: Times) -> ForgetRequest:
            return ForgetRequest(rollout_ids=wanted, deadline_ts=times[0], budget_s=times[1])

        said = of_run(None if ended is None else ended.text)

        async def one(member: Member, until: float) -> None:
            await self._calls.call(member, "forget", request, ForgetReply, until, said)

        failures = await self._in_stages(rules.RETIRE, one, budget_s) if wanted else []
        if failures:
            raise failures[0][1]

    # Steps.

    async def _prepare(self, opened: OpenCheckpoint, ready_by: float) -> None:
        def request(times: Times) -> PrepareRequest:
            return PrepareRequest(checkpoint_id=opened.checkpoint_id, deadline_ts=times[0], budget_s=times[1])

        restarts: set[EpisodeId] = set()
        for stage in rules.stages(rules.PREPARE, self._members):
            replies = await each(
                stage, lambda member: self._calls.call(member, "prepare", request, PrepareReply, ready_by)
            )
            if (not_ready := rules.not_ready(stage, [reply.report for reply in replies])) is not None:
                raise not_ready
            restarts |= {EpisodeId.from_key(key) for reply in replies for key in reply.report.restarts}
            await self._ports.probe("coordination.stage_prepared")
        environments = [member for member in self._members if member.kind is Kind.ENVIRONMENT]
        statuses = await self._statuses(environments, opened.until)
        opened.restarts = frozenset(restarts)
        opened.live = frozenset(EpisodeId.from_key(key) for status in statuses.values() for key in status.live)

    async def commit(
        self, opened: OpenCheckpoint, checkpoint_dir: str, scope: Iterable[EpisodeId], stop: bool
    ) -> Committed:
        """Commit on every participant; see `OpenCheckpoint.commit`."""
        wanted = sorted(set(scope))

        def request(times: Times) -> CommitRequest:
            return CommitRequest(
                checkpoint_id=opened.checkpoint_id,
                checkpoint_dir=checkpoint_dir,
                episode_ids=refs(wanted),
                stop=stop,
                deadline_ts=times[0],
                budget_s=times[1],
            )

        replies = await self._calls.of_all(self._members, "commit", request, CommitReply, opened.until)
        return rules.committed(wanted, list(zip(self._members, replies, strict=True)))

    async def _keep_lease(self, checkpoint_id: str, budget_s: float) -> None:
        """Renew often enough that the lease of a checkpoint in progress never runs out."""

        def request(times: Times) -> RenewRequest:
            return RenewRequest(checkpoint_id=checkpoint_id, deadline_ts=times[0], budget_s=times[1])

        async def one(member: Member) -> None:
            try:
                until = anyio.current_time() + budget_s
                await self._calls.call(member, "renew", request, RenewReply, until)
            except CoordinationError as error:
                self._ports.tracer.emit("coordination.renew_failed", server=member.name, why=str(error))

        while True:
            await anyio.sleep(budget_s / 3)
            await each(self._members, one)

    async def _undo_restore(self, restore_id: str, installed: Sequence[EpisodeId]) -> None:
        """Retire N+1 everywhere, then resume: no server opens that holds N+1 or would serve it (INV-60).

        Whoever has retired N+1 refuses it from then on, whatever becomes of the others. Whoever cannot be asked stays
        closed: its lease discards and retires N+1 before it opens, and one that starts anew holds nothing. Once its id
        is resumed no copy of the restore begins any more; a last retire finds what one may have done just before.
        """
        unheard: set[str] = set()

        async def retire(budget_s: float) -> list[tuple[Member, CoordinationError]]:
            return await self._retire_all(installed, budget_s, unheard)

        failures = await self._way_out.take(retire, RETIRE_BUDGET_S)
        if failures is None:
            return  # nobody knows who holds N+1 still: every lease does it
        for member, error in failures:
            self._ports.tracer.emit("coordination.undo_failed", server=member.name, why=str(error))
            unheard.add(member.name)
        failed = await self._resume_all(restore_id, unheard, undoing=True)
        unheard.update(each.server for each in failed if isinstance(each, ParticipantFailed) and not is_stale(each))
        await self._way_out.take(retire, RETIRE_BUDGET_S)

    async def _resume_all(
        self, checkpoint_id: str, stays_closed: Collection[str] = (), *, undoing: bool = False
    ) -> list[CoordinationError]:
        """Resume stage by stage, but for the servers named, going on past who fails; what failed.

        Whoever did not answer when last asked keeps nobody else waiting once the controller hurries. A restore that has
        lapsed somewhere opens no further stage, unless it is being undone.
        """
        resumed = [member for member in self._members if member.name not in stays_closed]
        left = {member.name for member in resumed}

        async def everybody(budget_s: float) -> list[CoordinationError]:
            silent = self._calls.waiting.silent() if self._way_out.hurried else {}
            apart = [[member for member in resumed if (member.name in silent) is mute] for mute in (False, True)]
            groups = [group for group in apart if group]
            found = await each(groups, lambda group: self._resume_stages(checkpoint_id, group, budget_s, left, undoing))
            return [error for errors in found for error in errors]

        failures = await self._way_out.take(everybody, RESUME_BUDGET_S)
        if failures is None:
            for name in sorted(left):
                self._ports.tracer.emit("coordination.resume_failed", server=name, why="left to its lease by a stop")
        return failures or []

    async def _resume_stages(
        self, checkpoint_id: str, resumed: Sequence[Member], budget_s: float, left: set[str], undoing: bool
    ) -> list[CoordinationError]:
        def request(times: Times) -> ResumeRequest:
            return ResumeRequest(checkpoint_id=checkpoint_id, deadline_ts=times[0], budget_s=times[1])

        async def one(member: Member) -> CoordinationError | None:
            failed: CoordinationError | None = None
            try:
                until = anyio.current_time() + budget_s
                await self._calls.call(member, "resume", request, ResumeReply, until)
            except CoordinationError as error:
                if not is_stale(error):
                    self._ports.tracer.emit("coordination.resume_failed", server=member.name, why=str(error))
                    return error
                failed = error  # it is idle, and open
            left.discard(member.name)
            return failed

        failures: list[CoordinationError] = []
        for stage in rules.stages(rules.RESUME, resumed):
            failures += [error for error in await each(stage, one) if error is not None]
            if not undoing and any(map(is_stale, failures)):
                break
        return failures

    async def _retire_all(
        self, wanted: Sequence[EpisodeId], budget_s: float, unheard: Collection[str] = ()
    ) -> list[tuple[Member, CoordinationError]]:
        """Retire stage by stage, but for servers that are not heard, going on past who fails; who failed, and how."""

        def request(times: Times) -> RetireRequest:
            return RetireRequest(episode_ids=refs(wanted), deadline_ts=times[0], budget_s=times[1])

        async def one(member: Member, until: float) -> None:
            await self._calls.call(member, "retire", request, RetireReply, until)

        return await self._in_stages(rules.RETIRE, one, budget_s, unheard) if wanted else []

    async def _in_stages(
        self, order: Stages, one: Callable[[Member, float], Awaitable[None]], budget_s: float, but: Collection[str] = ()
    ) -> list[tuple[Member, CoordinationError]]:
        if not self._members:
            await self.discover()
        until = anyio.current_time() + budget_s
        failures: list[tuple[Member, CoordinationError]] = []

        async def guarded(member: Member) -> None:
            try:
                await one(member, until)
            except CoordinationError as error:
                failures.append((member, error))

        for stage in rules.stages(order, [member for member in self._members if member.name not in but]):
            await each(stage, guarded)
        return failures
