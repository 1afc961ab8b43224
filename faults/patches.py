"""The patches behind `faults.bugs`: what is put in place of what.

Most are one change in the text of one function, as a slip of a programmer would be; the function must still hold the
text, or planting fails loudly. Knows the implementation from inside.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from gym_ckpt.controller import startup, taking
from gym_ckpt.controller.calls import each
from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.core import phases
from gym_ckpt.core.admission import AdmissionBook, Ticket
from gym_ckpt.core.collection import RowState
from gym_ckpt.core.collection_restart import Restart, plan_restart
from gym_ckpt.core.coordination import Member
from gym_ckpt.core.marks import Marks
from gym_ckpt.errors import CoordinationError
from gym_ckpt.participants import resources
from gym_ckpt.participants.environment import EnvironmentParticipant
from gym_ckpt.participants.gate import GatedCall
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.runtime import importing, transfer
from gym_ckpt.runtime.admission import Admission
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.participant import Record
from gym_ckpt.storage import layout, pruning, publication
from gym_ckpt.storage.abort import AbortFlag
from gym_ckpt.storage.files import replace as replace_file
from gym_ckpt.storage.manifest import SCHEMA_VERSION
from gym_ckpt.storage.pointer import DIGEST, Pointer, collection_digest, read_or_rebuilt
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import RestoreReply, RestoreRequest, RetireReply, RetireRequest, refs, scope_of

Patches = list[tuple[object, str, Any]]
"""Owner, attribute, and what stands there while the bug is planted."""


@dataclass(frozen=True, slots=True)
class Bug:
    """`intent`: what a programmer might get wrong. `ground`: the part of the specification that it breaks."""

    name: str
    intent: str
    ground: str
    patch: Callable[[], Patches]


def unlike(real: Any, value: Any) -> str | None:
    """Why whoever calls `real` cannot call `value`: a bug that only raises `TypeError` proves nothing of the checks."""
    if not inspect.isroutine(real):
        return None
    planted = inspect.signature(value)
    try:
        for needless in (True, False):
            asked = [
                each for each in inspect.signature(real).parameters.values() if needless or each.default is each.empty
            ]
            named = {each.name: None for each in asked if each.kind is each.KEYWORD_ONLY}
            placed = [each.name for each in asked if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
            planted.bind(*placed, **named)
    except TypeError as error:
        return f"{real.__qualname__} is not called like this: {error}"
    return None


def mutated(function: Any, old: str, new: str) -> Any:
    """`function` with one piece of its text replaced. An assertion fails unless it occurs exactly once."""
    source = textwrap.dedent(inspect.getsource(function))
    found = source.count(old)
    assert found == 1, f"{function.__qualname__} holds {old!r} {found} times: mend the planted bug"
    made: dict[str, Any] = {}
    text = "from __future__ import annotations\n" + source.replace(old, new)
    exec(compile(text, f"<planted in {function.__qualname__}>", "exec"), function.__globals__, made)
    return made[function.__name__]


# ------------------------------------------------------------------------------------------------- storage


class _NoDirectoryFsync:
    """A file system on which of all directories only the run's own is ever synced."""

    def __init__(self, fs: FileSystem, run_dir: str) -> None:
        self._fs = fs
        self._run_dir = run_dir

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def fsync_dir(self, path: str) -> None:
        if path == self._run_dir:
            self._fs.fsync_dir(path)


def no_directory_fsync() -> Patches:
    def publish(
        run_dir: str, checkpoint_id: str, collection: dict[str, Any], attempt_token: str, failed: Collection[str] = ()
    ) -> Job[int]:
        job = publication.publish(run_dir, checkpoint_id, collection, attempt_token, failed)
        return lambda fs: job(_NoDirectoryFsync(fs, run_dir))

    return [(taking, "publish", publish)]


def pointer_first() -> Patches:
    def publish(
        run_dir: str, checkpoint_id: str, collection: dict[str, Any], attempt_token: str, failed: Collection[str] = ()
    ) -> Job[int]:
        def job(fs: FileSystem) -> Generator[str, None, int]:
            pointer, _ = read_or_rebuilt(fs, run_dir, failed)
            latest = Pointer(
                schema_version=SCHEMA_VERSION,
                checkpoint_id=checkpoint_id,
                sequence=publication._next_sequence(fs, run_dir, pointer),
                published=[checkpoint_id, *(pointer.published if pointer else [])],
            )
            yield from replace_file(fs, layout.latest(run_dir), latest.encode(), attempt_token)
            whole = {**collection, "checkpoint_id": checkpoint_id, "sequence": latest.sequence}
            whole[DIGEST] = collection_digest(whole)
            path = layout.collection(layout.checkpoint_dir(run_dir, checkpoint_id))
            yield from replace_file(fs, path, json.dumps(whole) + b"\n", attempt_token)
            return latest.sequence

        return job

    return [(taking, "publish", publish)]


def ignore_abort() -> Patches:
    return [(AbortFlag, "check", lambda self: None)]


def prune_more() -> Patches:
    return [(taking, "prune", mutated(pruning.prune, "[:keep]}", "[: keep - 1]}"))]


