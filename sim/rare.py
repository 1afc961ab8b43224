"""Rare states: moments that a campaign must come by sometimes, or it does not test what it seems to.

Each has a name, words, and one place here that sees it in the trace. A campaign prints those that no run of it has
seen: a fault or a workload is then missing, or the state is impossible and its entry must go.

Listens to rare rows only: a run pays next to nothing. Must not know faults, or what the invariants say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from sim.trace import Row, Trace
from sim.workload import CONTROLLER

RARE: Mapping[str, str] = {
    "published-while-held": "a checkpoint is published while a finished answer is held at the gate",
    "published-in-mid-call": "a checkpoint is published while an agent is parked in a model call",
    "published-while-refused": "a checkpoint is published while an agent waits for an engine that is full",
    "published-with-restarts": "a checkpoint leaves out rows that cannot be captured",
    "published-uncertain": "a checkpoint is published, and not surely durable",
    "nothing-in-scope": "a checkpoint is committed with no episode in it",
    "stop-published": "a stop publishes its checkpoint",
    "failed-after-export": "a checkpoint fails after a participant has exported",
    "controller-dies-in-checkpoint": "the controller dies while a checkpoint is open",
    "server-dies-in-checkpoint": "a server dies while a checkpoint is open",
    "signal-in-checkpoint": "a signal arrives while a checkpoint is open",
    "lease-ends-a-checkpoint": "a participant's lease ends a checkpoint that its controller has left",
    "lease-ends-a-restore": "a participant's lease ends a restore",
    "calls-wait-at-restore": "calls of survivors wait at a server that restores, and are stopped by the import",
    "restored": "a restore goes through",
    "restored-twice": "a rollout is continued from a checkpoint twice in one run",
    "restore-discarded": "what a restore has installed is discarded again",
    "restore-undone-in-vain": "what a failed restore has installed cannot be retired everywhere",
    "resume-failed": "a server cannot be resumed",
    "retire-stops-work": "a retire stops work that was going on",
    "server-dies-in-retire": "a server dies between the mark of a retire and its end",
    "answer-broken-off": "an answer breaks off after its first chunk",
    "row-not-written": "a call's row cannot be written, and its answer is withdrawn",
    "generation-aborted": "a generation is aborted since its client has left",
    "restored-attempt-deleted": "a commit deletes a restored attempt that nobody has called",
    "restored-attempt-started-elsewhere": "a commit spares a restored attempt that another server has started",
    "controller-refuses": "the controller ends at its start, with a reason",
}


class Rare:
    """Watches one run. `seen`: how often each state was."""

    def __init__(self, trace: Trace) -> None:
        self.seen: Counter[str] = Counter()
        self._open = False
        """A checkpoint of the controller is open."""
        self._exported = False
        self._stop = False
        self._held: dict[tuple[str, str], None] = {}
        self._in_call: dict[str, None] = {}
        self._rests: dict[str, float] = {}
        """Until when agents wait, by the episode whose model call failed."""
        self._retiring: dict[str, None] = {}
        self._restoring: dict[str, None] = {}
        self._installed: Counter[str] = Counter()
        handlers = self._handlers()
        trace.subscribe(lambda row: handlers[row.event](row), handlers)

    def _handlers(self) -> dict[str, Callable[[Row], None]]:
        return {
            "gate.held": lambda row: self._held.update({(row.node, row.fields["call"]): None}),
            "gate.started": lambda row: self._release(row),
            "gate.done": lambda row: self._release(row),
            "agent.parked": lambda row: self._in_call.update({row.fields["episode"]: None}),
            "agent.resting": lambda row: self._rests.update({row.fields["episode"]: row.t + row.fields["for_s"]}),
            "collector.checkpoint_opened": self._opened,
            "collector.checkpoint_closed": self._closed,
            "collector.checkpoint_failed": self._failed,
            "collector.scope": self._scope,
            "collector.published": self._published,
            "collector.restored": self._restored,
            "collector.refused": self._say("controller-refuses"),
            "commit.exported": self._export,
            "coordination.undo_failed": self._say("restore-undone-in-vain"),
            "coordination.resume_failed": self._say("resume-failed"),
            "restore.discarded": self._say("restore-discarded"),
            "phase": self._phase,
            "admission.stopped": self._stopped,
            "retire.marked": lambda row: self._retiring.update({row.node: None}),
            "retire.done": lambda row: self._retiring.pop(row.node, None),
            "node.crashed": self._died,
            "node.signal": lambda row: self._see("signal-in-checkpoint", self._open),
            "gate.broken": self._say("answer-broken-off"),
            "gate.withdrawn": lambda row: self._see("row-not-written", bool(row.fields["failed"])),
            "inference.aborted": self._say("generation-aborted"),
            "ledger.discarded": self._discarded,
        }

    def _see(self, name: str, really: bool = True) -> None:
        if really:
            self.seen[name] += 1

    def _say(self, name: str) -> Callable[[Row], None]:
        return lambda _: self._see(name)

    def _release(self, row: Row) -> None:
        self._held.pop((row.node, row.fields["call"]), None)

    def _opened(self, _: Row) -> None:
        self._open, self._exported, self._stop = True, False, False
        self._in_call.clear()

    def _closed(self, _: Row) -> None:
        self._open = False

    def _failed(self, _: Row) -> None:
        self._see("failed-after-export", self._exported)
        self._open = False

    def _scope(self, row: Row) -> None:
        self._stop = bool(row.fields["stop"])
        self._see("nothing-in-scope", not row.fields["scope"])

    def _export(self, _: Row) -> None:
        self._exported = True

    def _published(self, row: Row) -> None:
        self._see("published-while-held", bool(self._held))
        self._see("published-in-mid-call", bool(self._in_call))
        self._see("published-while-refused", any(until > row.t for until in self._rests.values()))
        self._see("published-with-restarts", bool(row.fields["restarted"]))
        self._see("published-uncertain", not row.fields["certain"])
        self._see("stop-published", self._stop)

    def _restored(self, row: Row) -> None:
        self._see("restored")
        for key in row.fields["installed"]:
            rollout = key.rsplit("-a", 1)[0]
            self._installed[rollout] += 1
            self._see("restored-twice", self._installed[rollout] == 2)

    def _stopped(self, row: Row) -> None:
        if row.fields["stopped"]:
            self._see("calls-wait-at-restore" if row.node in self._restoring else "retire-stops-work")

    def _phase(self, row: Row) -> None:
        self._restoring.pop(row.node, None)
        if row.fields["now"] == "restoring":
            self._restoring[row.node] = None
        if row.fields["why"] == "LeaseCheck":
            restoring = row.fields["was"] in ("restoring", "restored")
            self._see("lease-ends-a-restore" if restoring else "lease-ends-a-checkpoint")

    def _died(self, row: Row) -> None:
        if row.node == CONTROLLER:
            self._see("controller-dies-in-checkpoint", self._open)
            self._open = False
        else:
            self._see("server-dies-in-checkpoint", self._open)
            self._see("server-dies-in-retire", row.node in self._retiring)
        self._retiring.pop(row.node, None)
        self._restoring.pop(row.node, None)
        for held in [held for held in self._held if held[0] == row.node]:
            del self._held[held]

    def _discarded(self, row: Row) -> None:
        self._see("restored-attempt-deleted", bool(row.fields["deleted"]))
        self._see("restored-attempt-started-elsewhere", bool(row.fields["started"]))
