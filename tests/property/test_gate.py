"""The gate with its tasks: calls that wait, are held, go on, leave or are stopped, under every kind of schedule.

The books alone are in `test_admission`. Here the shell runs: nobody who waits is forgotten, nobody passes while
admission is closed, a retire ends exactly the work that it names, and whoever waits for readiness is told. The schedule
is drawn with the plan; Hypothesis seeds trio's own the same way every time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.schedule import HoldBack, OneByOne, Priorities, Schedule
from gym_ckpt.core.admission import AdmissionBook, State
from gym_ckpt.errors import StaleAttempt
from gym_ckpt.runtime.admission import Admission, Pass
from gym_ckpt.types import EpisodeId
from sim.clock import Deadlock, VirtualClock
from sim.determinism import run_deterministic
from sim.schedules import policy_of
from sim.streams import stream

EPISODES = tuple(EpisodeId(name, attempt) for name in ("r", "r-1") for attempt in (0, 1))


@dataclass(frozen=True)
class Call:
    """A piece of work: after `after` steps it arrives, works, and comes to `boundaries` boundaries on its way."""

    episode: EpisodeId
    after: int
    boundaries: int
    works: int


@dataclass(frozen=True)
class Deed:
    """Of the control plane, after so many steps. `close` waits until nothing works, then opens `stays` steps later."""

    what: str
    after: int
    stays: int = 0
    episode: EpisodeId = EPISODES[0]


SCHEDULES = st.sampled_from([None, None, HoldBack(0.3, 10), OneByOne(), Priorities(3, 60)])
STEPS = st.integers(0, 6)
CALLS = st.builds(Call, st.sampled_from(EPISODES), STEPS, st.integers(0, 2), st.integers(0, 3))
DEEDS = st.builds(Deed, st.sampled_from(["close", "close", "retire"]), STEPS, STEPS, st.sampled_from(EPISODES))
PLANS = st.tuples(
    st.lists(CALLS, min_size=1, max_size=6), st.lists(DEEDS, max_size=4), st.integers(0, 2**16), SCHEDULES
)
Plan = tuple[list[Call], list[Deed], int, Schedule | None]


class Silent:
    """A tracer that nobody listens to."""

    def emit(self, event: str, **fields: Any) -> None: ...


@dataclass
class Seen:
    """What happened. `order`: which call began at which turn, for telling schedules apart."""

    retired: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    order: list[int] = field(default_factory=list)


async def steps(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def serve(admission: Admission, number: int, call: Call, seen: Seen) -> None:
    """One call, as a participant would serve it."""
    await steps(call.after)
    refused = call.episode.attempt <= seen.retired.get(call.episode.rollout_id, -1)
    began = False
    try:
        async with admission.enter(call.episode) as work:
            assert not refused, "a retired attempt is let in (INV-63)"
            assert work.ticket.state is not State.WAITING, "it runs, and was never admitted (INV-14)"
            await begin(admission, work)
            began = True
            seen.order.append(number)
            for _ in range(call.boundaries):
                await steps(call.works)
                await work.boundary()
        seen.ended.append("done")
        assert call.episode.attempt > seen.retired.get(call.episode.rollout_id, -1), "retired work is done (INV-34)"
    except StaleAttempt:
        assert call.episode.attempt <= seen.retired.get(call.episode.rollout_id, -1), "nobody has retired it (INV-31)"
        assert not (refused and began)
        seen.ended.append("stale")


async def begin(admission: Admission, work: Pass) -> None:
    await work.begin()
    assert work.ticket.state is State.WORKING and not work.ticket.stopping, "it goes on, and may not (INV-11)"


async def control(admission: Admission, deeds: list[Deed], seen: Seen) -> None:
    for deed in deeds:
        await steps(deed.after)
        if deed.what == "retire":
            highest = max(deed.episode.attempt, seen.retired.get(deed.episode.rollout_id, -1))
            seen.retired[deed.episode.rollout_id] = highest
            admission.stop([deed.episode])
            await admission.until(partial(_has_left, admission, deed.episode))
        else:
            admission.close()
            await admission.until(lambda: admission.book.quiet)
            began = len(seen.order)
            for _ in range(deed.stays):
                await steps(1)
                assert admission.book.quiet, "ready, and something works (INV-12)"
                assert len(seen.order) == began, "work begins while admission is closed (INV-11)"
            admission.open()


def _has_left(admission: Admission, episode: EpisodeId) -> bool:
    return not admission.book.remaining([episode])


def follow(plan: Plan) -> Seen:
    calls, deeds, seed, schedule = plan
    seen = Seen()

    async def main() -> None:
        admission = Admission(Silent())
        async with anyio.create_task_group() as tasks:
            for number, call in enumerate(calls):
                tasks.start_soon(serve, admission, number, call, seen)
            tasks.start_soon(control, admission, deeds, seen)
        assert len(seen.ended) == len(calls), "somebody was forgotten (INV-5)"
        assert admission.book.quiet and not sum(admission.book.counts().values()), "something is left in the books"
        assert not admission._scopes

    run_deterministic(main, seed, VirtualClock(), policy=policy_of(schedule, stream(seed, "policy")), guard=False)
    return seen


@given(PLANS)
@settings(max_examples=250)
def test_nobody_is_forgotten_and_nobody_passes_a_closed_gate(plan: Plan) -> None:
    follow(plan)


def test_several_orders_occur() -> None:
    calls = [Call(EPISODES[1], 0, 1, 2) for _ in range(4)]
    for schedule in (None, HoldBack(0.3, 10), OneByOne(), Priorities(3, 60)):
        orders = {tuple(follow((calls, [], seed, schedule)).order) for seed in range(40)}
        assert len(orders) > 8, schedule


def plans() -> list[Plan]:
    calls = [Call(episode, after, 2, 2) for after, episode in enumerate(EPISODES)]
    deeds = [Deed("close", 2, 4), Deed("retire", 1, 0, EPISODES[0]), Deed("close", 1, 3)]
    return [(calls, deeds, seed, schedule) for seed in range(30) for schedule in (None, OneByOne())]


def forgets_whom_it_held(admission: Admission) -> None:
    """Opens the books, and wakes nobody."""
    admission.book.open()


def says_nothing(_: Admission) -> None:
    """Nobody is told that the books have changed."""


def passes_at_closed(book: AdmissionBook, ticket: Any) -> bool:
    ticket.state = State.WORKING
    book._working[ticket.number] = ticket
    return True


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (Admission, "open", forgets_whom_it_held),
        (Admission, "notify", says_nothing),
        (AdmissionBook, "begin", passes_at_closed),
    ],
    ids=["nobody-is-woken", "nobody-is-told", "the-gate-stands-open"],
)
def test_a_mistake_in_it_is_found(owner: type, name: str, instead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises((AssertionError, Deadlock, BaseExceptionGroup)):
        for plan in plans():
            follow(plan)
