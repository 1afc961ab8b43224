"""One seed: its plan, chaos, healing, liveness, judgement.

    chaos      the plan's faults strike; the batch system restarts what they bring down
    healing    nothing strikes any more, and everything comes up
    liveness   the controller must complete within `LIVENESS_S` of virtual time (INV-5)
    judgement  the oracle looks at what the run left

A node that died of an exception, a handler that raised, a run that stuck and a run that acknowledged nothing are
failures like a broken invariant: a run passes because it was seen to do right.

Must not know: what the invariants say, or how faults are carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from faults.apps import ToolsByTurn
from faults.bugs import planted
from faults.catalogue import Fault, Restart
from faults.draw import draw
from faults.inject import Injector
from faults.plan import Plan, dump, load
from gym_ckpt.ports import Ports
from sim.cluster import Cluster, Options, until
from sim.determinism import park
from sim.exports import Exports
from sim.fates import InjectedFailure
from sim.gyms import Misbehaved
from sim.keeper import Comeback, Keeper
from sim.oracle import Oracle, Violation
from sim.rare import Rare
from sim.reference import Reference, reference
from sim.schedules import policy_of
from sim.streams import stream
from sim.trace import Row
from sim.workload import CONTROLLER, workload
from sim.world import Failure, World

LIVENESS_S = 900.0
"""Virtual seconds from the healing until the controller must have completed."""
FINISH_S = 300.0
"""Virtual seconds that the oracle may take to see the servers come to rest."""
NO_ERRORS: dict[str, str] = {
    "died": "no process dies of an exception of its own",
    "handler": "no request handler raises",
    "stuck": "a run goes on until its script is over",
    "script": "the harness itself does not fail",
}
"""What is broken by an error that a world records, by its kind."""
OPERATOR = "operator"
TAIL = 400


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one seed. `checked`: how often each check looked; `rows`: the end of the trace, or all of it."""

    seed: int
    profile: str
    hash: str
    events: int
    virtual_s: float
    faults: Mapping[str, int]
    violations: tuple[Violation, ...]
    plan: Plan
    checked: Mapping[str, int]
    probes: Mapping[str, int]
    rows: tuple[Row, ...] = ()
    bug: str | None = None
    rare: Mapping[str, int] = field(default_factory=dict)
    """How often each state of `sim.rare` was seen."""
    points: Mapping[str, int] = field(default_factory=dict)
    """How often a fault struck at each named point."""
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    """How many were published, failed and restored."""
    hit: frozenset[Fault] = frozenset()
    """Faults of the plan that struck."""
    origin: str = ""
    """Digest of the plan that failed first, where that is not what seed and profile draw."""
    confirmed: bool = False
    """It was run again in a second process, and was the same run and broke the same."""

    @property
    def ok(self) -> bool:
        return not self.violations


def run_seed(
    seed: int,
    profile: str = "default",
    *,
    plan: Plan | None = None,
    bug: str | None = None,
    keep_all_rows: bool = False,
    watch: Callable[[World], None] | None = None,
    brief: bool = False,
) -> Verdict:
    """Run one seed to its end.

    Args:
        plan: instead of the one that seed and profile draw.
        bug: one of `faults.bugs`, in force during the run (the undisturbed run to compare with is without it).
        watch: given the world before it runs, to subscribe to its events behind the oracle and before the faults.
        brief: end soon after something broke; the first violation is the same. A run that does not converge takes
            hundreds of virtual seconds to say so, and a campaign wants to know only that.

    Raises:
        ConfigError: there is no such profile, bug or application, or the plan is none, as where it misspells a name.
    """
    chosen = draw(seed, profile) if plan is None else load(dump(plan))
    expected = reference(chosen.setup.workload, chosen.setup.apps)
    with nullcontext() if bug is None else planted(bug):
        return _Run(seed, profile, chosen, expected, keep_all_rows, watch, brief).verdict(bug)


