"""Calls on their way: where their agent stands, what becomes of those that waited, how strangers fare.

INV-13, 15, 22, 35, 47.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gym_ckpt.participants.ledger_routes import LEDGER_ROOT
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire.messages import ROLLOUT_PREFIX
from sim.network import Network
from sim.oracle.contents import model_calls, number_of
from sim.oracle.files import Archive
from sim.oracle.findings import Check, Findings, Handler, caller, episodes, key_of
from sim.oracle.known import Known
from sim.trace import Row

BROKEN_OFF = b'"broken_off"'
"""In the event that ends a stream which cannot go on: no part of an answer."""
UNTAGGED_S = 0.004
"""A call that no gate is for is passed on at once, and so is its answer."""


class Boundary(Check):
    """INV-15: in a checkpoint the agent of a call under way stands before that call, which has no row; and the agent of
    a call whose whole answer had reached it stands behind it.

    A call under way may have a row where its server died after writing it and the caller does not know yet: an answer
    that was lost.
    """

    def __init__(self, findings: Findings, archive: Archive, agents: frozenset[str]) -> None:
        super().__init__(findings)
        self._archive = archive
        self._agents = agents
        self._calls: dict[str, dict[str, tuple[int, str, str]]] = {}
        """By agent server, by capture key: exchange and call under way, and the server that was asked."""
        self._of: dict[int, tuple[str, str]] = {}
        self._at_export: dict[tuple[str, str], dict[str, str]] = {}
        """By checkpoint and agent server: the calls under way when it exported."""
        self._answered: dict[str, dict[str, str]] = {}
        """By agent server, by capture key: the last call whose whole answer has reached it."""
        self._behind: dict[tuple[str, str], dict[str, str]] = {}
        """... when it exported."""
        self._lost: set[str] = set()
        """Calls whose server has died since, or has broken off the answer."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "node.crashed": self._crashed,
            "net.request": self._request,
            "net.replied": self._replied,
            "net.failed": self._over,
            "net.left": self._over,
            "gate.broken": self._broken,
            "gate.withdrawn": self._withdrawn,
            "gate.error": self._refused,
            "commit.exported": self._exported,
            "collector.published": self._published,
        }

    def _new_life(self, row: Row) -> None:
        self._calls.pop(row.node, None)
        self._answered.pop(row.node, None)

    def _broken(self, row: Row) -> None:
        self._lost.add(row.fields["call"])

    def _withdrawn(self, row: Row) -> None:
        """Its row failed: a stream that had begun with keep-alives ends with an error in it, which is no answer."""
        if row.fields["failed"]:
            self._broken(row)

    def _refused(self, row: Row) -> None:
        """So does one whose copy has got the row; of a copy itself that is refused, the caller hears nothing."""
        call = row.fields["call"]
        if any(call == each for calls in self._calls.values() for _, each, _ in calls.values()):
            self._broken(row)

    def _crashed(self, row: Row) -> None:
        under_way = [each for calls in self._calls.values() for each in calls.values()]
        self._lost.update(call for _, call, server in under_way if server == row.node)

    def _request(self, row: Row) -> None:
        key = key_of(row.fields["path"])
        if key and row.node in self._agents and "call" in row.fields:
            self._of[row.fields["x"]] = row.node, key
            self._calls.setdefault(row.node, {})[key] = row.fields["x"], row.fields["call"], row.fields["dst"]

    def _replied(self, row: Row) -> None:
        node, key = self._of.get(row.fields["x"], ("", ""))
        number, call, _ = self._calls.get(node, {}).get(key, (-1, "", ""))
        if number == row.fields["x"] and row.fields["status"] < 400:
            self._answered.setdefault(node, {})[key] = call
        self._over(row)

    def _over(self, row: Row) -> None:
        node, key = self._of.pop(row.fields["x"], ("", ""))
        under_way = self._calls.get(node, {})
        if key in under_way and under_way[key][0] == row.fields["x"]:
            del under_way[key]

    def _exported(self, row: Row) -> None:
        if row.fields["kind"] == Kind.AGENT:
            calls = {key: call for key, (_, call, _) in self._calls.get(row.node, {}).items()}
            self._at_export[row.fields["checkpoint_id"], row.node] = calls
            self._behind[row.fields["checkpoint_id"], row.node] = dict(self._answered.get(row.node, {}))

    def _published(self, row: Row) -> None:
        checkpoint_id = row.fields["checkpoint_id"]
        contents = self._archive.contents(checkpoint_id)
        rows = set(model_calls(contents))
        for (kind, instance), held in contents.records.items():
            if kind != Kind.AGENT:
                continue
            calls = self._at_export.get((checkpoint_id, instance), {})
            answered = self._behind.get((checkpoint_id, instance), {})
            for at, record in held.items():
                if at.key in calls:
                    self._stands(at, calls[at.key], record["state"], rows)
                if at.key in answered and answered[at.key] not in self._lost:
                    self._took(at, answered[at.key], record["state"])

    def _took(self, at: EpisodeId, call: str, state: Mapping[str, object]) -> None:
        number, calls = number_of(call), state["calls"]
        assert isinstance(calls, list), "a session's calls are a list"
        before = number is not None and number >= len(calls)
        self.look(15, f"call {call} was answered, and the session of {at} stands before it" if before else None)

    def _stands(self, at: EpisodeId, call: str, state: Mapping[str, object], rows: set[str]) -> None:
        number, calls = number_of(call), state["calls"]
        assert isinstance(calls, list), "a session's calls are a list"
        if number is None:
            return
        there = number == len(calls) and not state.get("pending") and state.get("finish_reason") is None
        self.look(15, None if there else f"call {call} is under way, and the session of {at} stands elsewhere")
        early = call in rows and call not in self._lost
        self.look(15, f"call {call} is under way for the session of {at} and has its row" if early else None)


