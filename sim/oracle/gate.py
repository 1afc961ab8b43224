"""Admission and the gate: what starts, waits and leaves while admission is closed (INV-11, 14, 16, 61, 63, 66, 68)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from gym_ckpt.invariants import marked
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.messages import ROLLOUT_PREFIX
from gym_ckpt.words import counted
from sim.oracle.findings import Check, Findings, Handler, caller, episode
from sim.oracle.known import Known
from sim.trace import Row

LEFT_S = 0.1
"""A call whose caller its server has seen go is out of the books by then."""
REFUSALS = frozenset({409, 503})
"""How a server would refuse a call because of a checkpoint."""
CRASHED = 500
"""How a server answers for a handler that raised: nothing is held that nobody has thought of."""
GENERATES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


class Held(Check):
    """INV-11: while the gate is closed neither an answer nor an error of an admitted call starts that had no leave.

    INV-16: no answer leaves before it has started.
    """

    def __init__(self, findings: Findings, known: Known, models: frozenset[str]) -> None:
        super().__init__(findings)
        self._known = known
        self._models = models
        self._asked: dict[int, tuple[str, EpisodeId | None]] = {}
        """By exchange: call and episode, until the head of what is said to it."""
        self._admitted: Counter[tuple[str, str]] = Counter()
        """By server and call: admissions to which nothing was said."""
        self._begun: Counter[tuple[str, str]] = Counter()
        """... that have leave to answer, and whose head has not left"""
        self._failing: Counter[tuple[str, str]] = Counter()
        """... that have leave to say that there is no answer"""
        self._early: set[tuple[str, str]] = set()
        """Streams whose head has left with nothing but keep-alives, as they may (INV-13 sees the data)."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "net.request": self._request,
            "net.duplicate": self._request,
            "net.arrived": self._arrived,
            "net.head": self._head,
            "net.gone": self._gone,
            "gate.admitted": self._admit,
            "gate.held": self._held,
            "gate.started": self._start,
            "gate.error": self._error,
            "gate.withdrawn": self._withdrawn,
        }

    def _new_life(self, row: Row) -> None:
        for book in (self._admitted, self._begun, self._failing):
            for key in [key for key in book if key[0] == row.node]:
                del book[key]
        self._early = {key for key in self._early if key[0] != row.node}

    def _request(self, row: Row) -> None:
        path = row.fields["path"]
        if "call" in row.fields and path.startswith(ROLLOUT_PREFIX) and path.endswith(GENERATES):
            self._asked[row.fields["x"]] = row.fields["call"], caller(path)

    def _arrived(self, row: Row) -> None:
        if row.node not in self._models:
            self._asked.pop(row.fields["x"], None)

    def _admit(self, row: Row) -> None:
        self._admitted[row.node, row.fields["call"]] += 1

    def _held(self, row: Row) -> None:
        self.look(11, None, row.node)

    def _start(self, row: Row) -> None:
        self._leave(row, self._begun)
        if self._known.server(row.node).closed:
            self.look(11, f"the answer of call {row.fields['call']} started while admission was closed", row.node)

    def _error(self, row: Row) -> None:
        self._leave(row, self._failing)

    def _leave(self, row: Row, book: Counter[tuple[str, str]]) -> None:
        key = row.node, row.fields["call"]
        if key in self._early:
            self._early.discard(key)
        else:
            book[key] += 1

    def _withdrawn(self, row: Row) -> None:
        key = row.node, row.fields["call"]
        self._begun[key] -= self._begun[key] > 0  # what is said instead has to ask as well

    def _head(self, row: Row) -> None:
        call, by = self._asked.pop(row.fields["x"], (None, None))
        if call is None:
            return
        key, status, closed = (row.node, call), row.fields["status"], self._known.server(row.node).closed
        admitted = self._admitted[key] > 0
        self._admitted[key] -= admitted
        if status < 400 and self._begun[key]:
            self._begun[key] -= 1
            self.look(16, None, row.node)
        elif self._failing[key]:
            self._failing[key] -= 1
        elif status < 400 and row.fields.get("stream"):
            self._early.add(key)
        elif status < 400:
            self.look(11 if closed else 16, f"call {call}: an answer left that had not started", row.node)
        elif closed and admitted and status != CRASHED and not self._marked(row.node, by):
            self.look(11, f"call {call}: an error left while admission was closed", row.node)

    def _gone(self, row: Row) -> None:
        """Nothing is said to a caller that has left."""
        call, _ = self._asked.pop(row.fields["x"], (None, None))
        if call is not None:
            self._admitted[row.node, call] -= self._admitted[row.node, call] > 0

    def _marked(self, node: str, by: EpisodeId | None) -> bool:
        return by is not None and marked(self._known.server(node).marks, [by]) is None


