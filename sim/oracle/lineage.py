"""What a run leaves in the ledger: the lineage of every output row, token by token (INV-4, 5, 16, 36, 39, 64, 67).

A row whose lineage cannot be used must say why, and the reason must be one that a disk can be blamed for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gym_ckpt.core.lineage import Reason
from gym_ckpt.core.rebuild import LineageInvalid, rebuild
from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.ledger import read_lineage
from gym_ckpt.storage.tokens import StagedDamaged, StagedMissing, get
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import StagedCall, cumulative_hash
from gym_ckpt.words import counted
from sim.disk import SimFileSystem
from sim.oracle.files import Picture
from sim.oracle.findings import Check, Findings, Handler, episodes
from sim.oracle.ledger import FENCE, POISON, ROWS, Shelf, Writing, named
from sim.trace import Row

DISK = frozenset({Reason.CAPTURE_FAILED, Reason.ROW_WRITE_FAILED})
"""Why a rollout may be unusable without a mistake of ours."""


class Lineages(Check):
    """Follows restores and crashes, to know whose imported rows a power cut may have taken; `after_all` at the end."""

    def __init__(
        self, findings: Findings, disk: SimFileSystem, shelf: Shelf, writing: Writing, models: frozenset[str]
    ) -> None:
        super().__init__(findings)
        self._disk = disk
        self._shelf = shelf
        self._writing = writing
        self._models = models
        self._imported: dict[str, set[str]] = {}
        """By restored attempt: the lines that it began with."""
        self._excused: set[str] = set()
        """Restored attempts of which a power cut took some: what is imported is not synced."""
        self._forgot: dict[str, set[str]] = {}
        """By rollout: model servers that have forgotten it since anything of it was last fenced."""
        self._undropped: Counter[str] = Counter()
        """By model server: staged calls that its disk would not remove, in this life."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "collector.restored": self._restore,
            "node.crashed": self._crash,
            "retire.done": self._fenced,
            "restore.installed": self._installed,
            "restore.discarded": self._fenced,
            "forget.done": self._forgotten,
            "node.started": self._new_life,
            "gate.not_dropped": self._not_dropped,
            "gate.not_captured": self._not_dropped,
        }

    def _new_life(self, row: Row) -> None:
        self._undropped.pop(row.node, None)

    def _not_dropped(self, row: Row) -> None:
        self._undropped[row.node] += 1

    def _restore(self, row: Row) -> None:
        self._imported.update({key: self._lines(key) for key in row.fields["installed"]})

    def _crash(self, row: Row) -> None:
        if row.node in self._models:
            self._excused.update(key for key, lines in self._imported.items() if not lines <= self._lines(key))

    def _lines(self, key: str) -> set[str]:
        return {f"{end} {line['model_call_id']}" for end in (ROWS, POISON) for line in self._shelf.lines(key + end)}

    def _fenced(self, row: Row) -> None:
        for each in episodes(row.fields["episodes"]):
            self._forgot.pop(each.rollout_id, None)

    def _installed(self, row: Row) -> None:
        for each in episodes(row.fields["scope"]):
            self._forgot.pop(each.rollout_id, None)

    def _forgotten(self, row: Row) -> None:
        if row.node in self._models:
            for rollout_id in row.fields["rollouts"]:
                self._forgot.setdefault(rollout_id, set()).add(row.node)

    def after_all(self, output: bytes) -> None:
        """The run has completed: look at all of it."""
        picture = Picture(self._disk.tree(self._shelf.directory))
        for line in output[: output.rfind(b"\n") + 1].splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # INV-1
            at = EpisodeId(row["rollout_id"], row["attempt"])
            if at.key not in self._excused and row["calls"]:
                self._output(picture, at, row["calls"])
        self._files()
        self._staged()

    def _staged(self) -> None:
        """Nothing is under way any more: no tokens wait for their row."""
        for name in sorted(self._models):
            left = self._disk.tree(f"{self._shelf.directory}/tokens/staged/{name}")
            wrong = len(left) > self._undropped[name]
            self.look(
                5, f"without a row: {counted(len(left), 'staged call')}, such as {min(left)}" if wrong else None, name
            )

    def _output(self, picture: Picture, at: EpisodeId, calls: list[dict[str, Any]]) -> None:
        try:
            lineage = finish(picture, read_lineage(self._shelf.directory, at))
        except InvalidCheckpointState as error:
            self.look(4, f"the ledger of {at} is damaged: {error.detail}")
            return
        if lineage.poison:
            root = any(entry.reason in DISK for entry in lineage.poison)
            self.look(67, None if root else f"{at} is unusable: {lineage.poison[0].reason}, and nothing had failed")
            return
        staged: dict[str, StagedCall] = {}
        for row in lineage.rows:
            try:
                staged[row.staging_key] = finish(picture, get(f"{self._shelf.directory}/tokens", row.staging_key))
            except (StagedMissing, StagedDamaged):
                continue
        try:
            made = rebuild(at, lineage.rows, staged, tip=calls[-1]["model_call_id"])
        except LineageInvalid as error:
            self.look(64 if error.reason is Reason.FOREIGN_CAPTURE_KEY else 4, f"the lineage of {at}: {error}")
            return
        names = [call["model_call_id"] for call in calls]
        # A lost answer and its equal repetition are one parent: then the chain holds the other's id.
        wrong = len(made.call_ids) != len(names) or cumulative_hash(made.token_ids) != calls[-1]["tokens_hash"]
        self.look(4, f"the lineage of {at} is {made.call_ids}, its row says {names}" if wrong else None)

    def _files(self) -> None:
        names = [(name, *named(name)) for name in self._shelf.names()]
        fences = {at for _, at, ending in names if ending == FENCE}
        for name, at, ending in names:
            if ending != ROWS:
                continue
            self.look(36, f"{name} stands beside its fence" if at in fences else None)
            for row in self._shelf.rows(at.key):
                call = row["model_call_id"]
                self.look(16, None if call in self._writing.begun else f"call {call} has a row and never began")
                made_under = call.rpartition(".c")[0]
                foreign = row["capture_key"] != made_under
                self.look(64, f"the row of {call} in {at} says {row['capture_key']}" if foreign else None)
        fenced = {at.rollout_id: at for at in sorted(fences)}
        for rollout_id in sorted(each for each, models in self._forgot.items() if models == self._models):
            left = fenced.get(rollout_id)
            self.look(39, f"the fence of {left} outlived its rollout" if left is not None else None)
