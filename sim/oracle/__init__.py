"""The oracle: watches a whole run against the invariants, and judges what it leaves.

    findings    violations, and how often each check looked     known      a model of each server, from its events
    files       checkpoints, read as an onlooker                gate       INV-11, 14, 16, 61, 63, 66, 68
    retire      INV-30 … 34, 37, 38                             restore    INV-60, 62, 63, 65
    contents    INV-6, 17, 18, 40, 41, 52                       disk       INV-48 … 51
    collector   INV-2, 38, 90 … 94, 96                          rows       INV-1 … 4
    rest        INV-5, 53                                       ledger     INV-16, 19, 20, 42, 43, 44, 46, 62, 63, 65
    lineage     INV-4, 16, 36, 39, 64, 67                       ready      INV-10, 12, 23, 45
    calls       INV-13, 15, 22, 35, 47                       refused    INV-25
    given_up    INV-97                                          fences     INV-36, 63
    leases      INV-53

It judges by events and by the disk, never by the implementation's objects. A run that acknowledged nothing proves
nothing: it is a violation named `RUN-idle`. Must not know which faults there were.
"""

from __future__ import annotations

from collections import Counter

from gym_ckpt.ports import Ports
from gym_ckpt.settings import AgentSettings, ModelSettings, ResourcesSettings
from sim.cluster import FOREIGN, LEDGER, OUTPUT, RUN_DIR, Cluster
from sim.oracle.calls import Boundary, Starts, Strangers, Waiting
from sim.oracle.charged import Charged
from sim.oracle.collector import Asked, Dispatching, Stops
from sim.oracle.contents import Delivered, Scope
from sim.oracle.disk import RunDirectory, Written
from sim.oracle.fences import Fences
from sim.oracle.files import Archive
from sim.oracle.findings import Check, Findings, Violation
from sim.oracle.gate import Arrivals, Fenced, Held, Present
from sim.oracle.given_up import GivenUp
from sim.oracle.known import Known
from sim.oracle.leases import Leases
from sim.oracle.ledger import Carried, Owed, Shelf, Writing
from sim.oracle.lineage import Lineages
from sim.oracle.owning import Blockers, Gated, Owned
from sim.oracle.patience import Stopping, Unreached
from sim.oracle.ready import Final, Readiness, Unchanged
from sim.oracle.refused import Refusals
from sim.oracle.rest import Rest
from sim.oracle.restore import AllOrNothing, Installing, Lapsed
from sim.oracle.retire import Forgetting, Retired, Retiring
from sim.oracle.rows import Effects, judge_rows
from sim.reference import Reference, output_of
from sim.trace import Row
from sim.workload import CONTROLLER
from sim.world import World

__all__ = ["Oracle", "Violation"]

ACKNOWLEDGED = frozenset(
    {"collector.row", "collector.published", "collector.restored", "gate.started", "tool.effect", "retire.done"}
)
"""What a run may be proud of."""


class Oracle:
    """One run's onlooker: `attach` before it, `finish` inside it once all has healed, `judge` after it.

    `checked`: how often each invariant's checks have looked, by name; `acknowledged`: how often each thing was done.
    """

    def __init__(self, world: World, cluster: Cluster, reference: Reference) -> None:
        self._world = world
        self._cluster = cluster
        self._reference = reference
        self._findings = findings = Findings(world)
        self._known = known = Known()
        archive = Archive(world.disk, RUN_DIR)
        gym = cluster.gym.servers
        models = frozenset(name for name, each in gym.items() if isinstance(each, ModelSettings))
        agents = frozenset(name for name, each in gym.items() if isinstance(each, AgentSettings))
        calls_only = models | frozenset(name for name, each in gym.items() if isinstance(each, ResourcesSettings))
        self.run_directory = RunDirectory(findings, world.disk, RUN_DIR, cluster.options.keep, CONTROLLER)
        self._written = Written(findings, known, world.disk, RUN_DIR)
        self._checks: tuple[Check, ...] = (
            Held(findings, known, models),
            Arrivals(findings, known),
            Fenced(findings, known),
            Present(findings, calls_only),
            Leases(findings, cluster.options.timeout_s + cluster.options.grace_s),
            Retiring(findings, known),
            Forgetting(findings, known),
            Retired(findings),
            Installing(findings, archive),
            AllOrNothing(findings, known, archive),
            Lapsed(findings, known),
            Scope(findings, archive),
            Delivered(findings, archive),
            Dispatching(findings, CONTROLLER),
            Stops(findings, known),
            Asked(findings, CONTROLLER, cluster.options.timeout_s, cluster.options.one_sigterm_s),
            Stopping(findings, CONTROLLER, cluster.options.timeout_s),
            Unreached(findings, CONTROLLER, cluster.workload.concurrency),
            Owned(findings, CONTROLLER),
            Blockers(findings, CONTROLLER),
            Gated(findings),
            Readiness(findings, models),
            Unchanged(findings),
            Final(findings),
            Boundary(findings, archive, agents),
            Charged(findings, archive),
            Refusals(findings, agents),
            GivenUp(findings, world.disk, self.run_directory, CONTROLLER),
            Starts(findings, known, world.network, models),
            Waiting(findings, known),
            Strangers(findings, known),
            Effects(findings, reference),
            self.run_directory,
            self._written,
        )
        self._lineages: Lineages | None = None
        if cluster.workload.captured:
            shelf = Shelf(world.disk, LEDGER)
            writing = Writing(findings, shelf, models)
            self._lineages = Lineages(findings, world.disk, shelf, writing, models)
            carried = Carried(findings, archive, world.disk, shelf, writing, models)
            self._checks = (
                *self._checks,
                writing,
                carried,
                Owed(findings),
                Fences(findings, shelf, models),
                self._lineages,
            )
        self._finished = False
        self.acknowledged: Counter[str] = Counter()

    @property
    def violations(self) -> list[Violation]:
        """In the order of their events."""
        return self._findings.violations

    @property
    def checked(self) -> Counter[str]:
        return self._findings.checked

    def attach(self) -> None:
        """Watch the trace from now on."""
        for source in (self._known.handlers, *(check.handlers for check in self._checks)):
            for event, handler in source().items():
                self._world.trace.subscribe(handler, (event,))
        self._world.trace.subscribe(self._acknowledge, ACKNOWLEDGED)

    def _acknowledge(self, row: Row) -> None:
        self.acknowledged[row.event] += 1

    async def finish(self, ports: Ports) -> None:
        """Faults have stopped and the controller has completed: see everything come to rest (INV-5)."""
        rotten = frozenset(self.run_directory.rotten)
        await Rest(self._findings, self._world, self._cluster, self._known, rotten).reached(ports)
        self.run_directory.inspect("at the end")
        self.run_directory.kept()
        self._written.after_all()
        if self._lineages is not None:
            self._lineages.after_all(self._world.disk.tree(OUTPUT).get(OUTPUT, b""))
        self._finished = True

    def judge(self) -> None:
        """The run is over: compare its output."""
        if not self._finished:
            self.run_directory.inspect("at the end")
        data = self._world.disk.tree(OUTPUT).get(OUTPUT, b"")
        try:
            judge_rows(self._findings, self._reference, output_of(data), complete=self._cluster.complete)
        except ValueError as error:
            self._findings.look(1, f"a line of the output is no row: {error}")
        gone = [path for path in FOREIGN if not self._world.disk.tree(path)]
        self._findings.look(95, f"{gone[0]}, which is not the run's, is gone" if gone else None)
        if not self.acknowledged:
            self._findings.add("RUN-idle", "", "no row, no call, no checkpoint", "a run does something")