class Arrivals(Check):
    """INV-14: at closed admission calls wait, are not admitted, and are not refused for it."""

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._tagged: dict[int, EpisodeId] = {}
        self._refused: Counter[tuple[str, EpisodeId]] = Counter()
        """By server and episode: calls that were refused because a file could not be written, closed or not."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "net.request": self._request,
            "net.duplicate": self._request,
            "net.arrived": self._arrived,
            "net.head": self._head,
            "net.failed": self._gone,
            "net.left": self._gone,
            "gate.withdrawn": self._for_a_file,
            "gate.refused": self._for_a_file,
            "admission.admitted": self._admitted,
            "episode.started": self._admitted,
        }

    def _request(self, row: Row) -> None:
        path = row.fields["path"]
        # A second `/run` of one attempt is refused for what it is.
        by = None if path.endswith("/run") else caller(path)
        if by is not None:
            self._tagged[row.fields["x"]] = by

    def _arrived(self, row: Row) -> None:
        if row.fields["x"] in self._tagged and self._known.server(row.node).closed:
            self.look(14, None, row.node)

    def _gone(self, row: Row) -> None:
        self._tagged.pop(row.fields["x"], None)

    def _head(self, row: Row) -> None:
        by = self._tagged.pop(row.fields["x"], None)
        if by is None or row.fields["status"] not in REFUSALS:
            return
        if self._refused[row.node, by]:
            self._refused[row.node, by] -= 1
            return
        # A refusal may be passed on from another server that has marked the attempt.
        unmarked = all(marked(each.marks, [by]) is not None for each in self._known.servers())
        if self._known.server(row.node).closed and unmarked:
            self.look(14, f"a call of {by} got status {row.fields['status']} while admission was closed", row.node)

    def _for_a_file(self, row: Row) -> None:
        self._refused[row.node, episode(row.fields["episode"])] += 1

    def _admitted(self, row: Row) -> None:
        server = self._known.server(row.node)
        if server.closed:
            number = 66 if server.phase in ("restoring", "restored") else 14
            self.look(number, f"work of {row.fields['episode']} was admitted while admission was closed", row.node)


class Present(Check):
    """INV-14: what is admitted at opening are calls whose callers wait, and not those whose callers have gone: these
    would count as served (INV-61).

    Of each episode no more calls are admitted than have a caller. For servers whose work is calls alone.
    """

    def __init__(self, findings: Findings, servers: frozenset[str]) -> None:
        super().__init__(findings)
        self._tagged: dict[int, EpisodeId] = {}
        self._calls: dict[str, dict[int, tuple[EpisodeId, float]]] = {name: {} for name in servers}
        """By server and exchange: whose call it is, and until when it may be in the books."""
        self._stopped: dict[str, float] = {}
        self._opened: dict[str, tuple[float, Counter[EpisodeId]]] = {}
        """By server: when it last opened, and what was admitted then."""
        self._slow: set[str] = set()
        """Servers that do nothing at once."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "node.lagging": self._lag,
            "node.stopped": self._stop,
            "node.continued": self._again,
            "net.request": self._request,
            "net.duplicate": self._request,
            "net.arrived": self._arrived,
            "net.gone": self._over,
            "net.head": self._over,
            "admission.opened": self._opening,
            "admission.admitted": self._admitted,
        }

    def _new_life(self, row: Row) -> None:
        if row.node in self._calls:
            self._calls[row.node] = {}

    def _lag(self, row: Row) -> None:
        self._slow.add(row.node)

    def _stop(self, row: Row) -> None:
        self._stopped[row.node] = row.t

    def _again(self, row: Row) -> None:
        """Who has gone while it was stopped, it learns of now."""
        since, calls = self._stopped.get(row.node, row.t), self._calls.get(row.node, {})
        calls.update((x, (by, row.t + LEFT_S)) for x, (by, until) in calls.items() if since <= until < math.inf)

    def _request(self, row: Row) -> None:
        by = caller(row.fields["path"])
        if by is not None:
            self._tagged[row.fields["x"]] = by

    def _arrived(self, row: Row) -> None:
        by = self._tagged.pop(row.fields["x"], None)
        if by is not None and row.node in self._calls:
            self._calls[row.node][row.fields["x"]] = by, math.inf

    def _over(self, row: Row) -> None:
        calls, number = self._calls.get(row.node, {}), row.fields["x"]
        if number in calls:
            calls[number] = calls[number][0], row.t + LEFT_S

    def _opening(self, row: Row) -> None:
        if row.node in self._calls:
            there = self._calls[row.node]
            self._calls[row.node] = {x: (by, until) for x, (by, until) in there.items() if until >= row.t}
            self._opened[row.node] = row.t, Counter()

    def _admitted(self, row: Row) -> None:
        when, admitted = self._opened.get(row.node, (-1.0, Counter()))
        if when != row.t or row.node in self._slow:
            return
        by = episode(row.fields["episode"])
        admitted[by] += 1
        callers = sum(each == by for each, _ in self._calls[row.node].values())
        wrong = f"{counted(admitted[by], 'call')} of {by} admitted at opening; callers are there for {callers}"
        self.look(14, wrong if admitted[by] > callers else None, row.node)


