"""In which order runnable tasks run, where it is not simply shuffled: frozen data, part of a plan, in words for people.

trio runs what is runnable in lock-step: each runnable task once, then whatever has become runnable. Shuffling each
batch never holds one task back while another takes several steps. These do.

Must not know: tasks, or how a schedule is carried out (`sim.schedules`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, get_args

import msgspec

from faults.when import Count, Data, Nth
from gym_ckpt.words import counted

SHUFFLED = "shuffled"


class HoldBack(Data, frozen=True, tag="hold_back", tag_field="schedule"):
    """Of the runnable tasks a share is held back, each for up to so many turns of the others."""

    share: Annotated[float, msgspec.Meta(ge=0.0, le=0.9)]
    turns: Nth

    def words(self) -> str:
        return (
            f"schedule: {self.share:.0%} of the runnable tasks are held back, for up to {counted(self.turns, 'turn')}"
        )


class OneByOne(Data, frozen=True, tag="one_by_one", tag_field="schedule"):
    """One task takes one step, any of the runnable ones; then again."""

    def words(self) -> str:
        return "schedule: one task at a time takes a step, any of the runnable ones"


class Priorities(Data, frozen=True, tag="priorities", tag_field="schedule"):
    """Each task has a priority and the highest runs; at `changes` of the first `within` steps the one that runs falls
    below all others (probabilistic concurrency testing: finds every bug of so many ordering constraints)."""

    changes: Count
    within: Nth

    def words(self) -> str:
        return (
            f"schedule: by priority, the highest first; at {self.changes} of the first {self.within} steps the one "
            "that runs falls below all others"
        )


Schedule = HoldBack | OneByOne | Priorities
SCHEDULES: tuple[str, ...] = (SHUFFLED, *(str(kind.__struct_config__.tag) for kind in get_args(Schedule)))
"""Every name under which a schedule is counted."""


def name_of(schedule: Schedule | None) -> str:
    """For counting."""
    return SHUFFLED if schedule is None else str(schedule.__struct_config__.tag)


def draw_schedule(chance: random.Random) -> Schedule:
    """One of each kind as often as any other."""
    kinds: tuple[Callable[[], Schedule], ...] = (
        lambda: HoldBack(chance.choice((0.02, 0.1, 0.3)), chance.choice((3, 10, 40))),
        OneByOne,
        lambda: Priorities(chance.choice((1, 2, 3, 5)), chance.choice((300, 1500, 6000))),
    )
    return chance.choice(kinds)()