# ------------------------------------------------------------------------------------------------- admission, marks


def admit_while_closed() -> Patches:
    old = "State.WAITING if self.closed else State.PARKED"
    return [(AdmissionBook, "arrive", mutated(AdmissionBook.arrive, old, "State.PARKED"))]


def deliver_held_responses() -> Patches:
    new = "None if self.admission.book.closed else await self.work.begin()"
    return [(GatedCall, "start", mutated(GatedCall.start, "await self.work.begin()", new))]


def row_before_leave() -> Patches:
    old = """    await self.work.begin()
    if entry is None:
        self._told_error()
    else:
        await self.book.book(entry)
"""
    new = """    if entry is not None:
        await self.book.book(entry)
    await self.work.begin()
    if entry is None:
        self._told_error()
"""
    return [(GatedCall, "start", mutated(GatedCall.start, old, new))]


def mark_after_stop() -> Patches:
    real, real_mark = ControlPlane.retire, AdmissionBook.mark

    def mark(self: AdmissionBook, episodes: Iterable[EpisodeId]) -> list[Ticket]:
        if not getattr(self, "retiring", False):
            return real_mark(self, episodes)
        fresh = [ticket for ticket in self.remaining(sorted(set(episodes))) if not ticket.stopping]
        for ticket in fresh:
            ticket.stopping = True
        return fresh

    async def retire(self: ControlPlane, request: RetireRequest) -> RetireReply:
        book: Any = self._admission.book
        book.retiring = True
        try:
            reply = await real(self, request)
        finally:
            book.retiring = False
        book.marks.mark(scope_of(request.episode_ids))
        return reply

    return [(AdmissionBook, "mark", mark), (ControlPlane, "retire", retire)]


def mark_next() -> Patches:
    real = Marks.mark

    def mark(self: Marks, episodes: Iterable[EpisodeId]) -> None:
        real(self, [episode.next() for episode in episodes])

    return [(Marks, "mark", mark)]


# ------------------------------------------------------------------------------------------------- phases, restore


def stay_closed() -> Patches:
    return [(Admission, "open", lambda self: None)]


def no_lease() -> Patches:
    async def watch(self: ControlPlane, checkpoint_id: str) -> None:
        return

    return [(ControlPlane, "_watch_lease", watch)]


def retire_any_time() -> Patches:
    return [(phases, "refuse_retire", lambda state, episodes: None)]


def restore_open() -> Patches:
    return [(phases, "_restore", mutated(phases._restore, "(Action.CLOSE, Action.IMPORT)", "(Action.IMPORT,)"))]


def keep_later_attempts() -> Patches:
    old = """    participant.free([each for each in participant.live() if each.rollout_id in rollout_ids])
    marks.forget(rollout_ids)
"""
    return [(importing, "import_scope", mutated(transfer.import_scope, old, ""))]


def no_marks_at_restore() -> Patches:
    old = "participant.admission.stop(target.scope)"
    return [(importing, "import_scope", mutated(transfer.import_scope, old, "pass"))]


def no_retire_after_failed_restore() -> Patches:
    async def undo(self: Coordination, restore_id: str, installed: Sequence[EpisodeId]) -> None:
        await self._resume_all(restore_id)

    return [(Coordination, "_undo_restore", undo)]


def believe_half_restore() -> Patches:
    async def restore(
        self: Coordination, restore_id: str, checkpoint_dir: str, scope: Iterable[EpisodeId], budget_s: float
    ) -> frozenset[EpisodeId]:
        await self.discover()
        wanted = sorted(set(scope))
        until = anyio.current_time() + budget_s

        def request(times: tuple[float, float]) -> RestoreRequest:
            return RestoreRequest(
                checkpoint_id=restore_id,
                checkpoint_dir=checkpoint_dir,
                episode_ids=refs(wanted),
                deadline_ts=times[0],
                budget_s=times[1],
            )

        async def one(member: Member) -> None:
            try:
                await self._calls.call(member, "restore", request, RestoreReply, until)
            except CoordinationError:
                return

        await each(self._members, one)
        return frozenset(episode.next() for episode in wanted)

    return [(Coordination, "restore", restore)]


# ------------------------------------------------------------------------------------------------- what is kept


def export_everything() -> Patches:
    real = EnvironmentParticipant.export

    async def export(self: EnvironmentParticipant, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return await real(self, frozenset(self.live()), stop)

    return [(EnvironmentParticipant, "export", export)]


def no_idempotency() -> Patches:
    return [(resources, "IDEMPOTENCY_KEY", "x-nobody-sends-this")]


def drop_survivors() -> Patches:
    def plan(*args: Any, **kwargs: Any) -> Restart:
        found = plan_restart(*args, **kwargs)
        return replace(found, rows=tuple(row for row in found.rows if row.state is not RowState.RETIRING))

    return [(startup, "plan_restart", plan)]


def forget_finished() -> Patches:
    def plan(rollouts: Any, *, finished: Any, **kwargs: Any) -> Restart:
        return plan_restart(rollouts, finished={}, **kwargs)

    return [(startup, "plan_restart", plan)]
