"""The batch system of a simulated cluster: brings up again what went down, as the plan says.

A server that dies alone comes back alone, or the whole cluster is restarted with it. A controller that ended without
having completed is requeued: with the whole cluster (every server restarted, so that a restore works) or alone (servers
stayed up, so that a restore is refused). From `heal` on, everything that is down comes up.

Must not know: faults, plans, invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sim.cluster import Cluster
from sim.trace import Row
from sim.workload import CONTROLLER
from sim.world import World

ALONE_S = 0.25
"""After this time a server comes back of which nobody says otherwise."""
PAUSE_S = 0.5
"""Between two lives of a controller that ends again and again, once nothing is wrong any more."""
_ENDS = frozenset({"node.crashed", "node.exited", "node.died"})

Comeback = tuple[Literal["alone", "whole", "healing"], float]
"""How a node comes back, and after how many seconds."""


class Keeper:
    """`comeback`: asked for each node that goes down; None leaves it to the default."""

    def __init__(
        self, world: World, cluster: Cluster, requeue: Comeback, comeback: Callable[[str], Comeback | None]
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._requeue = requeue
        self._comeback = comeback
        self._healed = False
        self._restarting = False
        self._whole_due = False
        self._due: set[str] = set()
        """Nodes whose restart is only a matter of time."""
        world.trace.subscribe(self._saw, _ENDS)

    @property
    def complete(self) -> bool:
        """The controller has said that every row has ended, and its process with it."""
        return self._cluster.complete and not self._world.nodes[CONTROLLER].alive

    def heal(self, *, whole: bool) -> None:
        """Bring up what is down, or restart everything; from now on nothing stays down."""
        self._healed = True
        if whole and not self.complete:
            self._restart_whole()
        for name in (*self._cluster.servers, CONTROLLER):
            if name not in self._due and not self._whole_due:
                self._start(name)

    def _saw(self, row: Row) -> None:
        if not self._restarting and row.node in (*self._cluster.servers, CONTROLLER):
            self._went_down(row.node)

    def _went_down(self, name: str) -> None:
        how, after_s = self._comeback(name) or (self._requeue if name == CONTROLLER else ("alone", ALONE_S))
        if name == CONTROLLER and self._cluster.complete:
            return
        if self._healed:
            how, after_s = "alone" if how == "healing" else how, max(after_s, PAUSE_S)
        if how == "whole" and not self._whole_due:
            self._whole_due = True
            self._world.clock.call_after(after_s, self._restart_whole)
        elif how == "alone":
            self._due.add(name)
            self._world.clock.call_after(after_s, self._start, name)

    def _start(self, name: str) -> None:
        self._due.discard(name)
        node = self._world.nodes[name]
        if not node.alive and not (name == CONTROLLER and self._cluster.complete):
            node.start()

    def _restart_whole(self) -> None:
        """The job is killed and starts again."""
        self._whole_due = False
        if self.complete:  # nothing to requeue for; what is down comes up all the same
            for name in self._cluster.servers:
                self._start(name)
            return
        self._restarting = True
        for name in (*self._cluster.servers, CONTROLLER):
            self._world.nodes[name].crash()
            self._comeback(name)  # whatever a fault had meant for this death, it is over
        self._restarting = False
        for name in (*self._cluster.servers, CONTROLLER):
            self._start(name)
