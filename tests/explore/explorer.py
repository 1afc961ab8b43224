"""Explores a machine to the end: every state that some order of its moves can reach, once, and what must hold there.

Breadth first, so that what breaks is shown by a shortest way to it. With `goal`, every state must also be able to reach
one: a state from which nothing leads out is a failure of liveness.

Must not know what the machines are.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

S = TypeVar("S")
STATES_MAX = 200_000
Moves = Callable[[S], Iterable[tuple[str, S]]]


class Broken(AssertionError):
    """`path`: the moves that lead to the state in which something does not hold."""

    def __init__(self, path: list[str], why: str) -> None:
        super().__init__(f"{why}\n  after: " + (" ▸ ".join(path) or "nothing"))
        self.path = path


@dataclass(frozen=True)
class Explored(Generic[S]):
    """How much there was."""

    states: int
    transitions: int
    depth: int
    goals: int

    def words(self, what: str) -> str:
        return f"{what}: {self.states} states, {self.transitions} transitions, {self.depth} moves deep"


def explore(
    start: S,
    moves: Moves[S],
    check: Callable[[S], None],
    *,
    key: Callable[[S], Hashable] | None = None,
    goal: Callable[[S], bool] | None = None,
) -> Explored[S]:
    """Explore from `start`. `key`: what makes two states the same (by default, the state as plain data).

    Raises:
        Broken: a check or a move raised `AssertionError`, or a state cannot reach a goal.
    """
    key = freeze if key is None else key
    first = key(start)
    came: dict[Hashable, tuple[Hashable | None, str, int]] = {first: (None, "", 0)}
    before: dict[Hashable, list[Hashable]] = {first: []}
    todo = deque([(first, start)])
    goals: list[Hashable] = []
    transitions = 0

    def path(at: Hashable | None) -> list[str]:
        found: list[str] = []
        while at is not None and came[at][0] is not None:
            found.append(came[at][1])
            at = came[at][0]
        return found[::-1]

    while todo:
        at, state = todo.popleft()
        label = ""
        try:
            check(state)
            if goal is not None and goal(state):
                goals.append(at)
            for label, after in _labelled(moves(state)):
                transitions += 1
                there = key(after)
                if goal is not None:
                    before.setdefault(there, []).append(at)
                if there not in came:
                    came[there] = (at, label, came[at][2] + 1)
                    assert len(came) <= STATES_MAX, "bound the machine: this has no end"
                    todo.append((there, after))
        except AssertionError as error:
            raise Broken(path(at), f"{error} (then a move after {label!r})" if label else str(error)) from error
    if goal is not None:
        _all_reach(goals, before, came, path)
    return Explored(len(came), transitions, max(depth for _, _, depth in came.values()), len(goals))


def _labelled(found: Iterable[tuple[str, S]]) -> Iterator[tuple[str, S]]:
    yield from found


def _all_reach(
    goals: list[Hashable],
    before: Mapping[Hashable, list[Hashable]],
    came: Mapping[Hashable, tuple[Hashable | None, str, int]],
    path: Callable[[Hashable], list[str]],
) -> None:
    good = set(goals)
    todo = deque(goals)
    while todo:
        for state in before.get(todo.popleft(), ()):
            if state not in good:
                good.add(state)
                todo.append(state)
    for state in came:
        if state not in good:
            raise Broken(path(state), "nothing leads from here to an end")


def freeze(value: Any) -> Hashable:
    """Plain data that is equal where the value is: order counts in lists and dicts, not in sets."""
    if value is None or isinstance(value, str | int | float | bytes | Enum):
        return value
    if isinstance(value, list | tuple | deque):
        return tuple(map(freeze, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(freeze, value))
    if isinstance(value, Mapping):
        return tuple((freeze(name), freeze(each)) for name, each in value.items())
    if is_dataclass(value):
        return (type(value).__name__, *(freeze(getattr(value, each.name)) for each in fields(value)))
    slots = getattr(type(value), "__slots__", None)
    inside = {name: getattr(value, name) for name in slots} if slots else vars(value)
    return (type(value).__name__, freeze(inside))


def after(state: S, move: Callable[[S], object]) -> S:
    """The state with a move made, the state itself as it was. Pickled: a third of what `deepcopy` costs."""
    changed: S = pickle.loads(pickle.dumps(state, pickle.HIGHEST_PROTOCOL))
    move(changed)
    return changed
