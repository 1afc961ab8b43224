"""The state of rest that everything must come to once faults have stopped (INV-5, 53)."""

from __future__ import annotations

import anyio

from gym_ckpt.errors import GymCkptError
from gym_ckpt.invariants import at_rest
from gym_ckpt.ports import Ports
from gym_ckpt.storage import layout
from gym_ckpt.wire.messages import Status
from gym_ckpt.words import counted
from sim.cluster import RUN_DIR, Cluster
from sim.oracle.disk import participants
from sim.oracle.findings import Findings
from sim.oracle.known import Known
from sim.world import World

LOOK_EVERY_S = 1.0
LEASE_SLACK_S = 60.0
"""Beyond a checkpoint's time-out and its grace: renewals that were still under way, and pauses of retries."""


class Rest:
    """Waits for rest, within a bound, and says what is not."""

    def __init__(
        self, findings: Findings, world: World, cluster: Cluster, known: Known, rotten: frozenset[str]
    ) -> None:
        self._rotten = rotten
        """Checkpoints whose files say something else than what was written."""
        self._findings = findings
        self._world = world
        self._cluster = cluster
        self._known = known

    async def reached(self, ports: Ports) -> None:
        """Look at every server until all rest, at most as long as the longest lease can last."""
        options = self._cluster.options
        bound = self._world.now + options.timeout_s + options.grace_s + LEASE_SLACK_S
        statuses: dict[str, Status] = {}
        failure: str | None = None
        while True:
            await anyio.sleep(LOOK_EVERY_S)  # first of all: right after the end nearly always something is still said
            try:
                statuses, failure = await self._cluster.statuses(ports), None
            except GymCkptError as error:
                failure = str(error)
            unrest = [_unrest(status) for status in statuses.values()]
            if self._world.now >= bound or (failure is None and not any(unrest)):
                break
        if failure is not None:
            self._findings.look(5, f"a server cannot be asked: {failure}")
        for name, status in statuses.items():
            leased = status.lease_expires_at is not None
            why = f"{status.checkpoint_id} is {status.phase} and outlived its lease" if leased else None
            self._findings.look(53, why, name)
            self._findings.look(5, None if leased else _unrest(status), name)
        for server in self._known.servers():
            if server.alive and server.closed:
                self._findings.look(5, "admission is closed", server.name)
        self._files()

    def _files(self) -> None:
        tree = self._world.disk.tree(RUN_DIR)
        wrong = [path for path in tree if layout.is_temporary(path.rpartition("/")[2])]
        for directory, files in participants(tree).items():
            if any(f"/{name}/" in directory for name in self._rotten):
                continue
            manifest = files.get(layout.MANIFEST, b"")
            orphans = [name for name in files if name != layout.MANIFEST and name.encode() not in manifest]
            wrong += [layout.join(directory, name) for name in orphans]
        roots = {path.partition(f"/{layout.GYM}/")[0] for path in tree if f"/{layout.GYM}/" in path}
        wrong += [root for root in sorted(roots) if layout.collection(root) not in tree]
        self._findings.look(5, f"left over: {counted(len(wrong), 'file')}, such as {wrong[0]}" if wrong else None)


def _unrest(status: Status) -> str | None:
    """Why a server does not rest."""
    return at_rest(status.phase, status.lease_expires_at, status.report.counts, status.live)