class _Run:
    """A world, its cluster, and everybody who looks after them."""

    def __init__(
        self,
        seed: int,
        profile: str,
        plan: Plan,
        expected: Reference,
        keep_all_rows: bool,
        watch: Callable[[World], None] | None,
        brief: bool,
    ) -> None:
        setup = plan.setup
        self._brief = brief
        self._seed, self._profile, self._plan = seed, profile, plan
        strike = ToolsByTurn if setup.apps else Injector
        self._injector = strike(seed, plan, (*workload(setup.workload).servers, CONTROLLER), CONTROLLER)
        self._world = World(
            seed,
            self._injector,
            policy=policy_of(plan.schedule, stream(seed, "policy")),
            keep_all_rows=keep_all_rows,
            tail=TAIL,
            journalled=setup.journalled,
            links=setup.links,
        )
        options = Options(
            every_s=setup.every_s,
            timeout_s=setup.timeout_s,
            keep=setup.keep,
            grace_s=setup.grace_s,
            one_sigterm_s=setup.one_sigterm_s,
            apps=setup.apps,
        )
        self._cluster = Cluster(self._world, workload(setup.workload), options)
        self._ports: list[Ports] = []
        self._world.add_node(OPERATOR, self._operator)
        # Whoever looks subscribes before whoever acts.
        self._oracle = Oracle(self._world, self._cluster, expected)
        self._oracle.attach()
        self._rare = Rare(self._world.trace)
        self._exports = Exports(self._world, frozenset(app.server for app in setup.apps))
        if watch is not None:
            watch(self._world)
        self._keeper = Keeper(self._world, self._cluster, _comeback(plan.requeue), self._comeback)
        self._injector.attach(self._world)
        self._late: list[Violation] = []
        self._broken: set[tuple[str, float]] = set()
        """Where and when a gate could not finish an answer that it had begun."""
        self._world.trace.subscribe(self._saw, ("gate.broken",))

    def _saw(self, row: Row) -> None:
        self._broken.add((row.node, row.t))

    def _is_meant(self, failure: Failure) -> bool:
        """A gate whose worker is lost in mid-answer breaks off, as a server does: by returning without the rest. An
        author's code that raises is answered with 500, as servers do. And of an error that a fault raised a handler
        fails and a process ends, where nobody expects it."""
        if isinstance(failure.error, InjectedFailure):
            return failure.kind == "handler" or failure.node == CONTROLLER
        if failure.kind == "handler" and isinstance(failure.error, Misbehaved):
            return True
        return failure.kind == "handler" and failure.error is None and (failure.node, failure.t) in self._broken

    def verdict(self, bug: str | None) -> Verdict:
        """Run, and judge."""
        with self._cluster.playing():
            result = self._world.run(self._script, self._plan.chaos_s + LIVENESS_S + FINISH_S)
        self._oracle.judge()
        found = (*self._oracle.violations, *self._exports.violations, *self._late)
        violations = (*found, *self._errors(result.errors))
        return Verdict(
            seed=self._seed,
            profile=self._profile,
            hash=result.hash,
            events=result.events,
            virtual_s=round(result.virtual_s, 6),
            faults=dict(sorted(self._injector.struck.items())),
            violations=tuple(sorted(violations, key=lambda violation: (violation.t, violation.event_index))),
            plan=self._plan,
            checked=dict(sorted(self._oracle.checked.items())),
            probes=result.probes,
            rows=result.rows_tail,
            bug=bug,
            rare=dict(sorted(self._rare.seen.items())),
            points=dict(sorted(self._injector.points.items())),
            checkpoints=dict(sorted(self._exports.checkpoints.items())),
            hit=frozenset(self._injector.hit),
        )

    def _errors(self, failures: Iterable[Failure]) -> list[Violation]:
        return [_of_failure(failure) for failure in failures if not self._is_meant(failure)]

    async def _script(self, world: World) -> None:
        world.nodes[OPERATOR].start()
        self._cluster.start()
        await until(world, self._is_over, self._plan.chaos_s)
        if self._is_enough():
            return
        world.emit("", "world.healing")
        self._injector.heal()
        self._keeper.heal(whole=self._plan.heal.how == "whole")
        over = await until(world, self._is_over, LIVENESS_S)
        if self._is_enough():
            return
        if over:
            world.emit("", "world.complete")
            await self._oracle.finish(self._ports[0])
        else:
            self._late.append(self._incomplete(world))

    def _is_over(self) -> bool:
        return self._keeper.complete or self._is_enough()

    def _is_enough(self) -> bool:
        """Something broke, and nobody wants to know what else does."""
        found = self._oracle.violations or self._exports.violations
        return self._brief and bool(found or self._errors(self._world.errors))

    def _incomplete(self, world: World) -> Violation:
        cluster = self._cluster
        state = "is at work" if world.nodes[CONTROLLER].alive else "is down"
        if cluster.refusal is not None:
            state += f", having said: {cluster.refusal}"
        elif cluster.outcome is not None:
            state += f", having said: {cluster.outcome.message}"
        return Violation(
            invariant="INV-5",
            t=world.now,
            node=CONTROLLER,
            event_index=world.trace.events,
            seen=f"{LIVENESS_S:g} s after the last fault the controller {state} (life {cluster.lives})",
            must="once faults stop, every rollout ends and the controller completes",
        )

    async def _operator(self, ports: Ports) -> None:
        """A process that nothing ever happens to, so that the oracle can ask servers."""
        self._ports.append(ports)
        await park()

    def _comeback(self, node: str) -> Comeback | None:
        restart = self._injector.restart_of(node)
        return None if restart is None else (restart.how, restart.after_s)


def _comeback(restart: Restart) -> Comeback:
    return restart.how, restart.after_s


def _of_failure(failure: Failure) -> Violation:
    """An error that the world recorded is a failure, whatever the invariants say."""
    return Violation(
        invariant=f"RUN-{failure.kind}",
        t=failure.t if math.isfinite(failure.t) else 0.0,
        node=failure.node,
        event_index=-1,
        seen=failure.detail,
        must=NO_ERRORS[failure.kind],
    )
