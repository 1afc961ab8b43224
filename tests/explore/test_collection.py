"""The rows of a collection, over a restart: two rows, two checkpoints, one fault, every order of replies and calls.

The model is the one that Hypothesis drives (`tests/property/test_collection.py`); here every order is tried, and from
every state the run must still end with a row of each rollout.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import methodcaller
from typing import Any

import pytest

from gym_ckpt.core.collection import Collection, RowState
from tests.explore.explorer import Broken, after, explore, freeze
from tests.property import test_collection as model
from tests.property.test_collection import Collecting

CHECKPOINTS, FAULTS = 2, 1
Call = tuple[str, tuple[Any, ...]]
FAULTY = ("fail", "lose", "block", "crash_and_restart")


class Run(Collecting):
    """The model without Hypothesis around it, and what has been spent of the bounds."""

    def __init__(self) -> None:  # not the engine's: it wants a test around it
        self.begin(2)
        self.checkpoints_taken = 0
        self.faults = 0

    def do(self, call: Call) -> None:
        name, arguments = call
        self.checkpoints_taken += name == "prepare"
        self.faults += name in FAULTY or (name == "dispatch" and arguments[0])
        getattr(self, name)(*arguments)


def calls(run: Run) -> Iterator[Call]:
    fault = run.faults < FAULTS
    if not run.open and run.collection.dispatchable:
        yield "dispatch", (False, False)
        if fault:
            yield from (("dispatch", (True, anyway)) for anyway in (False, True))
    for at, episode in enumerate(run.calls):
        if run.can(episode):
            yield "finish", (at,)
        if fault:
            yield "fail", (at,)
            yield "lose", (at,)
            if not run.open:
                yield "block", (at,)
    if not run.open and run.collection.to_retire:
        yield "retire", (1, False)
    if not run.open and run.checkpoints_taken < CHECKPOINTS:
        yield "prepare", ()
    if run.open:
        yield from (("commit", (set(restarts), published)) for restarts in ((), ("r0",)) for published in (True, False))
    if fault and run.calls:
        for kept in (0, 2):
            for damaged, survive, broken in ((False, False, False), (True, False, False), (False, True, False)):
                yield "crash_and_restart", (survive, kept, kept, damaged, False, broken)
            yield "crash_and_restart", (False, kept, kept, False, True, False)
            yield "crash_and_restart", (False, kept, kept, False, False, True)


def moves(run: Run) -> Iterator[tuple[str, Run]]:
    for call in calls(run):
        yield f"{call[0]}{call[1]}", after(run, methodcaller("do", call))


def check(run: Run) -> None:
    run.one_row_each()
    run.books_balance()
    after(run, methodcaller("teardown"))


def key(run: Run) -> Hashable:
    return freeze(vars(run))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ROLLOUTS", ("r0", "r1"))
    monkeypatch.setattr(model, "MAX_ATTEMPTS", 2)


def test_two_rows_two_checkpoints_and_one_fault() -> None:
    found = explore(Run(), moves, check, key=key)
    print(found.words("collection"))
    assert found.states > 1000


def scope_of_all(self: Collection, restarts: Any) -> Any:
    left_out = frozenset(restarts)
    unfinished = [row for row in self.rows() if row.state in (RowState.IN_FLIGHT, RowState.RETIRING)]
    return tuple(sorted(row.episode for row in unfinished if row.episode not in left_out))


def same_attempt_again(self: Collection, episodes: Any) -> Any:
    for episode in episodes:
        self._move(self._rows[episode.rollout_id], RowState.WAITING)
    return []


def take_while_open(self: Collection) -> int:
    counts = self.counts()
    return max(0, min(counts.waiting + counts.restored, 2 - counts.in_flight))


@pytest.mark.parametrize(
    ("name", "instead", "says"),
    [
        ("scope", scope_of_all, "INV-91"),
        ("dispatchable", property(take_while_open), "INV-90"),
        ("retired", same_attempt_again, "sent while|was retired|after"),
    ],
    ids=["retiring-rows-committed", "rows-start-in-a-checkpoint", "the-same-attempt-again"],
)
def test_a_mistake_in_it_is_found(name: str, instead: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collection, name, instead)
    with pytest.raises(Broken, match=says):
        explore(Run(), moves, check, key=key)
