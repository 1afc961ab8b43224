"""What an oracle has found: violations, and how often each check really looked.

A check that never looked proves nothing, so looking is counted like finding. Must not know what is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gym_ckpt.errors import InvalidRolloutId
from gym_ckpt.invariants import INVARIANTS, Reason
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.messages import ROLLOUT_PREFIX
from sim.trace import Row
from sim.world import World

KEPT = 100
"""Violations that a run keeps; the first ones tell."""
Handler = Callable[[Row], None]


@dataclass(frozen=True, slots=True)
class Violation:
    """`invariant`: `INV-n`, or `RUN-...` for what no run may end with. `event_index`: of the trace, counted from 1."""

    invariant: str
    t: float
    node: str
    event_index: int
    seen: str
    must: str


class Findings:
    """Collects. `violations` in the order of their events."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.checked: Counter[str] = Counter()

    def look(self, number: int, reason: Reason, node: str = "") -> None:
        """A check of this invariant has looked, and seen `reason` against it, or None."""
        name = INVARIANTS[number].name
        self.checked[name] += 1
        if reason is not None:
            self.add(name, node, reason, INVARIANTS[number].title)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._world.now

    def add(self, name: str, node: str, seen: str, must: str) -> None:
        """Something is wrong, here and now."""
        if len(self.violations) < KEPT:
            world = self._world
            self.violations.append(Violation(name, world.now, node, world.trace.events, seen, must))


class Check:
    """One invariant, or a few that are seen by looking at the same thing. `handlers`: what is called on which event."""

    def __init__(self, findings: Findings) -> None:
        self.look = findings.look
        self._findings = findings

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._findings.now

    def handlers(self) -> Mapping[str, Handler]:
        """By event name; called in the order in which the checks are listed."""
        raise NotImplementedError


@lru_cache(maxsize=4096)
def episode(key: str) -> EpisodeId:
    """The episode of a capture key."""
    return EpisodeId.from_key(key)


def episodes(keys: list[str]) -> list[EpisodeId]:
    """Episodes of capture keys, in their order."""
    return [episode(key) for key in keys]


def key_of(path: str) -> str:
    """The capture key that a call's path names, well-formed or not; empty of one that is untagged."""
    if not path.startswith(ROLLOUT_PREFIX):
        return ""
    key, slash, _ = path[len(ROLLOUT_PREFIX) :].partition("/")
    return key if slash else ""


def caller(path: str) -> EpisodeId | None:
    """The episode that a call's path names; None of one that is untagged or malformed."""
    key = key_of(path)
    try:
        return episode(key) if key else None
    except InvalidRolloutId:
        return None
