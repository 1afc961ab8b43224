"""Patches of what calls meet: gate, readiness, agent sessions, tools, strangers. As in `faults.patches`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import msgspec

from faults.patches import Bug, Patches, mutated
from gym_ckpt.controller.checkpointer import Checkpointer
from gym_ckpt.core import phases
from gym_ckpt.core.admission import AdmissionBook, State, Ticket
from gym_ckpt.core.forgotten import Forgotten
from gym_ckpt.participants.agent import AgentParticipant
from gym_ckpt.participants.environment import EnvironmentParticipant, _Episode
from gym_ckpt.participants.gate import GatedCall
from gym_ckpt.participants.model import ModelParticipant
from gym_ckpt.participants.resources import ResourcesParticipant
from gym_ckpt.ports import Send
from gym_ckpt.runtime import asgi, install
from gym_ckpt.runtime.admission import Entering
from gym_ckpt.runtime.asgi import Request
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.ledger import CaptureLedger
from gym_ckpt.runtime.participant import Record
from gym_ckpt.storage.ledger import rows
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.sse import StartDetector

# ------------------------------------------------------------------------------------------------- readiness


def waiting_outlive_callers() -> Patches:
    old, new = "await self._gone()", "await anyio.sleep_forever()"
    return [(Entering, "_until_admitted", mutated(Entering._until_admitted, old, new))]


def wait_for_calls() -> Patches:
    real = ModelParticipant.settle

    async def settle(self: ModelParticipant) -> None:
        await real(self)
        await self.admission.until(lambda: not self.admission.book.counts()["parked"])

    return [(ModelParticipant, "settle", settle)]


def parked_while_sending() -> Patches:
    old = "        await self.book.book(entry)\n"
    return [(GatedCall, "start", mutated(GatedCall.start, old, old + "    self.work.park()\n"))]


def ready_at_work() -> Patches:
    return [(AdmissionBook, "quiet", property(lambda self: True))]


def open_after_export() -> Patches:
    real = ModelParticipant.export

    async def export(self: ModelParticipant, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        records = await real(self, scope, stop)
        self.admission.open()
        return records

    return [(ModelParticipant, "export", export)]


def failed_export_again() -> Patches:
    old = "return replace(state, export_failed=event.reason), ()"
    return [(phases, "step", mutated(phases.step, old, "return replace(state, target=None), ()"))]


def signal_forgotten() -> Patches:
    old = "            self._conclude(stopping, await self._take())\n"
    return [(Checkpointer, "run", mutated(Checkpointer.run, old, old + "            interrupts.checkpoint = False\n"))]


def parked_time_charged() -> Patches:
    def pause(self: _Episode) -> None:
        if self.limit.deadline != math.inf:
            self._left_s = self.limit.deadline - anyio.current_time()

    def go_on(self: _Episode) -> None:
        if self.limit.deadline == math.inf:
            self.limit.deadline = anyio.current_time() + self._left_s

    return [(_Episode, "pause", pause), (_Episode, "go_on", go_on)]


# ------------------------------------------------------------------------------------------------- gate


def keep_alives_start() -> Patches:
    old = "elif byte == _COLON and not self._in_blank:"
    return [(StartDetector, "starts", mutated(StartDetector.starts, old, "elif False:"))]


def malformed_passes() -> Patches:
    old = "await respond(send, answer_error(error))"
    context = mutated(asgi.episode_context, old, "await app(scope, receive, send)")
    return [(install, "episode_context", context)]


def untagged_wait() -> Patches:
    real = ModelParticipant.generate

    async def generate(self: ModelParticipant, request: Request, send: Send) -> None:
        while request.episode is None and self.admission.book.closed:
            await self.admission._opened.wait()
        await real(self, request, send)

    return [(ModelParticipant, "generate", generate)]


def ledger_any_time() -> Patches:
    between = mutated(inspect.unwrap(ControlPlane.between_checkpoints), "self.refuse_while_open()", "pass")
    return [(ControlPlane, "between_checkpoints", between)]


def fence_unseen() -> Patches:
    old = "return Appended.FENCED if there(fs, path_of(directory, episode, Ending.FENCE)) else None"
    return [(rows, "_refused", mutated(rows._refused, old, "return None"))]


def failed_delete_settled() -> Patches:
    old = "self.pending.settled([*done.deleted, *done.started])"
    new = "self.pending.settled([*done.deleted, *done.started, *done.failed])"
    return [(CaptureLedger, "discard_out_of_scope", mutated(CaptureLedger.discard_out_of_scope, old, new))]


# ------------------------------------------------------------------------------------------------- retire


def waiting_outlive_retire() -> Patches:
    def remaining(self: AdmissionBook, episodes: Iterable[EpisodeId]) -> list[Ticket]:
        return [ticket for ticket in real(self, episodes) if ticket.state is not State.WAITING]

    real = AdmissionBook.remaining
    return [(AdmissionBook, "remaining", remaining)]


def retire_without_waiting() -> Patches:
    old = """        with anyio.move_on_at(until):
            await self._admission.until(lambda: not self._admission.book.remaining(episodes))
        if self._admission.book.remaining(episodes):
