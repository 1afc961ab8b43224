"""Admission, marks, retire and forget against a reference model of plain sets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gym_ckpt.core.admission import AdmissionBook, State, Ticket
from gym_ckpt.errors import StaleAttempt
from gym_ckpt.types import EpisodeId

ROLLOUTS = st.sampled_from(["r", "r-1", "r.b", "r-a2x"])
EPISODES = st.builds(EpisodeId, ROLLOUTS, st.integers(0, 3))


class Admission(RuleBasedStateMachine):
    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.book = AdmissionBook()
        self.closed = False
        self.state: dict[Ticket, State] = {}
        self.stopped: set[Ticket] = set()
        self.retired: dict[str, int] = {}
        self.ever_admitted = False

    @rule(target=tickets, episode=EPISODES)
    def arrive(self, episode: EpisodeId) -> Ticket | None:
        if episode.attempt <= self.retired.get(episode.rollout_id, -1):
            try:
                self.book.arrive(episode)
            except StaleAttempt as error:
                assert episode.rollout_id in error.detail
            else:
                raise AssertionError("a retired attempt was let in (INV-63)")
            return None
        ticket = self.book.arrive(episode)
        self.state[ticket] = State.WAITING if self.closed else State.PARKED
        self.ever_admitted |= not self.closed
        return ticket

    @rule(ticket=tickets)
    def begin(self, ticket: Ticket | None) -> None:
        if ticket not in self.state:
            return
        was = self.state[ticket]
        may = was is State.WORKING or (was is State.PARKED and not self.closed and ticket not in self.stopped)
        assert self.book.begin(ticket) == may
        if may:
            self.state[ticket] = State.WORKING

    @rule(ticket=tickets)
    def park(self, ticket: Ticket | None) -> None:
        if ticket in self.state:
            self.book.park(ticket)
            if self.state[ticket] is State.WORKING:
                self.state[ticket] = State.PARKED

    @rule(ticket=consumes(tickets))
    def leave(self, ticket: Ticket | None) -> None:
        if ticket in self.state:
            self.book.leave(ticket)
            del self.state[ticket]

    @rule()
    def close(self) -> None:
        self.book.close()
        self.closed = True

    @rule()
    def open(self) -> None:
        self.book.open()
        self.closed = False
        for ticket, state in self.state.items():
            if state is State.WAITING and ticket not in self.stopped:
                self.state[ticket] = State.PARKED
                self.ever_admitted = True

    @rule(episodes=st.lists(EPISODES, max_size=3))
    def retire(self, episodes: list[EpisodeId]) -> None:
        to_stop = set(self.book.mark(episodes))
        for episode in episodes:
            highest = self.retired.get(episode.rollout_id, -1)
            self.retired[episode.rollout_id] = max(highest, episode.attempt)
        of_them = {
            ticket
            for ticket in self.state
            if any(ticket.episode.rollout_id == e.rollout_id and ticket.episode.attempt <= e.attempt for e in episodes)
        }
        assert to_stop == of_them - self.stopped, "each piece of work is stopped exactly once (INV-31, INV-34)"
        assert set(self.book.remaining(episodes)) == of_them, "a repeated retire still waits for all of it (INV-33)"
        self.stopped |= to_stop

    @rule(rollout_id=ROLLOUTS)
    def forget(self, rollout_id: str) -> None:
        self.book.marks.forget([rollout_id])
        self.retired.pop(rollout_id, None)

    @invariant()
    def books_agree(self) -> None:
        working = {ticket for ticket, state in self.state.items() if state is State.WORKING}
        assert self.book.quiet == (not working)
        assert self.book.blockers() == {ticket.episode.key for ticket in working}
        assert all(ticket.state is state for ticket, state in self.state.items())
        assert self.book.served == self.ever_admitted
        counts = self.book.counts()
        assert sum(counts.values()) == len(self.state)
        assert counts["waiting"] == sum(state is State.WAITING for state in self.state.values())
        assert len(self.book.marks) == len(self.retired), "nothing is kept of a forgotten rollout (INV-39)"

    @invariant()
    def a_refused_waiter_stays_refused(self) -> None:
        for ticket in self.stopped & set(self.state):
            if self.state[ticket] is State.WAITING:
                assert not self.book.begin(ticket), "refused for good, forgotten or not (INV-35)"


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=150)
