"""One seed as a job, what became of it, and the figures of many: what a campaign's workers get and send back.

A job never raises: whatever ends its run, the simulator's own failure included, is a violation of its seed. Must not
know where jobs run, or what is kept of them.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from faults.apps import with_apps
from faults.catalogue import kind_of
from faults.draw import PROFILES, draw, faults_of_situation
from faults.plan import Plan, dump, load
from faults.schedule import name_of
from faults.situations import situation_of
from gym_ckpt.errors import ConfigError
from sim.oracle import Violation
from sim.run import Verdict, run_seed
from sim.shrink import shrink
from sim.twin import compared, same_again

SLOWEST = 5
SHRINK_S = 60.0
"""Real seconds in which a failing plan is made smaller: most need a few, and one of long runs would need an hour."""


NOT_JUDGED = frozenset({"RUN-harness", "RUN-lost", "RUN-hung", "RUN-twice"})
"""Failures of the simulator itself: they say nothing about the code that ran."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `plan`: as JSON, instead of the drawn one. `twice`: again in another process, and compared.

    `old`: it failed in an earlier campaign.
    """

    seed: int
    profile: str
    bug: str | None = None
    plan: bytes | None = None
    twice: bool = False
    old: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job. `seconds`: of real time, without the second run. `plan`: of a failing one, as JSON.

    `twice`: it was run again in another process, and compared; one that fails at once is not.
    """

    job: Job
    seconds: float
    violation: Violation | None = None
    plan: bytes | None = None
    hash: str = ""
    events: int = 0
    virtual_s: float = 0.0
    schedule: str = ""
    twice: bool = False
    faults: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, int] = field(default_factory=dict)
    checked: Mapping[str, int] = field(default_factory=dict)
    rare: Mapping[str, int] = field(default_factory=dict)
    points: Mapping[str, int] = field(default_factory=dict)
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    situation: str = ""
    """The one that its seed was put into, where it came about: a fault of each kind that it consists of has struck."""


@dataclass(slots=True)
class Figures:
    """Of many outcomes. `old`: jobs that failed in an earlier campaign; `twice`: runs that were done twice."""

    seeds: int = 0
    events: int = 0
    virtual_s: float = 0.0
    twice: int = 0
    old: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    rare: Counter[str] = field(default_factory=Counter)
    schedules: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    """Named points at which a fault struck; `probes`: that a run came by."""
    checkpoints: Counter[str] = field(default_factory=Counter)
    """Those that were published, and those that failed."""
    situations: Counter[str] = field(default_factory=Counter)
    """Those that came about."""
    failed: list[Outcome] = field(default_factory=list)
    slowest: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, seed and events, the slowest first."""

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.virtual_s += outcome.virtual_s
        self.twice += outcome.twice
        self.old += outcome.job.old
        self.faults.update(outcome.faults)
        self.probes.update(outcome.probes)
        self.checked.update(outcome.checked)
        self.rare.update(outcome.rare)
        self.schedules.update([outcome.schedule] if outcome.schedule else [])
        self.points.update(outcome.points)
        self.checkpoints.update(outcome.checkpoints)
        self.situations.update([outcome.situation] if outcome.situation else [])
        if outcome.violation is not None:
            self.failed.append(outcome)
        self.slowest = sorted([*self.slowest, (outcome.seconds, outcome.job.seed, outcome.events)])[: -SLOWEST - 1 : -1]


def run_job(job: Job) -> Outcome:
    """Run it, and judge."""
    began = time.perf_counter()
    try:
        verdict = _run(job, brief=True)
        spent = time.perf_counter() - began
        twice = job.twice and verdict.ok
        if twice:
            verdict = compared(verdict)
    except Exception as error:
        return lost(job, "RUN-harness", f"{type(error).__name__}: {error}", time.perf_counter() - began)
    return Outcome(
        job=job,
        seconds=spent,
        violation=next(iter(verdict.violations), None),
        plan=dump(verdict.plan) if verdict.violations else None,
        hash=verdict.hash,
        events=verdict.events,
        virtual_s=verdict.virtual_s,
        schedule=name_of(verdict.plan.schedule),
        twice=twice,
        faults=verdict.faults,
        probes=verdict.probes,
        checked=verdict.checked,
        rare=verdict.rare,
        points=verdict.points,
        checkpoints=verdict.checkpoints,
        situation=came_about(verdict),
    )


def came_about(verdict: Verdict) -> str:
    """The situation that the seed was put into, if a fault of each kind that makes it has struck."""
    own = faults_of_situation(verdict.seed, verdict.profile)
    situation = situation_of(verdict.seed)
    if situation is None or not own or {kind_of(fault) for fault in own}.difference(map(kind_of, verdict.hit & {*own})):
        return ""
    return situation.name


def run_jobs(jobs: Iterable[Job], until: float | None = None) -> Iterator[Outcome]:
    """One after the other; `until`: on this machine's monotonic clock, when to begin no more."""
    for job in jobs:
        if until is not None and time.perf_counter() >= until:
            return
        yield run_job(job)


def lost(job: Job, name: str, seen: str, seconds: float) -> Outcome:
    """A run of which nothing came back but how it ended."""
    try:
        plan = dump(draw(job.seed, job.profile)) if job.plan is None else job.plan
    except ConfigError:
        plan = None
    violation = Violation(name, 0.0, "", -1, seen[:500], "a run ends, and says how")
    return Outcome(job, seconds, violation, plan)


def explained(seed: int, profile: str, bug: str | None = None, plan: bytes | None = None) -> Verdict:
    """A failing seed with a plan as small as it gets, and with its whole trace.

    The small plan is run twice, the second time in another process. Where that is not the same run, or not the same
    that breaks, the plan is the one that failed first. After `SHRINK_S` it is as small as it is then.
    """
    until = time.perf_counter() + SHRINK_S
    verdict = _run(Job(seed, profile, bug, plan), brief=True)
    twice = verdict.ok
    if twice:
        verdict = compared(verdict)
    wanted = next((each.invariant for each in verdict.violations), None)

    def fails(smaller: Plan) -> bool:
        if time.perf_counter() >= until:
            return False
        found = run_seed(seed, profile, plan=smaller, bug=bug, brief=True)
        found = compared(found) if twice and found.ok else found
        return bool(found.violations) and found.violations[0].invariant == wanted

    if wanted is None:
        return verdict
    origin = _origin(seed, profile, verdict.plan)
    smallest = run_seed(seed, profile, plan=shrink(verdict.plan, fails), bug=bug, keep_all_rows=True)
    smallest = replace(smallest, origin=origin)
    if twice:
        return compared(smallest) if smallest.ok else smallest
    if smallest.violations and smallest.violations[0].invariant == wanted and same_again(smallest):
        return replace(smallest, confirmed=True)
    first = run_seed(seed, profile, plan=verdict.plan, bug=bug, keep_all_rows=True)
    return replace(compared(first), origin=origin)  # whether it is its seed's alone is said beside what broke


def _origin(seed: int, profile: str, plan: Plan) -> str:
    """A digest of the plan, if it is not what is drawn; the applications of an author's own do not count."""
    if profile not in PROFILES or with_apps(plan, ()) == draw(seed, profile):
        return ""
    return hashlib.blake2b(dump(plan), digest_size=4).hexdigest()


def _run(job: Job, *, brief: bool) -> Verdict:
    plan = None if job.plan is None else load(job.plan)
    return run_seed(job.seed, job.profile, plan=plan, bug=job.bug, brief=brief)
