"""What a restarted collection does with each row, given what the previous runs left.

Inputs: the output file (finished rows win), the failure file, the dispatch log, and the rows that the newest valid
checkpoint continues. Output: the rows as the new run begins with them.

A row of the checkpoint, held there at attempt N, is continued (as N+1) unless something newer happened to it:

  - it finished, or it failed at N or later: that reply released it on the servers;
  - an attempt after N was dispatched from input: the run that did so had given N up. This covers a checkpoint that the
    previous run did not publish itself but started over from. An N+1 which was itself restored from N is no obstacle:
    a restore deletes whatever the dead N+1 left, any number of times (INV-62, INV-65).

Every other row that was dispatched may still be running somewhere: its last attempt is retired everywhere first and the
row starts one attempt later. So attempts only grow, and a survivor of a crash cannot write into the rerun (INV-38).

It must not know how any of this is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gym_ckpt.core.collection import Row, RowState
from gym_ckpt.types import EpisodeId


class DispatchHistory:
    """The dispatch log of all runs so far, in order, kept as what matters of each rollout."""

    __slots__ = ("_last", "_lost")

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, bool]] = {}
        self._lost: dict[str, int] = {}

    def add(self, episode: EpisodeId, *, restored: bool, lost: int = 0) -> None:
        """One line of the log: the attempt is about to be sent, or (`restored`) its state to be put on the servers.

        `lost`: how many attempts of the rollout had been lost by then.
        """
        if lost > self.lost(episode.rollout_id):
            self._lost[episode.rollout_id] = lost
        last, _ = self._last.get(episode.rollout_id, (-1, False))
        if episode.attempt > last:
            self._last[episode.rollout_id] = (episode.attempt, restored)
        elif episode.attempt == last and restored:
            self._last[episode.rollout_id] = (last, True)

    def last(self, rollout_id: str) -> int:
        """The highest attempt that was logged; -1 when there is none."""
        return self._last.get(rollout_id, (-1, False))[0]

    def lost(self, rollout_id: str) -> int:
        """How many of its attempts ended without a reply or blocked a checkpoint while some run looked on."""
        return self._lost.get(rollout_id, 0)

    def gave_up(self, checkpointed: EpisodeId) -> bool:
        """Did something run after this checkpointed attempt that was not its own continuation?"""
        last, restored = self._last.get(checkpointed.rollout_id, (-1, False))
        return last > checkpointed.attempt and not (last == checkpointed.attempt + 1 and restored)

    def __len__(self) -> int:
        """Lines of the shortest log of the same meaning."""
        return len(self._last)

    def episodes(self) -> list[tuple[EpisodeId, bool, int]]:
        """The shortest log of the same meaning, sorted: `(attempt, restored, lost)`."""
        return [
            (EpisodeId(name, attempt), restored, self.lost(name))
            for name, (attempt, restored) in sorted(self._last.items())
        ]


@dataclass(slots=True)
class FailureHistory:
    """The failure rows of one rollout. `last`: the highest attempt that failed; `final`: the rollout was given up."""

    count: int = 0
    last: int = -1
    final: bool = False

    def add(self, attempt: int, final: bool) -> None:
        self.count += attempt > self.last  # attempts only grow: the same again is a copy, and no failure of its own
        self.last = max(self.last, attempt)
        self.final = self.final or final


@dataclass(frozen=True, slots=True)
class Restart:
    """How a run begins. `rows`: all, in input order, for the collection to own.

    `to_restore`: the checkpointed attempts (N) to continue. `survivors`: attempts of dead runs that are retired
    everywhere before their rows start again. Both sorted. `over`: rollouts that an earlier run had begun and this one
    starts from input.
    """

    rows: tuple[Row, ...]
    to_restore: tuple[EpisodeId, ...]
    survivors: tuple[EpisodeId, ...]
    over: tuple[str, ...]


def plan_restart(
    rollouts: Iterable[str],
    *,
    finished: Mapping[str, int],
    failures: Mapping[str, FailureHistory],
    log: DispatchHistory,
    checkpointed: Iterable[EpisodeId],
) -> Restart:
    """Decide for each rollout. `finished`: attempt of its output row; `checkpointed`: what the checkpoint continues."""
    held = {episode.rollout_id: episode for episode in checkpointed}
    nothing = FailureHistory()
    rows: list[Row] = []
    to_restore: list[EpisodeId] = []
    for rollout_id in rollouts:
        failed = failures.get(rollout_id, nothing)
        episode = held.get(rollout_id)
        last = max(log.last(rollout_id), failed.last, -1 if episode is None else episode.attempt)
        row = Row(rollout_id, failures=failed.count, lost=log.lost(rollout_id), marked=last >= 0)
        if rollout_id in finished:
            row.attempt = finished[rollout_id]
            row.state = RowState.FINISHED
            row.marked = True
        elif failed.final:
            row.attempt = max(last, 0)
            row.state = RowState.FAILED
        elif episode is not None and failed.last < episode.attempt and not log.gave_up(episode):
            to_restore.append(episode)
            row.attempt = episode.attempt + 1
            row.state = RowState.RESTORED
            row.marked = True
        elif last > failed.last:
            row.attempt = last
            row.state = RowState.RETIRING
        else:
            row.attempt = last + 1
        rows.append(row)
    survivors = sorted(row.episode for row in rows if row.state is RowState.RETIRING)
    begun = [row for row in rows if row.state is RowState.RETIRING or (row.state is RowState.WAITING and row.attempt)]
    return Restart(tuple(rows), tuple(sorted(to_restore)), tuple(survivors), tuple(row.rollout_id for row in begun))
