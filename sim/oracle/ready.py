"""Readiness: what a prepare may wait for, and what stays as it is once it is ready (INV-10, 12, 23, 45)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gym_ckpt.types import Kind
from sim.oracle.findings import Check, Findings, Handler, episode, key_of
from sim.trace import Row

READY_S = 0.4
"""Within so long of the last thing that it may wait for, a model server is ready: a generation lasts longer."""
WHOLE = frozenset({str(Kind.ENVIRONMENT), str(Kind.AGENT), str(Kind.RESOURCES)})
"""Kinds that export every episode of the scope that they hold."""


@dataclass(slots=True)
class _Gate:
    """One life of a model server. `begun`: answers that are being sent, by call and episode, since a call may be there
    twice; `since`: when it last had to wait."""

    begun: Counter[tuple[str, str]] = field(default_factory=Counter)
    since: float = 0.0
    owes: set[str] = field(default_factory=set)
    """Episodes of which a row could not be written: its poison has to be, before a checkpoint is ready."""
    claims: dict[int, str] = field(default_factory=dict)
    """By exchange: whose claim is under way."""


class Readiness(Check):
    """INV-10: a model server is ready at once when no answer is being sent, whatever is being generated.

    INV-12: what keeps it from being ready is an answer that has begun, and once it is ready none is being sent.
    """

    def __init__(self, findings: Findings, models: frozenset[str]) -> None:
        super().__init__(findings)
        self._models = models
        self._gates: dict[str, _Gate] = {}
        self._claims: dict[int, str] = {}
        """By exchange: which server was asked."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "node.continued": self._again,
            "net.request": self._request,
            "net.arrived": self._arrived,
            "net.replied": self._claimed,
            "net.failed": self._claimed,
            "net.left": self._claimed,
            "gate.started": self._begun,
            "gate.withdrawn": self._withdrawn,
            "gate.done": self._done,
            "phase": self._phase,
            "prepare.replied": self._replied,
        }

    def _gate(self, name: str) -> _Gate:
        return self._gates.setdefault(name, _Gate())

    def _new_life(self, row: Row) -> None:
        self._gates.pop(row.node, None)

    def _again(self, row: Row) -> None:
        self._gate(row.node).since = row.t

    def _request(self, row: Row) -> None:
        if row.fields["path"].endswith("/v1/claim"):
            self._gate(row.fields["dst"]).claims[row.fields["x"]] = key_of(row.fields["path"])
            self._claims[row.fields["x"]] = row.fields["dst"]

    def _claimed(self, row: Row) -> None:
        server = self._claims.pop(row.fields["x"], None)
        if server is not None and self._gate(server).claims.pop(row.fields["x"], None) is not None:
            self._gate(server).since = row.t

    def _arrived(self, row: Row) -> None:
        """Perhaps another prepare: the last one of them waits."""
        gate = self._gates.get(row.node)
        if gate is not None:
            gate.since = row.t

    def _begun(self, row: Row) -> None:
        self._gate(row.node).begun[row.fields["call"], row.fields["episode"]] += 1

    def _withdrawn(self, row: Row) -> None:
        gate = self._gate(row.node)
        if row.fields["failed"]:
            gate.owes.add(row.fields["episode"])

    def _done(self, row: Row) -> None:
        gate = self._gate(row.node)
        answer = row.fields["call"], row.fields["episode"]
        if gate.begun[answer] > 0:
            gate.begun -= Counter([answer])  # which drops what is 0
            gate.since = row.t

    def _phase(self, row: Row) -> None:
        if row.node not in self._models:
            return
        gate = self._gate(row.node)
        if row.fields["now"] == "preparing":
            gate.since = row.t
        elif row.fields["now"] == "prepared" and row.fields["was"] == "preparing":
            left = sorted(gate.begun)
            self.look(12, f"ready, and the answer of {left[0][0]} is being sent" if left else None, row.node)
            waited = row.t - gate.since
            if not gate.owes and not gate.claims:
                late = waited > READY_S and not left
                self.look(10, f"ready {waited:.3f} s after there was anything to wait for" if late else None, row.node)
            gate.owes.clear()

    def _replied(self, row: Row) -> None:
        if row.node not in self._models or row.fields["report"]["ready"]:
            return
        gate = self._gate(row.node)
        if not (gate.begun or gate.claims or gate.owes):
            late = row.t - gate.since > READY_S
            self.look(10, "not ready, and no answer is being sent" if late else None, row.node)
        known = {*(key for _, key in gate.begun), *gate.claims.values(), *gate.owes}
        odd = [key for key in row.fields["report"]["blockers"] if key not in known]
        self.look(12, f"not ready because of {odd[0]}, of which no answer has begun" if odd else None, row.node)


