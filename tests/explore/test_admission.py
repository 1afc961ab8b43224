"""Admission and marks: three episodes of two rollouts, closed twice, one retire and one forget, in any order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

import pytest

from gym_ckpt.core.admission import AdmissionBook, State, Ticket
from gym_ckpt.core.marks import Marks
from gym_ckpt.errors import StaleAttempt
from gym_ckpt.types import EpisodeId
from tests.explore.explorer import Broken, after, explore, freeze

FIRST, SECOND, OTHER = EpisodeId("r", 0), EpisodeId("r", 1), EpisodeId("s", 0)
EPISODES = (FIRST, SECOND, OTHER)
CLOSINGS, TICKETS = 2, 3


@dataclass
class Server:
    """The books, and what has been done to them. `tickets`: pieces of work that have not left."""

    book: AdmissionBook = field(default_factory=AdmissionBook)
    tickets: list[Ticket] = field(default_factory=list)
    arrived: int = 0
    closings: int = 0
    closed: bool = False
    stopped: list[int] = field(default_factory=list)
    """Numbers of the tickets that a retire has stopped."""
    retired: EpisodeId | None = None
    marked: bool = False
    forgot: bool = False
    leaving: bool = False
    """Forgotten while work of it went on, and without new work since: the last that leaves takes all with it."""

    def arrive(self, episode: EpisodeId) -> None:
        refused = self.marked and self.is_retired(episode)
        self.arrived += 1
        try:
            ticket = self.book.arrive(episode)
        except StaleAttempt:
            assert refused, f"{episode} is refused, and nobody has retired it (INV-31)"
            return
        assert not refused, f"{episode} was retired, and is let in (INV-63)"
        assert (ticket.state is State.WAITING) == self.closed, "admitted while closed (INV-14)"
        self.tickets.append(ticket)
        self.leaving = self.leaving and episode.rollout_id != "r"

    def is_retired(self, episode: EpisodeId) -> bool:
        of = self.retired
        return of is not None and of.rollout_id == episode.rollout_id and episode.attempt <= of.attempt

    def begin(self, at: int) -> None:
        ticket = self.tickets[at]
        was = ticket.state
        if self.book.begin(ticket) and was is not State.WORKING:
            assert not self.closed, "work begins while admission is closed (INV-11)"
            assert ticket.number not in self.stopped, "stopped work goes on (INV-34)"

    def park(self, at: int) -> None:
        self.book.park(self.tickets[at])

    def leave(self, at: int) -> None:
        ticket = self.tickets.pop(at)
        gone = self.book.leave(ticket)
        assert gone == (self.leaving and not self.works()), "a rollout is forgotten with its last work (INV-39)"
        if gone:
            self.book.marks.forget([ticket.episode.rollout_id])
            self.marked = self.leaving = False

    def works(self) -> bool:
        return any(ticket.episode.rollout_id == "r" for ticket in self.tickets)

    def close(self) -> None:
        self.closings += 1
        self.closed = True
        self.book.close()

    def open(self) -> None:
        self.closed = False
        admitted = self.book.open()
        assert all(ticket.number not in self.stopped for ticket in admitted), "a refused waiter is admitted (INV-35)"

    def retire(self, episode: EpisodeId) -> None:
        self.retired, self.marked = episode, True
        stopped = self.book.mark([episode])
        expected = [ticket for ticket in self.tickets if self.is_retired(ticket.episode)]
        assert stopped == expected, "a retire stops all work of the attempt, and nothing else (INV-31)"
        self.stopped += [ticket.number for ticket in stopped]
        assert self.book.mark([episode]) == [], "stopped twice (INV-34)"

    def forget(self, rollout: str) -> None:
        self.forgot = True
        self.leaving, self.marked = self.works(), self.works()
        self.book.marks.forget(self.book.forget([rollout]))


def moves(server: Server) -> Iterator[tuple[str, Server]]:
    todo: list[tuple[str, Callable[[Server], object]]] = []
    if server.arrived < TICKETS:
        todo += [(f"arrive {each}", methodcaller("arrive", each)) for each in EPISODES]
    for at, ticket in enumerate(server.tickets):
        todo += [(f"{name} {ticket.episode}", methodcaller(name, at)) for name in ("begin", "park", "leave")]
    if not server.closed and server.closings < CLOSINGS:
        todo.append(("close", methodcaller("close")))
    if server.closed:
        todo.append(("open", methodcaller("open")))
    if server.retired is None:
        todo += [(f"retire {each}", methodcaller("retire", each)) for each in (FIRST, SECOND)]
    elif not server.forgot and not server.closed:
        todo.append(("forget r", methodcaller("forget", "r")))
    for label, move in todo:
        yield label, after(server, move)


def check(server: Server) -> None:
    book, tickets = server.book, server.tickets
    working = [ticket for ticket in tickets if ticket.state is State.WORKING]
    assert book.quiet == (not working), "ready while something works, or not ready although nothing does (INV-12)"
    assert book.blockers() == {ticket.episode.key for ticket in working}
    counts = book.counts()
    assert sum(counts.values()) == len(tickets) and counts["working"] == len(working), f"the books say {counts}"
    for ticket in tickets:
        assert ticket.state is not State.WAITING or server.closed or ticket.stopping, "it waits at open admission"
    assert book.active("r") == server.works()
    assert bool(book.marks.highest()) == server.marked, "a mark is kept of a forgotten rollout, or lost (INV-39)"


def key(server: Server) -> Hashable:
    """Without the order and the numbers of tickets, which only count: equal pieces of work are alike."""
    found = ((each.episode, each.state, each.stopping, each.number in server.stopped) for each in server.tickets)
    tickets = tuple(sorted(found))
    book = server.book
    return (
        *(tickets, book.closed, server.closed, book.served, freeze(book.marks.highest()), freeze(book._forgotten)),
        *(server.arrived, server.closings, server.retired, server.marked, server.forgot, server.leaving),
    )


def is_over(server: Server) -> bool:
    return not server.tickets and not server.closed


def test_three_episodes_and_two_checkpoints() -> None:
    found = explore(Server(), moves, check, key=key, goal=is_over)
    print(found.words("admission"))
    assert found.states > 2000


@pytest.mark.parametrize(
    ("owner", "name", "instead", "says"),
    [
        (AdmissionBook, "close", lambda book: setattr(book, "closed", bool(book._working)), "INV-14|INV-11|INV-12"),
        (Marks, "refuses", lambda marks, episode: episode.rollout_id in marks._highest, "INV-31"),
        (Marks, "forget", lambda *_: None, "INV-39|INV-31"),
    ],
    ids=["closes-only-if-busy", "marks-every-attempt", "marks-stay"],
)
def test_a_mistake_in_it_is_found(
    owner: type, name: str, instead: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises(Broken, match=says):
        explore(Server(), moves, check, key=key, goal=is_over)
