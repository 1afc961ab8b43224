"""The controller: whose the directory is (INV-95), what it does about episodes that block a checkpoint (INV-96). And
whom an agent may call (INV-21)."""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.types import EpisodeId
from sim.oracle.findings import Check, Findings, Handler, episode, episodes
from sim.trace import Row


class Owned(Check):
    """INV-95: while a controller sends rows nobody else gets its directory; if somebody did, as its lock had been swept
    away, it writes no row that ended after that."""

    def __init__(self, findings: Findings, controller: str) -> None:
        super().__init__(findings)
        self._controller = controller
        self._fresh()

    def _fresh(self) -> None:
        self._lost = False
        self._late: set[EpisodeId] = set()
        """Attempts that ended after somebody else had the directory."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "rival.took": self._took,
            "collector.settled": self._settled,
            "collector.row": self._row,
            "collector.published": self._published,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._fresh()

    def _took(self, row: Row) -> None:
        self._lost = True
        seen = None if row.fields["swept"] else "another collector got the directory of one that sends rows"
        self.look(95, seen, self._controller)

    def _settled(self, row: Row) -> None:
        if self._lost:
            self._late.add(episode(row.fields["episode"]))

    def _row(self, row: Row) -> None:
        if self._lost:
            written = episode(row.fields["episode"])
            seen = f"{written} was written after another collector had the directory" if written in self._late else None
            self.look(95, seen, row.node)

    def _published(self, row: Row) -> None:
        if self._lost:
            taken = row.fields["checkpoint_id"]
            self.look(95, f"{taken} was published after another collector had the directory", row.node)


class Blockers(Check):
    """INV-96: a checkpoint that episodes blocked is tried again only once they are retired or over."""

    def __init__(self, findings: Findings, controller: str) -> None:
        super().__init__(findings)
        self._controller = controller
        self._left: set[EpisodeId] = set()
        self._over_since: set[EpisodeId] = set()
        """Over or retired since the checkpoint was begun: it may name one that ended while it was given up."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "collector.checkpoint_failed": self._failed,
            "collector.retire": self._gone,
            "collector.settled": self._over,
            "collector.checkpoint_opened": self._opened,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._left = set()

    def _failed(self, row: Row) -> None:
        blockers = set(episodes(row.fields["blockers"])) if row.fields["again"] else set()
        self._left = blockers - self._over_since

    def _gone(self, row: Row) -> None:
        gone = set(episodes(row.fields["episodes"]))
        self._left -= gone
        self._over_since |= gone

    def _over(self, row: Row) -> None:
        self._left.discard(episode(row.fields["episode"]))
        self._over_since.add(episode(row.fields["episode"]))

    def _opened(self, row: Row) -> None:
        left = sorted(self._left)
        self.look(96, f"a checkpoint is tried again, and its blocker {left[0]} runs on" if left else None, row.node)
        self._left, self._over_since = set(), set()


class Gated(Check):
    """INV-21: an agent whose configuration names a model server past the gate does not start, and says why."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"ungated.ready": self._ready, "ungated.refused": self._refused}

    def _ready(self, row: Row) -> None:
        self.look(21, f"an agent has started that calls {', '.join(row.fields['model'])}", row.node)

    def _refused(self, row: Row) -> None:
        meant = "past the gate" in row.fields["why"]
        self.look(21, None if meant else f"it is refused for another reason: {row.fields['why']}", row.node)
