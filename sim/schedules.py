"""Policies that carry out `faults.schedule`: which of the runnable tasks run now, and in which order.

Held back means: runs in a later turn of the same instant, since virtual time stands still while anything is runnable.
No task waits for more than `WAITED_TURNS` turns, so that one that spins cannot starve the one that it waits for.

Knows tasks by the number of their creation only; must not know nodes, or why a task runs.
"""

from __future__ import annotations

import random

from trio.lowlevel import Task

from faults.schedule import HoldBack, OneByOne, Priorities, Schedule
from sim.determinism import Policy

WAITED_TURNS = 200


def policy_of(schedule: Schedule | None, chance: random.Random) -> Policy | None:
    """The policy for a run; None where each batch is shuffled."""
    match schedule:
        case HoldBack():
            return Holding(schedule, chance)
        case OneByOne():
            return Single(chance)
        case Priorities():
            return Prioritized(schedule, chance)
    return None


class Holding:
    """A share of the tasks is held back, each for a number of turns of its own."""

    def __init__(self, schedule: HoldBack, chance: random.Random) -> None:
        self._schedule = schedule
        self._chance = chance
        self._left: dict[int, int] = {}
        """Turns that a task is still held back for."""

    def shuffle(self, batch: list[Task]) -> None:
        now = [task for task in batch if not self._is_held(task._counter)]
        if now:
            batch[:] = now
        else:  # nothing else can happen at this instant: there is nothing more to hold them back from
            self._left.clear()
        self._chance.shuffle(batch)

    def _is_held(self, number: int) -> bool:
        left = self._left.pop(number, None)
        if left is None:
            left = self._chance.randint(1, self._schedule.turns) if self._chance.random() < self._schedule.share else 0
            if not left:
                return False
        elif left <= 1:
            return False
        else:
            left -= 1
        self._left[number] = left
        return True


class Single:
    """Any one task."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def shuffle(self, batch: list[Task]) -> None:
        batch[:] = [self._chance.choice(batch)]


class Prioritized:
    """The highest priority; a fresh task's is drawn, and some steps are changes."""

    def __init__(self, schedule: Priorities, chance: random.Random) -> None:
        self._chance = chance
        self._steps = 0
        self._changes = frozenset(chance.sample(range(schedule.within), min(schedule.changes, schedule.within)))
        self._priority: dict[int, float] = {}
        self._waited: dict[int, int] = {}

    def shuffle(self, batch: list[Task]) -> None:
        numbers = {task._counter: task for task in batch}
        for number in numbers:
            if number not in self._priority:
                self._priority[number] = self._chance.random()
        waited = max(numbers, key=lambda number: self._waited.get(number, 0))
        chosen = waited if self._waited.get(waited, 0) >= WAITED_TURNS else max(numbers, key=self._priority.__getitem__)
        if self._steps in self._changes:
            self._priority[chosen] = -1.0 - self._steps
            chosen = max(numbers, key=self._priority.__getitem__)
        self._steps += 1
        self._waited = {number: self._waited.get(number, 0) + 1 for number in numbers if number != chosen}
        batch[:] = [numbers[chosen]]
