"""What an onlooker knows of each server from its events: a model, against which the checks hold what they see.

It follows the events alone and is brought up to date before the checks see a row. Everything a process knew goes with
its life. Must not judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sim.oracle.findings import Handler, episodes
from sim.trace import Row


@dataclass(slots=True)
class Server:
    """One life of one server."""

    name: str
    life: int = 0
    alive: bool = True
    closed: bool = False
    """Admission."""
    phase: str = "idle"
    opened: str | None = None
    """The checkpoint or restore that is open, or was last."""
    committed: bool = False
    """... and whether its records were written here."""
    kind: str = ""
    instance: str = ""
    served: bool = False
    marks: dict[str, int] = field(default_factory=dict)
    """Highest retired attempt by rollout, as the events say that it must be."""
    fenced: dict[str, int] = field(default_factory=dict)
    """... of these, what a restore has retired: N of N+1."""

    def mark(self, keys: list[str]) -> None:
        for each in episodes(keys):
            self.marks[each.rollout_id] = max(each.attempt, self.marks.get(each.rollout_id, -1))


class Known:
    """All servers. A node is known from its first event on."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}

    def server(self, name: str) -> Server:
        """The present or last life of a node."""
        found = self._servers.get(name)
        if found is None:
            found = self._servers[name] = Server(name)
        return found

    def servers(self) -> list[Server]:
        return [self._servers[name] for name in sorted(self._servers)]

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._started,
            "node.crashed": self._ended,
            "node.exited": self._ended,
            "node.died": self._ended,
            "admission.closed": self._closed,
            "admission.opened": self._opened,
            "phase": self._phase,
            "admission.stopped": self._stopped,
            "restore.installed": self._installed,
            "restore.discarded": self._discarded,
            "forget.done": self._forgotten,
        }

    def _started(self, row: Row) -> None:
        self._servers[row.node] = Server(row.node, row.fields["epoch"])

    def _ended(self, row: Row) -> None:
        self.server(row.node).alive = False

    def _closed(self, row: Row) -> None:
        self.server(row.node).closed = True

    def _opened(self, row: Row) -> None:
        self.server(row.node).closed = False

    def _phase(self, row: Row) -> None:
        server, fields = self.server(row.node), row.fields
        server.phase, server.kind, server.instance = fields["now"], fields["kind"], fields["instance"]
        if fields["checkpoint_id"] not in (None, server.opened):
            server.opened, server.committed = fields["checkpoint_id"], False
        server.committed = server.committed or fields["now"] == "committed"

    def _stopped(self, row: Row) -> None:
        self.server(row.node).mark(row.fields["asked"])

    def _installed(self, row: Row) -> None:
        server = self.server(row.node)
        for each in episodes(row.fields["scope"]):
            server.marks[each.rollout_id] = server.fenced[each.rollout_id] = each.attempt

    def _discarded(self, row: Row) -> None:
        self.server(row.node).mark(row.fields["episodes"])

    def _forgotten(self, row: Row) -> None:
        server = self.server(row.node)
        for rollout_id in row.fields["rollouts"]:
            server.marks.pop(rollout_id, None)
            server.fenced.pop(rollout_id, None)
