"""An oracle before a stage on which a test plays what servers and disk would do. Nothing runs; rows are made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ckpt.controller.published import collection_of
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.manifest import ManifestHead
from gym_ckpt.storage.publication import publish
from gym_ckpt.storage.records import AbortFlag, write_records
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from sim.cluster import RUN_DIR, Cluster, Options
from sim.oracle import Oracle
from sim.oracle.files import digest
from sim.reference import Output, Reference
from sim.workload import workload
from sim.world import World

NOTHING = Reference(Output((), (), (), ()), {}, {}, {"r": 2})
MEMBERS = {"environment": Kind.ENVIRONMENT, "agent": Kind.AGENT, "policy": Kind.MODEL, "inventory": Kind.RESOURCES}
Records = Mapping[str, Mapping[str, Any]]
"""By server, by capture key: the state."""


class Onlooker:
    """`emit` plays an event; `found` names the invariants that the oracle saw broken."""

    def __init__(self, *, keep: int = 2) -> None:
        self.world = World(0)
        self.cluster = Cluster(self.world, workload(0), Options(keep=keep))
        self.oracle = Oracle(self.world, self.cluster, NOTHING)
        self.oracle.attach()
        self.files = self.world.disk.view("operator")
        self.world.disk.make_dirs(layout.checkpoints_dir(RUN_DIR))
        self._tokens = 0
        for name in MEMBERS:
            self.emit(name, "node.started", epoch=1)

    def emit(self, node: str, event: str, **fields: Any) -> None:
        self.world.emit(node, event, **fields)

    @property
    def found(self) -> set[str]:
        return {violation.invariant for violation in self.oracle.violations}

    def checked(self, number: int) -> int:
        return self.oracle.checked[f"INV-{number}"]

    # Servers.

    def restart(self) -> None:
        """Everything begins a new life."""
        for name in (*MEMBERS, "controller"):
            self.emit(name, "node.started", epoch=2)

    def phase(self, node: str, was: str, now: str, checkpoint_id: str | None, why: str) -> None:
        kind = MEMBERS[node]
        fields = {"kind": kind.value, "instance": node, "was": was, "now": now, "why": why}
        self.emit(node, "phase", checkpoint_id=checkpoint_id, **fields)

    def close(self, node: str, checkpoint_id: str = "c-1") -> None:
        self.phase(node, "idle", "preparing", checkpoint_id, "Prepare")
        self.emit(node, "admission.closed")

    def open(self, node: str, was: str = "prepared") -> None:
        self.phase(node, was, "idle", None, "Resume")
        self.emit(node, "admission.opened")

    def begin_restore(self, node: str, restore_id: str = "x-restore") -> None:
        self.phase(node, "idle", "restoring", restore_id, "Restore")
        self.emit(node, "admission.closed")

    def install(self, node: str, states: Mapping[str, Any], **changed: Any) -> None:
        """`states`: by capture key as exported. `changed`: fields that are to say something else."""
        before = [EpisodeId.from_key(key) for key in states]
        digests = {EpisodeId.from_key(key).next().key: digest(state) for key, state in states.items()}
        fields = {
            "kind": MEMBERS[node].value,
            "instance": node,
            "source": "c-1",
            "restore_id": "x-restore",
            "scope": list(states),
            "digests": digests,
            "live": list(digests),
            "marks": {each.rollout_id: each.attempt for each in before},
        }
        self.emit(node, "restore.installed", **fields | changed)

    # The disk.

    def token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:016x}"

    def write(self, checkpoint_id: str, records: Records) -> str:
        """What a commit leaves: records and manifests. Returns the directory."""
        directory = layout.checkpoint_dir(RUN_DIR, checkpoint_id)
        for node, states in records.items():
            head = ManifestHead(kind=MEMBERS[node], instance=node, checkpoint_id=checkpoint_id)
            finish(self.files, write_records(directory, head, lines(states), AbortFlag(), self.token()))
        return directory

    def publish(self, checkpoint_id: str, records: Records, continued: list[str] | None = None) -> None:
        """Write a checkpoint, move the pointer, and say so."""
        keys = ["r"] if continued is None else continued
        for node, states in records.items():
            fields = {"kind": MEMBERS[node].value, "instance": node, "checkpoint_id": checkpoint_id}
            self.emit(node, "commit.exported", episodes=[key for key in states if key in keys], scope=keys, **fields)
        self.write(checkpoint_id, records)
        self.point(checkpoint_id, [f"{MEMBERS[node].value}/{node}" for node in records])
        self.say_published(checkpoint_id, keys)

    def point(self, checkpoint_id: str, participants: list[str]) -> None:
        collection = collection_of(
            run_id="x", run="x", created_at=0.0, continued=(), restarted=(), participants=participants
        )
        finish(self.files, publish(RUN_DIR, checkpoint_id, collection, self.token()))

    def say_published(self, checkpoint_id: str, continued: list[str]) -> None:
        self.emit("controller", "collector.published", checkpoint_id=checkpoint_id, certain=True, continued=continued)


def lines(states: Mapping[str, Any]) -> list[bytes]:
    """Records as they stand in a file."""
    found = []
    for key, state in states.items():
        each = EpisodeId.from_key(key)
        row = {"episode": {"rollout_id": each.rollout_id, "attempt": each.attempt}, "state": state}
        found.append(json.dumps(row))
    return found


def checkpoint(*calls: str) -> dict[str, dict[str, Any]]:
    """A small checkpoint of the rollout `r`, whose session and gate know these calls."""
    rows = [{"model_call_id": call} for call in calls]
    return {
        "environment": {"r": {"done": 2}},
        "agent": {"r": {"opened": {}, "state": {"calls": rows}}},
        "policy": {"r": {"rows": rows}},
        "inventory": {"r": {"session_id": "s", "revision": 0, "state": {}}},
    }
