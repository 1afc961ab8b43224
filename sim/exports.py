"""Exports of an author's application: one that fails although nothing struck its server meanwhile is its own mistake.

The output of such a run may well be right, as a checkpoint may fail; but no crash would ever find one to go back to.
Must not know plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from sim.oracle import Violation
from sim.trace import Row
from sim.world import World

NAME = "RUN-export"
MUST = "where nothing strikes its server, an application exports what it holds, as plain JSON"
NOT_JSON = " cannot be exported: "
"""What an `ExportFailed` says of a record that JSON cannot carry, or that is too large."""

ENDINGS = {
    "collector.published": "published",
    "collector.checkpoint_failed": "failed",
    "collector.restored": "restored",
}
"""What becomes of checkpoints, by the event that says it."""


class Exports:
    """Watches the servers of these names. `checkpoints`: how many were published, failed and restored."""

    def __init__(self, world: World, own: Collection[str]) -> None:
        self.violations: list[Violation] = []
        self.checkpoints: Counter[str] = Counter()
        self._world = world
        self._own = own
        self._struck: set[str] = set()
        """Servers that something struck since they were prepared."""
        self._exported: set[str] = set()
        """Those whose hook gave records since then: what fails later than that is the disk's, or nobody's."""
        world.trace.subscribe(self._ended, tuple(ENDINGS))
        if own:
            world.trace.subscribe(self._saw, ("phase", "fault", "net.failed", "commit.exported", "commit.failed"))

    def _ended(self, row: Row) -> None:
        self.checkpoints[ENDINGS[row.event]] += 1

    def _saw(self, row: Row) -> None:
        if row.node not in self._own:
            return
        match row.event:
            case "phase" if row.fields["now"] == "prepared":
                self._struck.discard(row.node)
                self._exported.discard(row.node)
            case "fault" | "net.failed":
                self._struck.add(row.node)
            case "commit.exported":
                self._exported.add(row.node)
            case "commit.failed" if row.node not in self._struck:
                why = row.fields["why"]
                if row.node not in self._exported or NOT_JSON in why:
                    world = self._world
                    seen = f"with nothing that struck it, an export fails: {why}"
                    self.violations.append(Violation(NAME, world.now, row.node, world.trace.events, seen, MUST))
