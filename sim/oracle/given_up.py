"""Work that a whole checkpoint holds: a run gives it up only where it cannot be had back (INV-97).

Whoever restores an older checkpoint, or starts rows over, does that work again: nothing in the output shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.storage.pointer import read_pointer
from sim.disk import SimFileSystem
from sim.oracle.disk import RunDirectory
from sim.oracle.files import Picture
from sim.oracle.findings import Check, Findings, Handler
from sim.trace import Row

NONE_LEFT = "no checkpoint in"
"""How a run begins to say that it cannot use any."""


class GivenUp(Check):
    """INV-97: the newest checkpoint is the one that is restored, unless it has rotted or cannot be read; and while it
    is whole no run says that there is none. Where checkpoints are mislaid, or a server will not have the state of a
    whole one, no row is sent, since nobody has said that it may start over."""

    def __init__(self, findings: Findings, disk: SimFileSystem, directory: RunDirectory, controller: str) -> None:
        super().__init__(findings)
        self._disk = disk
        self._directory = directory
        self._controller = controller
        self._asked: set[int] = set()
        """Restores under way."""
        self._answers: set[int] = set()
        """How this life's restores were answered: statuses, 0 for those that were not."""
        self._unreadable = False
        """A step of this life's disk has failed."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "node.started": self._new_life,
            "disk.error": self._error,
            "collector.restored": self._restored,
            "collector.refused": self._refused,
            "net.request": self._request,
            **dict.fromkeys(("net.replied", "net.failed"), self._answer),
            "collector.dispatch": self._dispatch,
        }

    def _new_life(self, row: Row) -> None:
        if row.node == self._controller:
            self._unreadable = False
            self._asked.clear()
            self._answers.clear()

    def _request(self, row: Row) -> None:
        if row.node == self._controller and row.fields["path"].endswith("/restore"):
            self._asked.add(row.fields["x"])

    def _answer(self, row: Row) -> None:
        if row.fields["x"] in self._asked:
            self._asked.discard(row.fields["x"])
            self._answers.add(row.fields.get("status", 0))

    def _dispatch(self, row: Row) -> None:
        self.look(
            97,
            f"{row.fields['episode']} is sent without a word of the checkpoints that are gone"
            if self._directory.mislaid
            else None,
            row.node,
        )
        not_had = self._answers - {200}
        refused = not_had == {InvalidCheckpointState.status} and not self._unreadable
        self.look(
            97,
            f"{row.fields['episode']} is sent, and a server has refused the state of a whole checkpoint"
            if refused
            else None,
            row.node,
        )

    def _error(self, row: Row) -> None:
        if row.node == self._controller:
            self._unreadable = True

    def _restored(self, row: Row) -> None:
        restored = row.fields["checkpoint_id"]
        newest = self._newest()
        older = newest is not None and newest != restored
        self.look(97, f"{restored} is restored, and {newest} is newer and whole" if older else None, row.node)

    def _refused(self, row: Row) -> None:
        if NONE_LEFT in row.fields["why"]:
            newest = self._newest()
            self.look(97, f"no checkpoint can be used, it says, and {newest} is whole" if newest else None, row.node)

    def _newest(self) -> str | None:
        """The newest published checkpoint, if it is whole and this life could read it."""
        run_dir = self._directory.run_dir
        try:
            pointer = read_pointer(Picture(self._disk.tree(run_dir)), run_dir)
        except InvalidCheckpointState:
            return None  # which is seen as INV-48
        gone = (
            pointer is None
            or self._directory.mislaid
            or pointer.checkpoint_id in self._directory.rotten
            or self._unreadable
        )
        return None if gone or pointer is None else pointer.checkpoint_id