@dataclass(slots=True)
class _Said:
    """What a participant said of a checkpoint when it was ready."""

    checkpoint_id: str
    live: list[str]
    restarts: list[str]


class Unchanged(Check):
    """INV-23: what a participant holds and names as restarts when it is ready is what it exports, and says again.

    A session that an export leaves out shows nowhere else: its row fails after a restore, starts over, and ends well.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._said: dict[str, _Said] = {}
        self._forgotten: dict[str, set[str]] = {}
        """By server: rollouts that may leave at any time, because they were forgotten while work of theirs went on."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "forget.done": self._forget,
            "prepare.replied": self._replied,
            "commit.exported": self._exported,
        }

    def _new_life(self, row: Row) -> None:
        self._said.pop(row.node, None)
        self._forgotten.pop(row.node, None)

    def _forget(self, row: Row) -> None:
        self._forgotten.setdefault(row.node, set()).update(row.fields["rollouts"])

    def _lasting(self, node: str, keys: list[str]) -> set[str]:
        gone = self._forgotten.get(node, set())
        return {key for key in keys if episode(key).rollout_id not in gone}

    def _replied(self, row: Row) -> None:
        report = row.fields["report"]
        if not report["ready"]:
            return
        now = _Said(row.fields["checkpoint_id"], row.fields["live"], report["restarts"])
        before = self._said.get(row.node)
        if before is not None and before.checkpoint_id == now.checkpoint_id:
            self._same(row.node, "live", before.live, now.live)
            self._same(row.node, "a restart", before.restarts, now.restarts)
            return
        self._said[row.node] = now

    def _same(self, node: str, what: str, before: list[str], now: list[str]) -> None:
        odd = sorted(self._lasting(node, before) ^ self._lasting(node, now))
        self.look(
            23, f"{odd[0]} {'is now' if odd[0] in now else 'was'} {what}, in one checkpoint" if odd else None, node
        )

    def _exported(self, row: Row) -> None:
        said = self._said.get(row.node)
        if said is None or said.checkpoint_id != row.fields["checkpoint_id"] or row.fields["kind"] == Kind.MODEL:
            return
        exported = self._lasting(row.node, row.fields["episodes"])
        ready = self._lasting(row.node, said.live)
        new = sorted(exported - ready)
        self.look(23, f"{new[0]} is exported, and was not there when it was ready" if new else None, row.node)
        if row.fields["kind"] in WHOLE:
            lost = sorted((ready & set(row.fields["scope"])) - exported - set(said.restarts))
            self.look(23, f"{lost[0]} was there when it was ready, and is not exported" if lost else None, row.node)


class Final(Check):
    """INV-45: a checkpoint whose export failed on a server is neither exported nor committed there any more."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._failed: dict[str, set[str]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "commit.failed": self._fail,
            "commit.exported": self._exported,
            "phase": self._phase,
        }

    def _new_life(self, row: Row) -> None:
        self._failed.pop(row.node, None)

    def _fail(self, row: Row) -> None:
        self._failed.setdefault(row.node, set()).add(row.fields["checkpoint_id"])
        self.look(45, None, row.node)

    def _exported(self, row: Row) -> None:
        self._judge(row, "exported again")

    def _phase(self, row: Row) -> None:
        if row.fields["now"] == "committed" and row.fields["was"] != "committed":
            self._judge(row, "committed")

    def _judge(self, row: Row, what: str) -> None:
        failed = row.fields["checkpoint_id"] in self._failed.get(row.node, ())
        self.look(45, f"{row.fields['checkpoint_id']} is {what} after its export failed" if failed else None, row.node)
