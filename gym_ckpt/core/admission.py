"""Admission: what may start, what goes on, what waits, while a checkpoint is open and when it is not.

The one machine behind all four kinds of participant. A *ticket* is one piece of work of one episode (an episode's run,
an agent session, a model call, a tool call), in one of three states:

    waiting ──open──▶ parked ◀──park── working          mark: no ticket of the attempt moves on; the shell stops it
       │                 └───begin────────▲             leave: from any state, gone from the books
       └─mark: refused

* waiting: arrived at closed admission, not admitted, not counted (INV-14).
* parked: admitted, at a point from which nothing would be lost; while closed it may not begin (INV-11).
* working: past that point; blocks readiness until it parks or leaves (INV-12).

A policy-model call is parked from its admission until its response starts, which is why preparing never waits for a
generation (INV-10); an episode or session works between two boundaries.

Mutable on purpose: a frozen copy per event would cost as much as there are tickets. Every method is synchronous and
leaves the books consistent. No clock, no event, no cancellation: `gym_ckpt.runtime.admission` carries these out.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from gym_ckpt.core.marks import Marks
from gym_ckpt.errors import StaleAttempt
from gym_ckpt.types import EpisodeId


class State(StrEnum):
    WAITING = "waiting"
    PARKED = "parked"
    WORKING = "working"


class Ticket:
    """One piece of work. `stopping` once a mark has reached it: it is stopped at most once (INV-34)."""

    __slots__ = ("episode", "number", "state", "stopping")

    def __init__(self, number: int, episode: EpisodeId, state: State) -> None:
        self.number = number
        self.episode = episode
        self.state = state
        self.stopping = False


class AdmissionBook:
    """Tickets, marks, and whether admission is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.served = False
        """Whether any work was ever admitted: such a server restores no more (INV-61)."""
        self.marks = Marks()
        self._count = 0
        self._rollouts: dict[str, dict[int, Ticket]] = {}
        self._waiting: dict[int, Ticket] = {}
        self._working: dict[int, Ticket] = {}
        self._forgotten: set[str] = set()
        """Rollouts forgotten while work of theirs went on, and without new work since."""

    @property
    def quiet(self) -> bool:
        """Nothing works: closed and quiet is ready."""
        return not self._working

    def arrive(self, episode: EpisodeId) -> Ticket:
        """New work. Waiting when closed, parked (admitted) when open.

        Raises:
            StaleAttempt: the attempt is retired.
        """
        self.check(episode)
        self._forgotten.discard(episode.rollout_id)
        self._count += 1
        ticket = Ticket(self._count, episode, State.WAITING if self.closed else State.PARKED)
        self._rollouts.setdefault(episode.rollout_id, {})[ticket.number] = ticket
        if self.closed:
            self._waiting[ticket.number] = ticket
        else:
            self.served = True
        return ticket

    def check(self, episode: EpisodeId) -> None:
        """Raises `StaleAttempt` when the attempt is retired."""
        if self.marks.refuses(episode):
            raise stale(episode)

    def begin(self, ticket: Ticket) -> bool:
        """Go past the boundary, if admission allows it; True when the ticket works now."""
        if ticket.state is State.WORKING:
            return True
        if self.closed or ticket.state is State.WAITING or ticket.stopping:
            return False
        ticket.state = State.WORKING
        self._working[ticket.number] = ticket
        return True

    def park(self, ticket: Ticket) -> None:
        """The ticket is at a boundary again."""
        if ticket.state is State.WORKING:
            ticket.state = State.PARKED
            del self._working[ticket.number]

    def leave(self, ticket: Ticket) -> bool:
        """The ticket's work is over, however it ended.

        True: it was the last of a rollout that was forgotten meanwhile, so that what it left goes too (INV-39).
        """
        self._waiting.pop(ticket.number, None)
        self._working.pop(ticket.number, None)
        of_rollout = self._rollouts[ticket.episode.rollout_id]
        del of_rollout[ticket.number]
        if of_rollout:
            return False
        del self._rollouts[ticket.episode.rollout_id]
        forgotten = ticket.episode.rollout_id in self._forgotten
        self._forgotten.discard(ticket.episode.rollout_id)
        return forgotten

    def close(self) -> None:
        """No admission, no beginning, until `open`."""
        self.closed = True

    def open(self) -> list[Ticket]:
        """Admit what waits, but for what a mark has refused meanwhile (INV-35); returns what was admitted."""
        self.closed = False
        admitted = [each for each in self._waiting.values() if not each.stopping]
        for ticket in admitted:
            ticket.state = State.PARKED
            self.served = True
            del self._waiting[ticket.number]
        return admitted

    def mark(self, episodes: Iterable[EpisodeId]) -> list[Ticket]:
        """Mark attempts and all earlier ones as retired; the tickets that must be stopped now, each only once ever."""
        wanted = sorted(set(episodes))
        self.marks.mark(wanted)
        fresh = [ticket for ticket in self.remaining(wanted) if not ticket.stopping]
        for ticket in fresh:
            ticket.stopping = True
        return fresh

    def remaining(self, episodes: Iterable[EpisodeId]) -> list[Ticket]:
        """Tickets of these attempts and earlier ones that have not left."""
        found: dict[int, Ticket] = {}
        for episode in episodes:
            for ticket in self._rollouts.get(episode.rollout_id, {}).values():
                if ticket.episode.attempt <= episode.attempt:
                    found[ticket.number] = ticket
        return list(found.values())

    def forget(self, rollout_ids: Iterable[str]) -> list[str]:
        """Those of these rollouts that no work goes on for; the others are forgotten when their last work leaves."""
        rollout_ids = list(rollout_ids)
        self._forgotten.update(rollout_id for rollout_id in rollout_ids if self.active(rollout_id))
        return [rollout_id for rollout_id in rollout_ids if not self.active(rollout_id)]

    def active(self, rollout_id: str) -> bool:
        """Whether any ticket of the rollout is in the books."""
        return rollout_id in self._rollouts

    def blockers(self) -> set[str]:
        """Capture keys of the episodes that work."""
        return {ticket.episode.key for ticket in self._working.values()}

    def counts(self) -> dict[str, int]:
        """How many tickets are in each state."""
        total = sum(len(tickets) for tickets in self._rollouts.values())
        waiting, working = len(self._waiting), len(self._working)
        return {"waiting": waiting, "parked": total - waiting - working, "working": working}


def over(episode: EpisodeId) -> StaleAttempt:
    """The refusal of a copy that came when its rollout was over and forgotten."""
    return StaleAttempt(
        f"rollout {episode.rollout_id} is over; this is a late copy of a call of attempt {episode.attempt}"
    )


def stale(episode: EpisodeId) -> StaleAttempt:
    """The refusal of a retired attempt."""
    return StaleAttempt(
        f"attempt {episode.attempt} of rollout {episode.rollout_id} was retired; nothing of it is served"
    )
