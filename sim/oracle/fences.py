"""Fences hold: what keeps a retired attempt's late rows out must outlast a power cut (INV-36, 63)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.types import EpisodeId
from sim.oracle.findings import Check, Findings, Handler, episodes
from sim.oracle.ledger import FENCE, Shelf
from sim.trace import Row


class Fences(Check):
    """INV-36: once every model server has retired an attempt, its fence and those of earlier ones are durable.

    Only one of the servers looks after a rollout's files; which, is their business. INV-63: so are those that a restore
    left, by the time rows are sent again.
    """

    def __init__(self, findings: Findings, shelf: Shelf, models: frozenset[str]) -> None:
        super().__init__(findings)
        self._shelf = shelf
        self._models = models
        self._done: dict[EpisodeId, set[str]] = {}
        """Who has retired this attempt, since its rollout was last forgotten."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"retire.done": self._retired, "forget.done": self._forgotten, "collector.restored": self._restored}

    def _retired(self, row: Row) -> None:
        if row.node not in self._models:
            return
        for each in episodes(row.fields["episodes"]):
            by = self._done.setdefault(each, set())
            by.add(row.node)
            if by == self._models:
                self.look(36, self._loose(each.rollout_id, each.attempt + 1))

    def _forgotten(self, row: Row) -> None:
        gone = set(row.fields["rollouts"])
        self._done = {each: by for each, by in self._done.items() if each.rollout_id not in gone}

    def _restored(self, row: Row) -> None:
        for each in episodes(row.fields["installed"]):
            self.look(63, self._loose(each.rollout_id, each.attempt))

    def _loose(self, rollout_id: str, attempts: int) -> str | None:
        """The first of these attempts' fences that stands and is not durable."""
        for attempt in range(attempts):
            name = EpisodeId(rollout_id, attempt).key + FENCE
            if self._shelf.has(name) and not self._shelf.has(name, durable=True):
                return f"{name} stands, and a power cut would take it"
        return None