"""
    return [(ControlPlane, "retire", mutated(ControlPlane.retire, old, "        if False:\n"))]


def cancel_again() -> Patches:
    def mark(self: AdmissionBook, episodes: Iterable[EpisodeId]) -> list[Ticket]:
        wanted = sorted(set(episodes))
        self.marks.mark(wanted)
        found = self.remaining(wanted)
        for ticket in found:
            ticket.stopping = True
        return found

    return [(AdmissionBook, "mark", mark)]


def late_copies_begun() -> Patches:
    return [(Forgotten, "refuses", lambda self, episode, run, now: False)]


def marks_outlive_forget() -> Patches:
    old = "        self._admission.book.marks.forget(rollout_ids)\n"
    return [(ControlPlane, "forget", mutated(ControlPlane.forget, old, ""))]


# ------------------------------------------------------------------------------------------------- agent, environment


def park_in_mid_answer() -> Patches:
    async def started(self: AgentParticipant, calling: Any) -> frozenset[str]:
        return frozenset()

    return [(AgentParticipant, "_started", started)]


def parked_for_good() -> Patches:
    return [(AgentParticipant, "_unpark", lambda self, closed: None)]


def broken_tool_restored() -> Patches:
    old = "session.unsound = True"
    return [(ResourcesParticipant, "call_tool", mutated(ResourcesParticipant.call_tool, old, "pass"))]


def tool_calls_replay() -> Patches:
    old = "content, revision = await self._call_tool(session, tool)"
    new = "work.park(); content, revision = await self._call_tool(session, tool); await work.begin()"
    return [(AgentParticipant, "_step", mutated(AgentParticipant._step, old, new))]


def session_one_call_back() -> Patches:
    real = AgentParticipant.install

    async def install_(self: AgentParticipant, records: Sequence[Record]) -> None:
        await real(self, records)
        for session in self._sessions.values():
            state = session.state
            if not state.calls:
                continue
            last = max(at for at, message in enumerate(state.messages) if message["role"] == "assistant")
            session.state = msgspec.structs.replace(
                state,
                messages=state.messages[:last],
                calls=state.calls[:-1],
                pending=(),
                tool_steps=state.tool_steps - (len(state.messages) - last - 1),
                finish_reason=None,
            )

    return [(AgentParticipant, "install", install_)]


def tokens_in_records() -> Patches:
    real = AgentParticipant.export

    async def export(self: AgentParticipant, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        found = await real(self, scope, stop)
        for record in found:
            record.state["state"]["messages"].append({"role": "assistant", "token_ids": [1, 2, 3]})
        return found

    return [(AgentParticipant, "export", export)]


def tools_done_again_at_restore() -> Patches:
    real = ResourcesParticipant.install

    async def install_(self: ResourcesParticipant, records: Sequence[Record]) -> None:
        await real(self, records)
        for record in records:
            session = self._sessions[record.state["session_id"]]
            if session.revision:
                await self._effect(session, "count_items", {"item": "apple"}, None)

    return [(ResourcesParticipant, "install", install_)]


def errors_become_rows() -> Patches:
    old = 'return RunReply("failed", reason=str(error) or repr(error))'
    new = 'return RunReply("finished", result={"reward": 0.0, "messages": [], "calls": [], "finish_reason": None})'
    return [(EnvironmentParticipant, "_to_the_end", mutated(EnvironmentParticipant._to_the_end, old, new))]


def errors_not_held() -> Patches:
    old = "        await self.work.begin()\n        self._told_error()\n"
    return [(GatedCall, "refuse", mutated(GatedCall.refuse, old.replace("        ", "    "), ""))]


BUGS: tuple[Bug, ...] = (
    Bug(
        "errors-not-held",
        "that there is no answer is said while admission is closed",
        "INV-11",
        errors_not_held,
    ),
    Bug(
        "prepare-waits-for-calls",
        "prepare waits until every call that was admitted has its answer",
        "INV-10",
        wait_for_calls,
    ),
    Bug(
        "parked-while-sending",
        "a call counts as parked again while its answer is being sent",
        "INV-12",
        parked_while_sending,
    ),
    Bug(
        "waiting-calls-outlive-callers",
        "a call that waits to be admitted stays in the books when its caller has gone",
        "INV-14",
        waiting_outlive_callers,
    ),
    Bug("keep-alive-starts-answer", "an answer starts at its first keep-alive", "INV-13", keep_alives_start),
    Bug(
        "parked-in-mid-answer",
        "an agent parks whatever model call is under way without asking whether its answer has begun",
        "INV-15",
        park_in_mid_answer,
    ),
    Bug(
        "parked-after-resume",
        "a session that was parked in a model call at one checkpoint is still parked after it",
        "INV-15",
        parked_for_good,
    ),
    Bug(
        "parked-time-charged",
        "the time that an episode may work runs on while it is parked for a checkpoint",
        "INV-24",
        parked_time_charged,
    ),
    Bug(
        "broken-tool-restored",
        "a session in which a tool broke off after its effect is used again and restored",
        "INV-3",
        broken_tool_restored,
    ),
    Bug(
        "gate-opens-after-export",
        "the gate opens as soon as its rows are exported, to save time",
        "INV-18",
        open_after_export,
    ),
    Bug(
        "malformed-id-untracked",
        "a call with a malformed id is passed on as one that belongs to no rollout",
        "INV-22",
        malformed_passes,
    ),
    Bug(
        "untagged-calls-wait",
        "a judge's calls of the policy model wait while a checkpoint is taken",
        "INV-22",
        untagged_wait,
    ),
    Bug("ready-while-at-work", "a participant says that it is ready while it works", "INV-23", ready_at_work),
    Bug(
        "retire-does-not-wait",
        "a retire replies before the work that it has stopped has left",
        "INV-33",
        retire_without_waiting,
    ),
    Bug("cancelled-again", "a retire that is repeated cancels the same work again", "INV-34", cancel_again),
    Bug(
        "waiting-calls-outlive-retire",
        "a retire does not reach calls that wait at closed admission",
        "INV-35",
        waiting_outlive_retire,
    ),
    Bug("fence-unseen", "a late row is written although its attempt is fenced", "INV-36", fence_unseen),
    Bug("marks-outlive-forget", "a forgotten rollout leaves its marks", "INV-37", marks_outlive_forget),
    Bug(
        "late-copies-begun",
        "a copy of a call that comes when its rollout is over and forgotten is begun",
        "INV-38",
        late_copies_begun,
    ),
    Bug(
        "failed-delete-settled",
        "a restored attempt whose deletion failed is not tried again",
        "INV-44",
        failed_delete_settled,
    ),
    Bug(
        "failed-export-tried-again",
        "a commit that has failed is done again under the same id",
        "INV-45",
        failed_export_again,
    ),
    Bug(
        "ledger-changed-in-checkpoint",
        "the routes that change a ledger do not look whether a checkpoint is open",
        "INV-47",
        ledger_any_time,
    ),
    Bug(
        "signal-forgotten-in-checkpoint",
        "a signal that comes while a checkpoint is being taken asks for nothing",
        "INV-96",
        signal_forgotten,
    ),
    Bug(
        "session-one-call-back",
        "a restored session stands before its last model call",
        "INV-6",
        session_one_call_back,
    ),
    Bug("tokens-in-records", "an agent exports its messages with their token ids", "INV-52", tokens_in_records),
    Bug(
        "tools-done-again-at-restore",
        "a restore brings a session back by doing a tool call",
        "INV-68",
        tools_done_again_at_restore,
    ),
    Bug(
        "tool-calls-not-waited-for",
        "an agent is ready while a tool call is under way",
        "INV-3",
        tool_calls_replay,
    ),
    Bug(
        "errors-become-rows",
        "an episode that fails ends in a row with a reward of 0",
        "INV-1",
        errors_become_rows,
    ),
)