class Starts(Check):
    """INV-13: a call starts when answer data is there, and none reaches its caller before that.

    Looks at chunks itself: `Network.tap`. INV-22: a call without an episode gets its answer as it comes.
    """

    def __init__(self, findings: Findings, known: Known, network: Network, models: frozenset[str]) -> None:
        super().__init__(findings)
        self._known = known
        self._models = models
        self._calls: dict[int, tuple[str, str, str, bool]] = {}
        """By exchange: who asks, whom, the call's id, and whether it is tagged."""
        self._data: dict[tuple[str, str], float] = {}
        """By model server and call: when it had the first of the answer's data."""
        self._started: set[tuple[str, str]] = set()
        self._passed_on: set[tuple[str, str]] = set()
        """Calls that a model server has made of a worker."""
        self._waiting: dict[int, tuple[str, str]] = {}
        """Untagged calls at model servers that have no answer yet."""
        self._since: dict[int, float] = {}
        """... and when they came, or their server last went on."""
        self._slow: set[str] = set()
        """Servers that do nothing at once."""
        self._full: dict[tuple[str, str], int] = {}
        """What a full engine answered to a call that was passed on to it."""
        network.tap = self._chunk

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "net.request": self._request,
            "net.arrived": self._arrived,
            "node.continued": self._again,
            "node.lagging": self._lag,
            "net.head": self._head,
            "net.turned_away": self._turned_away,
            "net.failed": self._gone,
            "net.left": self._gone,
            "gate.started": self._start,
            "admission.opened": self._opened,
        }

    def _new_life(self, row: Row) -> None:
        self._waiting = {x: call for x, call in self._waiting.items() if call[0] != row.node}
        self._since = {x: t for x, t in self._since.items() if x in self._waiting}

    def _request(self, row: Row) -> None:
        if "call" not in row.fields:
            return
        tagged = row.fields["path"].startswith(ROLLOUT_PREFIX)
        number, dst, call = row.fields["x"], row.fields["dst"], row.fields["call"]
        self._calls[number] = row.node, dst, call, tagged
        if dst in self._models and not tagged:
            self._waiting[number] = dst, call
        elif row.node in self._models:
            self._passed_on.add((row.node, call))

    def _arrived(self, row: Row) -> None:
        if row.fields["x"] in self._waiting:
            self._since[row.fields["x"]] = row.t

    def _lag(self, row: Row) -> None:
        self._slow.add(row.node)

    def _again(self, row: Row) -> None:
        """What came for a node while it was stopped has not waited for its gate."""
        self._since = {x: row.t if self._waiting[x][0] == row.node else t for x, t in self._since.items()}
        self._data = {key: row.t if key[0] == row.node else t for key, t in self._data.items()}

    def _chunk(self, number: int, status: int, chunk: bytes) -> None:
        """A part of a reply has arrived."""
        asked = self._calls.get(number)
        if asked is None or not has_data(chunk):
            return
        src, dst, call, tagged = asked
        if src in self._models:
            self._data.setdefault((src, call), self.now)
        elif tagged and dst in self._models and status < 400 and BROKEN_OFF not in chunk:
            unsaid = (dst, call) not in self._started
            self.look(13, f"data of call {call} reached {src}, and it had not started" if unsaid else None, dst)
            del self._calls[number]

    def _start(self, row: Row) -> None:
        call = row.node, row.fields["call"]
        self._started.add(call)
        if call in self._passed_on:
            self.look(13, None if call in self._data else f"call {call[1]} started and there was no data yet", row.node)

    def _turned_away(self, row: Row) -> None:
        asked = self._calls.get(row.fields["x"])
        if asked is not None:
            self._full[asked[0], asked[2]] = row.fields["status"]

    def _head(self, row: Row) -> None:
        self._since.pop(row.fields["x"], None)
        waited = self._waiting.pop(row.fields["x"], None)
        if waited is not None:
            status = row.fields["status"]
            # 502 says that the worker is lost; and a full one's own answer is passed on
            refused = status >= 400 and status not in (502, self._full.get(waited))
            self.look(22, f"an untagged call was answered with {status}" if refused else None, row.node)

    def _gone(self, row: Row) -> None:
        self._waiting.pop(row.fields["x"], None)
        self._since.pop(row.fields["x"], None)
        self._calls.pop(row.fields["x"], None)

    def _opened(self, row: Row) -> None:
        for number, (node, call) in self._waiting.items():
            if node == row.node and node not in self._slow:
                asked = (node, call) in self._passed_on
                since = self._data.get((node, call), row.t) if asked else self._since.get(number, row.t)
                held = row.t - since > UNTAGGED_S
                self.look(22, f"the answer of the untagged call {call} was held" if held else None, row.node)