class Fenced(Check):
    """INV-63: what a restore of N has retired is never at work again. INV-61: who has served does not restore.

    INV-66, INV-68: from restore to resume admission is closed, and no call is made; nor does it open while what was
    ended still imports.
    """

    WORK = ("admission.admitted", "episode.started", "gate.started", "tool.effect", "session.closed")

    def __init__(self, findings: Findings, known: Known) -> None:
        super().__init__(findings)
        self._known = known
        self._importing: Counter[tuple[str, int]] = Counter()
        """How many imports run, by server and its life."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "import.begun": self._import,
            "import.ended": self._import,
            **dict.fromkeys(self.WORK, self._work),
            "admission.opened": self._opened,
            "phase": self._phase,
            "restore.installed": self._installed,
        }

    def _work(self, row: Row) -> None:
        server = self._known.server(row.node)
        server.served = True
        if server.fenced:
            at_work = episode(row.fields["episode"])
            fence = server.fenced.get(at_work.rollout_id)
            if fence is not None:
                late = at_work.attempt <= fence
                self.look(63, f"{row.event} of {at_work}, of which attempts to {fence} are retired" if late else None)
        if server.phase in ("restoring", "restored") and row.event in ("gate.started", "tool.effect"):
            self.look(68, f"{row.event} of {row.fields['episode']} during a restore", row.node)

    def _import(self, row: Row) -> None:
        self._importing[row.node, self._known.server(row.node).life] += 1 if row.event == "import.begun" else -1

    def _opened(self, row: Row) -> None:
        server = self._known.server(row.node)
        imports = self._importing[row.node, server.life]
        self.look(66, "admission opened while an import goes on" if imports else None, row.node)
        if server.phase in ("restoring", "restored"):
            self.look(66, f"admission opened in phase {server.phase}", row.node)
        elif server.phase != "idle":
            self.look(14, f"admission opened in phase {server.phase}", row.node)

    def _phase(self, row: Row) -> None:
        if row.fields["now"] == "restoring" and row.fields["was"] == "idle":
            served = self._known.server(row.node).served
            self.look(61, "a server that has served restores" if served else None, row.node)

    def _installed(self, row: Row) -> None:
        server = self._known.server(row.node)
        self.look(66, None if server.closed else "a restore installs while admission is open", row.node)
        self.look(68, None, row.node)
