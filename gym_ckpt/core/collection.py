"""The rows of a collection run: which may start, which a checkpoint holds, which must be retired first.

One `Collection` per run of the controller. Every method is synchronous and costs O(1) per row that it touches: a frozen
copy per event would make a run of n rows cost n², so this machine mutates, and `rows()` shows it whole for comparison.

        waiting ──take──▶ in flight ──finished──▶ finished
        restored ─take──▶     │ ├────failed─────▶ resting (attempt + 1) | failed, after `max_attempts`
                              │ └──lost/blocked─▶ retiring ──retired──▶ resting (attempt + 1) | failed, after a bound
        restored ─────────────┴─restore failed──▶ retiring
        resting ──rested──▶ waiting

A row rests after an attempt that failed or was lost, the longer the more of them there were: what ails it may pass. The
rest begins with the end of the attempt, and is over with the run: a restart sends its rows at once.

Keeps INV-2 (a row finishes once, and a late reply of an attempt that is being retired counts for nothing), INV-90 (no
row is taken while a checkpoint is open), INV-91 (`scope`), INV-93 (retired: only rows without a reply, never while a
checkpoint is open). What a restart makes of files is in `gym_ckpt.core.collection_restart`.

An attempt whose connection was refused ran nowhere, and no row is taken until it is retired: then the servers answer
again, and a dead one has cost as many rows as were being sent, not the whole input.

It must not know how anything is sent or stored.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gym_ckpt.limits import LOST_ATTEMPTS_MAX, ROW_FAILED_GROWTH, ROW_LOST_GROWTH, ROW_REST_FIRST_S, ROW_REST_MAX_S
from gym_ckpt.types import EpisodeId


class RowState(StrEnum):
    """Where one row of the run stands."""

    WAITING = "waiting"
    RESTORED = "restored"
    """Its state is installed on the servers under this attempt; its `/run` has not been sent."""
    IN_FLIGHT = "in flight"
    RETIRING = "retiring"
    """This attempt may still run somewhere; the next must not start before it is retired everywhere."""
    RESTING = "resting"
    """It waits until it is time for its next attempt."""
    FINISHED = "finished"
    FAILED = "failed"


class Verdict(StrEnum):
    """What a failed, lost or retired attempt means for its row."""

    AGAIN = "again"
    FINAL = "final"
    IGNORED = "ignored"
    """A reply of an attempt that the controller no longer continues."""


@dataclass(slots=True)
class Row:
    """One rollout. `attempt`: the one that runs, or will run next. `failures`, `lost`: attempts that ended that way."""

    rollout_id: str
    attempt: int = 0
    state: RowState = RowState.WAITING
    failures: int = 0
    lost: int = 0
    restored: bool = False
    """The attempt that was sent last continues a checkpoint; sent but not logged, it goes back to RESTORED."""
    rest_until: float = 0.0
    """When its next attempt may be sent, on the clock of this run."""
    marked: bool = False
    """Servers may keep something of its attempts (a mark, delivered calls): to be forgotten at its end."""

    @property
    def episode(self) -> EpisodeId:
        return EpisodeId(self.rollout_id, self.attempt)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows stand where."""

    rows: int
    waiting: int
    restored: int
    in_flight: int
    retiring: int
    finished: int
    failed: int
    resting: int = 0