def has_data(chunk: bytes) -> bool:
    """Whether there is anything in it but blank lines and comments."""
    return any(line.strip() and not line.startswith(b":") for line in chunk.splitlines())


@dataclass(slots=True)
class _Waited:
    node: str
    episode: EpisodeId
    call: str
    doomed: bool = False


class Waiting(Check):
    """INV-35: a call that was retired while it waited at closed admission is never served."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._tagged: dict[int, tuple[EpisodeId, str]] = {}
        """By exchange: whose it is, and the id of a model call."""
        self._waiting: dict[int, _Waited] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "net.request": self._request,
            "net.duplicate": self._request,
            "net.arrived": self._arrived,
            "admission.stopped": self._stopped,
            "gate.admitted": self._admitted,
            "net.head": self._head,
        }

    def _request(self, row: Row) -> None:
        by = caller(row.fields["path"])
        if by is not None:
            self._tagged[row.fields["x"]] = by, row.fields.get("call", "")

    def _arrived(self, row: Row) -> None:
        tagged = self._tagged.pop(row.fields["x"], None)
        if tagged is not None and self._known.server(row.node).closed:
            self._waiting[row.fields["x"]] = _Waited(row.node, *tagged)

    def _stopped(self, row: Row) -> None:
        if not self._waiting:
            return
        highest: dict[str, int] = {}
        for each in episodes(row.fields["asked"]):
            highest[each.rollout_id] = max(each.attempt, highest.get(each.rollout_id, -1))
        for call in self._waiting.values():
            if call.node == row.node and call.episode.attempt <= highest.get(call.episode.rollout_id, -1):
                call.doomed = True

    def _admitted(self, row: Row) -> None:
        at = row.node, row.fields["call"]
        doomed = any(each.doomed and (each.node, each.call) == at for each in self._waiting.values())
        self.look(35, f"call {at[1]} waited, was retired, and is admitted" if doomed else None, row.node)

    def _head(self, row: Row) -> None:
        call = self._waiting.pop(row.fields["x"], None)
        if call is not None:
            served = call.doomed and row.fields["status"] < 400
            self.look(35, f"a call of {call.episode} waited, was retired, and is served" if served else None, row.node)


class Strangers(Check):
    """INV-22: a malformed id is a typed 400. INV-47: routes that change a ledger refuse while a checkpoint is open."""

    LEDGER = tuple(LEDGER_ROOT + name for name in ("retire", "delete"))

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._malformed: set[int] = set()
        self._changes: set[int] = set()
        self._open: dict[int, str] = {}
        """Changes of a ledger under way since a checkpoint was open, which still is."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "net.request": self._request,
            "net.arrived": self._arrived,
            "phase": self._phase,
            "node.started": self._new_life,
            "net.head": self._head,
        }

    def _request(self, row: Row) -> None:
        path = row.fields["path"]
        if path.startswith(ROLLOUT_PREFIX) and caller(path) is None:
            self._malformed.add(row.fields["x"])
        elif path in self.LEDGER:
            self._changes.add(row.fields["x"])

    def _arrived(self, row: Row) -> None:
        number = row.fields["x"]
        if number in self._changes and self._known.server(row.node).phase in ("preparing", "prepared", "committed"):
            self._open[number] = row.node

    def _phase(self, row: Row) -> None:
        if self._open and row.fields["now"] == "idle":
            self._new_life(row)

    def _new_life(self, row: Row) -> None:
        self._open = {number: node for number, node in self._open.items() if node != row.node}

    def _head(self, row: Row) -> None:
        number, status = row.fields["x"], row.fields["status"]
        if number in self._malformed:
            self._malformed.discard(number)
            self.look(22, None if status == 400 else f"a malformed id was answered with {status}", row.node)
        elif number in self._changes:
            self._changes.discard(number)
            done = self._open.pop(number, None) is not None and status < 400
            self.look(47, "a ledger was changed while a checkpoint was open" if done else None, row.node)
