"""The time that an episode is charged for (INV-24): no more than its environment was open to work in."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.types import EpisodeId, Kind
from sim.oracle.files import Archive
from sim.oracle.findings import Check, Findings, Handler, episode, episodes
from sim.trace import Row

ROUNDED_S = 0.002
"""What is charged is written down in milliseconds, before a restore and after."""


class Charged(Check):
    """INV-24: what a checkpoint charges an episode's time-out for was time in which admission was open."""

    def __init__(self, findings: Findings, archive: Archive) -> None:
        super().__init__(findings)
        self._archive = archive
        self._open: dict[str, float] = {}
        """By environment server: seconds for which it was open, until it was closed or opened last."""
        self._since: dict[str, float | None] = {}
        """... and since when it is open; None while it is closed."""
        self._begun: dict[tuple[str, EpisodeId], float] = {}
        """Where that stood when an episode began to run there."""
        self._before: dict[tuple[str, EpisodeId], float] = {}
        """What an attempt was charged for in the checkpoint that it continues."""
        self._at_export: dict[tuple[str, str], float] = {}
        """Where it stood when a server exported, by checkpoint and server."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "admission.closed": self._closed,
            "admission.opened": self._opened,
            "restore.installed": self._installed,
            "episode.started": self._started,
            "commit.exported": self._exported,
            "collector.published": self._published,
        }

    def _new_life(self, row: Row) -> None:
        self._open[row.node], self._since[row.node] = 0.0, row.t
        for table in (self._begun, self._before):
            for at in [at for at in table if at[0] == row.node]:
                del table[at]

    def _worked(self, row: Row) -> float:
        since = self._since[row.node]
        return self._open[row.node] + (0.0 if since is None else row.t - since)

    def _closed(self, row: Row) -> None:
        self._open[row.node], self._since[row.node] = self._worked(row), None

    def _opened(self, row: Row) -> None:
        self._since[row.node] = row.t

    def _installed(self, row: Row) -> None:
        if row.fields["kind"] != Kind.ENVIRONMENT:
            return
        held = self._archive.contents(row.fields["source"]).records.get((Kind.ENVIRONMENT, row.fields["instance"]), {})
        for at in episodes(row.fields["scope"]):
            if at in held:
                self._before[row.node, at.next()] = held[at].get("worked_s", 0.0)

    def _started(self, row: Row) -> None:
        self._begun[row.node, episode(row.fields["episode"])] = self._worked(row)

    def _exported(self, row: Row) -> None:
        if row.fields["kind"] == Kind.ENVIRONMENT:
            self._at_export[row.fields["checkpoint_id"], row.node] = self._worked(row)

    def _published(self, row: Row) -> None:
        """Servers are named as their nodes."""
        checkpoint_id = row.fields["checkpoint_id"]
        for (kind, node), held in self._archive.contents(checkpoint_id).records.items():
            until = self._at_export.get((checkpoint_id, node))
            if kind != Kind.ENVIRONMENT or until is None:
                continue
            for at, record in held.items():
                if (begun := self._begun.get((node, at))) is None:
                    continue
                charged = record.get("worked_s", 0.0) - self._before.get((node, at), 0.0)
                over = charged > until - begun + ROUNDED_S
                self.look(24, f"{at} is charged for {charged:.3f} s of {until - begun:.3f} s" if over else None, node)