class Collection:
    """All rows of one run, in input order. `concurrency`: rows in flight at once. Raises nothing but assertions."""

    def __init__(self, rows: Iterable[Row], *, concurrency: int, max_attempts: int) -> None:
        self._rows = {row.rollout_id: row for row in rows}
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._queues = {RowState.RESTORED: deque[str](), RowState.WAITING: deque[str]()}
        self._resting: list[tuple[float, int, str]] = []
        """A heap: when each may be sent, and its place among equals."""
        self._rests = 0
        self._last_rested = 0.0
        self._retiring: dict[str, None] = {}
        self._in_flight: dict[str, None] = {}
        self._unreached: dict[str, None] = {}
        """Those of `_retiring` that never reached a server."""
        self._forgettable: dict[str, None] = {}
        self._number = dict.fromkeys(RowState, 0)
        self._open = False
        for row in self._rows.values():
            assert row.state is not RowState.IN_FLIGHT, f"{row.episode} is in flight before the run began"
            self._number[row.state] += 1
            self._enter(row)

    # ------------------------------------------------------------------------------------------- what to do

    @property
    def done(self) -> bool:
        """Every row ended in an output row or a failure row."""
        return self._number[RowState.FINISHED] + self._number[RowState.FAILED] == len(self._rows)

    @property
    def dispatchable(self) -> int:
        """How many rows `take` would give."""
        if self._open or self._unreached:
            return 0
        ready = self._number[RowState.RESTORED] + self._number[RowState.WAITING]
        return max(0, min(ready, self._concurrency - self._number[RowState.IN_FLIGHT]))

    @property
    def next_rested(self) -> float:
        """When `rested` will have something to do; infinite while no row rests."""
        return self._resting[0][0] if self._resting else math.inf

    @property
    def last_rested(self) -> float:
        """When the last of the rows that rest now may be sent; 0 while none does."""
        return self._last_rested if self._resting else 0.0

    def rested(self, now: float) -> None:
        """Rows that have rested long enough by now wait to be taken."""
        while self._resting and self.next_rested <= now:
            _, _, name = heapq.heappop(self._resting)
            self._move(self._rows[name], RowState.WAITING)

    @property
    def to_retire(self) -> bool:
        return bool(self._retiring)

    @property
    def unreached(self) -> int:
        """How many of the rows that are being retired were not begun: their servers could not be reached."""
        return len(self._unreached)

    @property
    def to_forget(self) -> bool:
        return bool(self._forgettable)

    @property
    def unfinished_started(self) -> bool:
        """Is there anything that a checkpoint would save?"""
        return self._number[RowState.IN_FLIGHT] + self._number[RowState.RESTORED] > 0

    def counts(self) -> Counts:
        number = self._number
        return Counts(
            rows=len(self._rows),
            waiting=number[RowState.WAITING],
            restored=number[RowState.RESTORED],
            in_flight=number[RowState.IN_FLIGHT],
            retiring=number[RowState.RETIRING],
            finished=number[RowState.FINISHED],
            failed=number[RowState.FAILED],
            resting=number[RowState.RESTING],
        )

    def continued(self) -> int:
        """Rows whose restored attempt is what ran, runs or will run to their end: not those that lost it."""
        return sum(row.restored or row.state is RowState.RESTORED for row in self._rows.values())

    def rows(self) -> list[Row]:
        """The rows in input order; for looking only."""
        return list(self._rows.values())

    def in_flight(self) -> list[EpisodeId]:
        return [self._rows[rollout_id].episode for rollout_id in self._in_flight]

    def is_current(self, episode: EpisodeId) -> bool:
        """Is this attempt in flight, so that its reply counts?"""
        row = self._rows.get(episode.rollout_id)
        return row is not None and row.state is RowState.IN_FLIGHT and row.attempt == episode.attempt

    def lost_before(self, episode: EpisodeId) -> int:
        """How many attempts of this row, which is in flight, were lost before this one."""
        return self._current(episode).lost

    # ------------------------------------------------------------------------------------------- dispatch

    def is_continued(self, episode: EpisodeId) -> bool:
        """Whether this attempt, which is in flight, goes on from a restored record."""
        return self._current(episode).restored

    def take(self) -> list[EpisodeId]:
        """Everything that may start now, restored rows first; they count as in flight from here on (INV-90)."""
        taken = []
        for _ in range(self.dispatchable):
            queue = self._queues[RowState.RESTORED] or self._queues[RowState.WAITING]
            row = self._rows[queue.popleft()]
            row.restored = row.state is RowState.RESTORED
            row.marked = True
            self._move(row, RowState.IN_FLIGHT)
            taken.append(row.episode)
        return taken

    def give_back(self, taken: Iterable[EpisodeId]) -> None:
        """The dispatch could not be logged: nothing was sent, and these rows start later at the same attempt."""
        for episode in reversed(list(taken)):
            row = self._current(episode)
            state = RowState.RESTORED if row.restored else RowState.WAITING
            self._move(row, state, first=True)

    # ------------------------------------------------------------------------------------------- replies

    def finished(self, episode: EpisodeId) -> Verdict:
        """A reply with a result. IGNORED: it must not be written (INV-38)."""
        if not self.is_current(episode):
            return Verdict.IGNORED
        row = self._current(episode)
        self._move(row, RowState.FINISHED)
        return Verdict.FINAL

    def failed(self, episode: EpisodeId, now: float) -> Verdict:
        """A reply that is a failure: it released the attempt on the servers and costs one of `max_attempts`."""
        if not self.is_current(episode):
            return Verdict.IGNORED
        row = self._current(episode)
        row.failures += 1
        if row.failures >= self._max_attempts:
            self._move(row, RowState.FAILED)
            return Verdict.FINAL
        row.attempt += 1
        row.restored = False
        row.rest_until = now + _rest_s(row.failures, ROW_FAILED_GROWTH)
        self._move(row, RowState.RESTING)
        return Verdict.AGAIN

    def lost(self, episode: EpisodeId, now: float, *, unreached: bool = False) -> Verdict:
        """No reply, or the attempt blocks a checkpoint: it must be retired everywhere before the next one (INV-93).

        `unreached`: its call certainly reached nobody, and neither would that of another row.
        """
        if not self.is_current(episode):
            return Verdict.IGNORED
        row = self._current(episode)
        row.lost += 1
        row.restored = False
        row.rest_until = now + _rest_s(row.lost, ROW_LOST_GROWTH)
        self._move(row, RowState.RETIRING)
        if unreached:
            self._unreached[row.rollout_id] = None
        return Verdict.AGAIN

    def restore_failed(self, episodes: Iterable[EpisodeId]) -> None:
        """These attempts (N+1) were not installed after all, and are given up: retired, then N+2 from input."""
        gone = {episode.rollout_id for episode in episodes}
        queue = self._queues[RowState.RESTORED]
        kept = [name for name in queue if name not in gone]
        assert len(kept) + len(gone) == len(queue), "only a row that waits restored can fail to be"
        for name in [name for name in queue if name in gone]:
            self._move(self._rows[name], RowState.RETIRING)
        queue.clear()
        queue.extend(kept)

    # ------------------------------------------------------------------------------------------- checkpoint

    def open_checkpoint(self) -> None:
        """From here no row starts and none is retired (INV-90, INV-93)."""
        assert not self._open, "a checkpoint is open already"
        self._open = True

    def close_checkpoint(self) -> None:
        self._open = False

    def scope(self, restarts: Iterable[EpisodeId]) -> tuple[EpisodeId, ...]:
        """What the open checkpoint commits: rows without a reply and restored ones not sent, minus `restarts`, sorted.

        A row that is being retired is left out: its attempt will not be continued (INV-91).
        """
        assert self._open, "a scope is built while its checkpoint is open"
        left_out = frozenset(restarts)
        held = [*self._in_flight, *self._queues[RowState.RESTORED]]
        return tuple(sorted(episode for name in held if (episode := self._rows[name].episode) not in left_out))

    # ------------------------------------------------------------------------------------------- retire and forget

    def retire_batch(self, limit: int) -> tuple[EpisodeId, ...]:
        """Attempts to retire everywhere, at most `limit`, oldest first."""
        assert not self._open, "nothing is retired while a checkpoint is open (INV-93)"
        return tuple(self._rows[name].episode for name, _ in zip(self._retiring, range(limit), strict=False))

    def retired(self, episodes: Iterable[EpisodeId]) -> list[EpisodeId]:
        """These attempts are retired everywhere; their rows wait for the next one. Returns those given up instead."""
        given_up = []
        for episode in episodes:
            row = self._rows[episode.rollout_id]
            assert row.state is RowState.RETIRING and row.attempt == episode.attempt, f"{episode} was not to be retired"
            row.marked = True
            if row.lost >= LOST_ATTEMPTS_MAX:
                given_up.append(episode)
                self._move(row, RowState.FAILED)
            else:
                row.attempt += 1
                self._move(row, RowState.RESTING if row.rest_until else RowState.WAITING)
        return given_up

    def forget_batch(self, limit: int) -> tuple[EpisodeId, ...]:
        """Last attempts of finished rollouts of which servers may still keep something, at most `limit`."""
        return tuple(self._rows[name].episode for name, _ in zip(self._forgettable, range(limit), strict=False))

    def forgotten(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in episodes:
            self._forgettable.pop(episode.rollout_id, None)

    # ------------------------------------------------------------------------------------------- inside

    def _current(self, episode: EpisodeId) -> Row:
        assert self.is_current(episode), f"{episode} is not in flight"
        return self._rows[episode.rollout_id]

    def _move(self, row: Row, state: RowState, *, first: bool = False) -> None:
        self._number[row.state] -= 1
        self._number[state] += 1
        self._in_flight.pop(row.rollout_id, None)
        self._retiring.pop(row.rollout_id, None)
        self._unreached.pop(row.rollout_id, None)
        row.state = state
        self._enter(row, first=first)

    def _enter(self, row: Row, *, first: bool = False) -> None:
        name = row.rollout_id
        if row.state in self._queues:
            queue = self._queues[row.state]
            if first:
                queue.appendleft(name)
            else:
                queue.append(name)
        elif row.state is RowState.IN_FLIGHT:
            self._in_flight[name] = None
        elif row.state is RowState.RESTING:
            self._rests += 1
            self._last_rested = max(self._last_rested, row.rest_until)  # it leaves the heap last
            heapq.heappush(self._resting, (row.rest_until, self._rests, name))
        elif row.state is RowState.RETIRING:
            self._retiring[name] = None
        elif row.marked:
            self._forgettable[name] = None


def _rest_s(ended: int, growth: float) -> float:
    """How long a row rests after so many attempts that ended in one way. The exponent is bounded, as the rest is."""
    return min(ROW_REST_FIRST_S * growth ** min(ended - 1, 64), ROW_REST_MAX_S)
