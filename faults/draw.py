"""Draws a plan from a seed, by profile.

Per seed some kinds of fault are switched off entirely and the rest weighted at random, so that seeds differ in kind and
not only in place; every other seed of a profile of all areas is put into a situation (`faults.situations`). What is
drawn then passes `faults.budget`.

Long because each kind of fault has its few lines here. Must not know: how faults are carried out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import msgspec

from faults import catalogue as faults
from faults.budget import within_budget
from faults.catalogue import EVERYTHING, At, Fault, OnEvent, OnPhase, OnRow, Restart, When
from faults.draw_others import INFERENCE, OTHERS, PLACES, draw_beside, draw_ungated
from faults.endurance import DEATHS, endurance
from faults.plan import Plan, Setup
from faults.schedule import draw_schedule
from faults.situations import BESIDE, placed, situation_of
from gym_ckpt.errors import ConfigError
from sim.streams import stream
from sim.workload import CONTROLLER, WORKLOADS, workload

ANYWHERE = 0.1
"""Share of the seeds in which somebody does something to the controller, whatever else strikes."""
UNGATED = 0.04
"""Share of the seeds in which somebody starts an agent that is to call a worker past the gate."""
WITHOUT_LINKS = 0.1
"""Share of the seeds whose file system has no hard links."""
FAILING = 0.1
"""Share of the seeds in which code raises an error at a named point, whatever else strikes."""
POINTS = (
    "agent.boundary", "collector.before_checkpoint", "collector.before_commit", "collector.before_dispatch_log",
    "collector.before_output", "collector.before_publish", "collector.before_restore", "collector.before_retire",
    "collector.committed", "collector.dispatch_logged", "collector.output_written", "collector.published",
    "collector.replied", "collector.restore_installed", "collector.retired", "collector.start", "commit.exported",
    "coordination.after_commit", "coordination.after_forget", "coordination.after_prepare", "coordination.after_renew",
    "coordination.after_restore", "coordination.after_resume", "coordination.after_retire",
    "coordination.before_commit", "coordination.before_forget", "coordination.before_prepare",
    "coordination.before_renew", "coordination.before_restore", "coordination.before_resume",
    "coordination.before_retire", "coordination.stage_prepared", "environment.boundary", "gate.before_start",
    "gate.row_written", "gate.staged", "resources.after_effect", "resources.before_effect", "restore.installed",
    "retire.marked",
)  # fmt: skip
"""Named points of `gym_ckpt`; a test compares them with the code."""
MANY = frozenset({
    "agent.boundary", "collector.before_output", "collector.output_written", "collector.replied",
    "environment.boundary", "gate.before_start", "gate.row_written", "gate.staged", "resources.after_effect",
    "resources.before_effect",
})  # fmt: skip
"""Points that a run comes by often."""
EVENTS: Mapping[str, int] = {
    "gate.held": 6, "gate.started": 15, "gate.admitted": 20, "tool.effect": 10, "commit.exported": 8,
    "restore.installed": 4, "restore.discarded": 3, "collector.published": 3, "collector.row": 8,
    "collector.restored": 2, "admission.closed": 8, "admission.opened": 8, "retire.marked": 6, "retire.done": 4,
    "forget.done": 3, "collector.dispatch": 12, "collector.lost": 4, "collector.checkpoint_failed": 2,
    "agent.parked": 6, "episode.step": 30, "disk.step": 150, "net.arrived": 200, "net.replied": 200, "net.failed": 6,
    "node.crashed": 3, "node.started": 10, "lease.expired": 2, "collector.signal": 2,
}  # fmt: skip
"""Rows of the trace to strike upon, and about how many of each there are."""
CONTROL: Mapping[str, int] = {
    "status": 12, "prepare": 5, "renew": 2, "commit": 4, "restore": 2, "resume": 5, "retire": 3, "forget": 1,
}  # fmt: skip
"""Control calls, and about how many of each one participant gets."""
DATA: tuple[tuple[str, str, int], ...] = (
    ("environment", "run", 10), ("agent", "agent_sessions", 10), ("agent", "responses", 10), ("agent", "close", 8),
    ("inventory", "seed_session", 10), ("inventory", "verify", 8), ("inventory", "close_session", 8),
    ("inventory", "add_item", 5), ("inventory", "take_item", 5), ("inventory", "count_items", 4),
    ("verifier", "verify", 8), ("policy", "completions", 24), ("policy", "started", 4), ("worker", "completions", 24),
)  # fmt: skip
"""Calls of the data plane: to whom, which, about how many."""
OVERRUN: tuple[faults.Operation, ...] = (
    "prepare", "commit", "restore", "resume", "retire", "forget", "status", "started",
)  # fmt: skip
STEPS: Mapping[str, tuple[str, ...]] = {
    CONTROLLER: (
        "checkpoint.list_participants", "claim.lock", "claim.lock_output", "claim.read", "claim.sync_dir",
        "claim.sync_parent", "files.create", "files.fsync", "files.mkdir", "files.rename", "files.sync_dir",
        "files.sync_parent", "files.write", "input.read", "log.cut", "log.fsync", "log.newline", "log.open", "log.read",
        "log.replace", "log.sync_dir", "log.write", "prune.look", "prune.rmdir", "prune.sync", "prune.sync_pointer",
        "prune.unlink", "prune.unlink_pointer", "publish.look", "publish.read", "publish.sync_checkpoint",
        "publish.sync_gym", "publish.sync_kind", "publish.sync_participant", "publish.sync_pointer", "start.forget",
        "start.look", "start.sync_dir", "summary.read", "verify.collection", "verify.participant", "verify.records",
    ),
    "participant": (
        "files.create", "files.fsync", "files.mkdir", "files.sync_parent", "files.write", "records.create",
        "records.fsync", "records.hash", "records.look", "records.publish", "records.read", "records.read_manifest",
        "records.record", "records.rename", "records.sync_dir", "records.sync_manifest", "records.write",
    ),
    "ledger": (
        "ledger.check", "ledger.clear", "ledger.cut", "ledger.discard", "ledger.export", "ledger.fence", "ledger.fsync",
        "ledger.import", "ledger.list", "ledger.list_tokens", "ledger.lock", "ledger.make_locks", "ledger.open",
        "ledger.read", "ledger.remove", "ledger.retire", "ledger.start", "ledger.sweep", "ledger.sync_dir",
        "ledger.sync_locks", "ledger.write", "records.list", "tokens.drop", "tokens.lock", "tokens.make_dirs",
        "tokens.read", "tokens.rename", "tokens.sweep", "tokens.sync_dir", "tokens.sync_dirs", "tokens.sync_swept",
    ),
}  # fmt: skip
"""Steps of disk jobs of `gym_ckpt`, by who does them; a test compares them with the code."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`few`, `most`: number of faults; `areas`: weight of each; `chaos_s`: range of the end of chaos."""

    areas: Mapping[str, float]
    few: int
    most: int
    chaos_s: tuple[float, float]


SCHEDULED = 0.2
"""The share of seeds in which runnable tasks are not simply shuffled; drawn apart, so that it changes no other draw."""
AREAS = ("processes", "network", "time", "disk", "signals", "inference", "others")
DEFAULT = {"processes": 4, "network": 3, "time": 1.5, "disk": 1.5, "signals": 1.5, "inference": 2, "others": 2}
CHAOS = {**DEFAULT, "network": 4, "time": 2, "disk": 2, "signals": 2}
PROFILES: dict[str, Profile] = {
    "calm": Profile({}, 0, 0, (0.0, 0.0)),
    "default": Profile(DEFAULT, 1, 8, (3.0, 12.0)),
    "chaos": Profile(CHAOS, 6, 16, (8.0, 40.0)),
    **{area: Profile({area: 1.0}, 1, 5, (3.0, 10.0)) for area in AREAS},
    "endurance": Profile({}, DEATHS, DEATHS, (6.0, 20.0)),
}


def draw(seed: int, profile: str) -> Plan:
    """The plan of this seed. Raises `ConfigError` when there is no such profile."""
    plan, _ = _drawn(seed, profile)
    return plan


def faults_of_situation(seed: int, profile: str) -> tuple[Fault, ...]:
    """Those of the seed's plan that make its situation; none where it is put into none."""
    plan, own = _drawn(seed, profile)
    return plan.faults[:own]


def _drawn(seed: int, profile: str) -> tuple[Plan, int]:
    """The plan, and how many of its faults, which come first, make its situation."""
    if profile not in PROFILES:
        raise ConfigError(f"there is no fault profile {profile!r}: choose one of {', '.join(PROFILES)}")
    wanted = PROFILES[profile]
    chance = stream(seed, "plan", profile)
    chaos_s = round(chance.uniform(*wanted.chaos_s), 3)
    situation = situation_of(seed) if len(wanted.areas) == len(AREAS) else None
    of_situation = stream(seed, "situation", profile)
    setup = placed(_setup(chance), situation, of_situation)
    if stream(seed, "links", profile).random() < WITHOUT_LINKS:  # drawn apart, so that it changes no other draw
        setup = msgspec.structs.replace(setup, links=False)
    drawing = _Drawing(chance, chaos_s, setup)
    if profile == "endurance":
        return within_budget(endurance(chance, chaos_s, setup, lambda: drawing.restart(healing=False))), 0
    of_tasks = stream(seed, "schedule", profile)
    schedule = draw_schedule(of_tasks) if of_tasks.random() < SCHEDULED and wanted.most else None
    plan = Plan(
        setup=setup,
        chaos_s=chaos_s,
        requeue=drawing.restart(healing=False),
        heal=Restart("whole" if chance.random() < 0.3 else "alone"),
        faults=_faults(drawing, wanted, signalled=setup.every_s is None),
        schedule=schedule,
    )
    made: tuple[Fault, ...] = ()
    if situation is not None:
        made = situation.make(_Drawing(of_situation, chaos_s, setup))
        plan = msgspec.structs.replace(plan, faults=(*made, *plan.faults[: of_situation.choice(BESIDE)]))
    return within_budget(_with_others(plan, seed, profile) if len(wanted.areas) == len(AREAS) else plan), len(made)


def _with_others(plan: Plan, seed: int, profile: str) -> Plan:
    """What strikes now and then beside everything else, each from a stream of its own: it changes no other draw."""
    found: list[Fault] = []
    if (beside := stream(seed, "beside", profile)).random() < ANYWHERE:
        found.append(draw_beside(beside))
    if (ungated := stream(seed, "ungated", profile)).random() < UNGATED:
        found.append(draw_ungated(ungated))
    if (failing := stream(seed, "failing", profile)).random() < FAILING:
        found.append(faults.FailAtProbe(*_Drawing(failing, plan.chaos_s, plan.setup).point()))
    return msgspec.structs.replace(plan, faults=(*plan.faults, *found))


def _setup(chance: random.Random) -> Setup:
    made = Setup(
        workload=chance.randrange(WORKLOADS),
        every_s=chance.choice((1.3, 1.9, 2.7, 3.8, None)),
        timeout_s=chance.choice((1.5, 3.0, 8.0, 20.0)),
        keep=chance.choice((1, 2, 3)),
        grace_s=chance.choice((2.0, 6.0, 15.0)),
        journalled=chance.random() < 0.5,
    )
    return msgspec.structs.replace(made, one_sigterm_s=0.1 if made.keep == 1 else 0.0)


def _faults(drawing: _Drawing, profile: Profile, *, signalled: bool) -> tuple[Fault, ...]:
    chance = drawing.chance
    found: list[Fault] = []
    if profile.most == 0:
        return ()
    if signalled:  # without a timer somebody must ask for checkpoints
        times = range(chance.choice((1, 1, 2)))
        found += [faults.Signal("SIGUSR1", At(round(chance.uniform(0.1, 2.5), 3))) for _ in times]
    kinds = _kinds(chance, profile)
    if not kinds:
        return tuple(found)
    number = min(profile.most, profile.few + _geometric(chance, 0.75))
    if profile.few > 1:
        number = chance.randint(profile.few, profile.most)
    makers, weights = [maker for maker, _ in kinds], [weight for _, weight in kinds]
    for maker in chance.choices(makers, weights, k=number):
        drawn = maker(drawing)
        found.extend(drawn if isinstance(drawn, tuple) else (drawn,))
    return tuple(found)


Maker = Callable[["_Drawing"], Fault | tuple[Fault, ...]]


def _kinds(chance: random.Random, profile: Profile) -> list[tuple[Maker, float]]:
    """The kinds that this seed may draw, each with its weight: about a third is off, the rest weighted at random."""
    kinds: list[tuple[Maker, float]] = []
    for area, kind, maker, weight in KINDS:
        off, luck = chance.random() < 0.35, 0.2 + chance.random()
        del kind
        if area in profile.areas and not off:
            kinds.append((maker, weight * profile.areas[area] * luck))
    return kinds


def _geometric(chance: random.Random, p: float) -> int:
    count = 0
    while chance.random() < p and count < 64:
        count += 1
    return count


class _Drawing:
    """Draws places and moments."""

    def __init__(self, chance: random.Random, chaos_s: float, setup: Setup) -> None:
        self.chance = chance
        self.chaos_s = chaos_s
        self.setup = setup
        work = workload(setup.workload)
        self.policies, self.servers, self.workers = work.policies, work.servers, work.workers
        self.participants = tuple(name for name in self.servers if name not in self.workers)
        self.nodes = (*self.servers, CONTROLLER)
        self.pairs = (
            *((CONTROLLER, name) for name in self.participants),
            *(("environment", name) for name in ("agent", "inventory", "verifier")),
            *(("agent", name) for name in ("inventory", *self.policies)),
            *((policy, worker) for policy in self.policies for worker in self.workers),
        )
        """Who asks whom; others never talk."""

    def policy(self) -> str:
        """One of the policy-model servers."""
        return self.chance.choice(self.policies)

    def one_of(self, name: str) -> str:
        """The server, or one of those that do the same as it."""
        if name == "policy":
            return self.policy()
        return self.chance.choice(self.workers) if name == "worker" and self.workers[1:] else name

    def time(self) -> float:
        """Some time in the chaos, more often early: an undisturbed run takes about four seconds."""
        latest = self.chaos_s if self.chance.random() < 0.3 else min(self.chaos_s, 4.0)
        return round(self.chance.uniform(0.02, latest), 3)

    def overrun(self) -> float:
        """A little more than a checkpoint may take, sometimes a little less, or far more."""
        chance, limit_s = self.chance, self.setup.timeout_s
        past_s = chance.choice((chance.uniform(-0.3, 0.0), chance.uniform(0.0, 0.6), chance.uniform(0.6, 15.0)))
        return round(limit_s + past_s, 3)

    def when(self) -> When:
        """A time, any event, an event of a certain kind, or a phase."""
        chance = self.chance
        how = chance.random()
        if how < 0.3:
            return At(self.time())
        if how < 0.5:
            return OnEvent(chance.randrange(20, 1600))
        if how < 0.65:
            phase = chance.choice(("preparing", "prepared", "committed", "restoring", "restored", "idle"))
            return OnPhase(phase, chance.randint(1, 10))
        event = chance.choice(tuple(EVENTS))
        return OnRow(event, chance.randint(1, EVENTS[event]))

    def restart(self, *, healing: bool = True, whole: float = 0.45) -> Restart:
        """How something comes back."""
        chance = self.chance
        how = chance.random()
        after = round(chance.choice((0.0, chance.uniform(0.01, 0.5), chance.uniform(0.5, 5.0))), 3)
        if chance.random() < 0.1:  # longer than leases last
            after = round(chance.uniform(6.0, 40.0), 3)
        if healing and how > 0.93:
            return Restart("healing")
        return Restart("whole" if how < whole else "alone", after)

    def point(self) -> tuple[str, int]:
        """A named point, and which time."""
        point = self.chance.choice(POINTS)
        return point, self.chance.randint(1, 25 if point in MANY else 6)

    def step(self) -> tuple[str, str, int]:
        """A node, a disk step of it (or any), and which time."""
        chance = self.chance
        if self.policies[1:] and chance.random() < 0.35:
            return self.policy(), chance.choice(STEPS["ledger"]), chance.randint(1, 24)
        node = CONTROLLER if chance.random() < 0.6 else chance.choice(self.participants)
        if chance.random() < 0.25:
            return node, "", chance.randint(1, 120)
        steps = STEPS[CONTROLLER if node == CONTROLLER else "participant"]
        return node, chance.choice(steps), chance.randint(1, 8)

    def exchange(self) -> tuple[str, str, int, int]:
        """Whose calls, which, from the k-th, how many in a row."""
        chance = self.chance
        n = chance.choice((1, 1, 1, 2, 3, 8))
        if chance.random() < 0.45:
            dst, route = chance.choice((*self.participants, EVERYTHING)), chance.choice(tuple(CONTROL))
            return dst, route, chance.randint(1, CONTROL[route] * (5 if dst == EVERYTHING else 1)), n
        dst, route, count = chance.choice(DATA)
        dst = self.one_of(dst)
        return dst, route, chance.randint(1, count), n


def _everything(d: _Drawing) -> Fault:
    return faults.Crash((EVERYTHING,), d.when(), d.restart(whole=0.95, healing=False))


def _one(d: _Drawing) -> Fault:
    return faults.Crash((d.chance.choice(d.nodes),), d.when(), d.restart(), silent=d.chance.random() < 0.15)


def _controller(d: _Drawing) -> Fault:
    return faults.Crash((CONTROLLER,), d.when(), d.restart(whole=0.6, healing=False))


def _at_probe(d: _Drawing) -> Fault:
    point, k = d.point()
    everything = d.chance.random() < 0.4
    return faults.CrashAtProbe(point, k, d.restart(whole=0.95 if everything else 0.5, healing=False), everything)


def _at_step(d: _Drawing) -> Fault:
    node, step, k = d.step()
    everything = d.chance.random() < 0.4
    restart = d.restart(whole=0.95 if everything else 0.5, healing=False)
    return faults.CrashAtStep(node, k, step, d.chance.choice(("before", "after")), restart, everything)


def _in_restore(d: _Drawing) -> tuple[Fault, ...]:
    """Everything dies once there is a checkpoint; then the restore is struck, or the controller dies in it and comes
    back to servers that hold what it had restored, or have just given it up."""
    chance = d.chance
    lost = faults.Crash((EVERYTHING,), OnRow("collector.published", chance.randint(1, 2)), Restart("whole", 0.01))
    point = chance.choice(
        ("coordination.after_restore", "collector.restore_installed", "collector.before_dispatch_log")
    )
    if point == "collector.before_dispatch_log":
        again: Fault = faults.Crash((CONTROLLER,), OnRow("collector.restored"), d.restart(whole=0.2, healing=False))
    else:
        after = round(chance.choice((0.0, chance.uniform(0.0, 6.0), chance.uniform(5.0, 36.0))), 3)
        again = faults.CrashAtProbe(point, 1, Restart("alone", after))
    if chance.random() < 0.4:
        dst = chance.choice(d.participants)
        how: faults.Loss = chance.choice(("hang", "refuse", "hang_after", "after"))
        return lost, faults.Lose(dst, "restore", how, 1, chance.choice((1, 3, 30)))
    if chance.random() < 0.3:
        node, step = chance.choice(d.participants), chance.choice(("records.read", "records.read_manifest"))
        return lost, faults.DiskError(node, "EIO", 1, chance.choice((1, 2, 40)), step)
    return lost, again


def _survivors(d: _Drawing) -> tuple[Fault, ...]:
    """The controller dies alone; its heir is asked for a checkpoint while attempts of the dead run still live."""
    k = d.chance.randint(1, 8)
    asked = faults.Signal(d.chance.choice(("SIGUSR1", "SIGTERM")), OnRow("collector.dispatch", k + 1))
    return faults.Crash((CONTROLLER,), OnRow("collector.dispatch", k), d.restart(whole=0.0, healing=False)), asked


def _slow_write(d: _Drawing) -> Fault:
    """A participant's write takes so long that its checkpoint is given up meanwhile."""
    step = d.chance.choice(("records.create", "records.record", "records.write", "records.fsync", "records.rename"))
    return faults.SlowDisk(d.chance.choice(d.participants), d.overrun(), d.chance.randint(1, 3), step=step)


def _slow(d: _Drawing) -> Fault:
    return faults.Slow(
        d.chance.choice(d.nodes), d.time(), round(d.chance.uniform(0.1, 4.0), 3), round(d.chance.uniform(0.01, 1.5), 3)
    )


def _lose(how: faults.Loss) -> Maker:
    def maker(d: _Drawing) -> Fault:
        dst, route, k, n = d.exchange()
        return faults.Lose(dst, route, how, k, n, chunks=d.chance.randint(0, 3) if how == "mid_reply" else 0)

    return maker


def _delay(d: _Drawing) -> Fault:
    dst, route, k, n = d.exchange()
    there, back = (round(d.chance.choice((0.0, d.chance.uniform(0.01, 4.0))), 3) for _ in range(2))
    return faults.Delay(dst, route, k, n, there, back)


def _duplicate(d: _Drawing) -> Fault:
    dst, route, k, n = d.exchange()
    return faults.Duplicate(dst, route, k, n, round(d.chance.choice((0.0, 0.001, d.chance.uniform(0.0, 5.0))), 3))


def _jitter(d: _Drawing) -> Fault:
    return faults.Jitter(round(d.chance.choice((0.005, 0.05, 0.3)), 3))


def _partition(d: _Drawing) -> Fault:
    chance = d.chance
    ends: list[str] = list(chance.choice(d.pairs))  # who asks, and who is asked: requests are lost, or replies
    if chance.random() < 0.4:
        ends.reverse()
    if chance.random() < 0.15:
        ends[0] = EVERYTHING
    return faults.Partition(
        ends[0], ends[1], d.time(), round(chance.uniform(0.1, 6.0), 3), silent=chance.random() < 0.5
    )


def _overrun(d: _Drawing) -> Fault:
    chance = d.chance
    operation = chance.choice(OVERRUN)
    dst = d.policy() if operation == "started" else chance.choice((*d.participants, EVERYTHING))
    return faults.Overrun(
        operation,
        dst,
        d.overrun(),
        chance.randint(1, 4),
        chance.choice((1, 2, 6)),
        chance.choice(("request", "reply")),
    )


def _offset(d: _Drawing) -> Fault:
    return faults.ClockOffset(
        d.chance.choice(d.nodes), round(d.chance.choice((-1, 1)) * d.chance.uniform(0.5, 5000.0), 3)
    )


def _drift(d: _Drawing) -> Fault:
    return faults.ClockDrift(d.chance.choice(d.nodes), round(d.chance.uniform(-0.2, 0.2), 4))


def _jump(d: _Drawing) -> Fault:
    seconds = round(d.chance.choice((-1, 1)) * d.chance.choice((0.5, 20.0, 4000.0)) * d.chance.uniform(0.5, 1.5), 3)
    return faults.ClockJump(d.chance.choice(d.nodes), seconds, d.when())


def _disk_error(d: _Drawing) -> Fault:
    node, step, k = d.step()
    error, n = d.chance.choice(get_args(faults.Errno)), d.chance.choice((1, 1, 3, 10))
    after, call, calls = d.chance.random() < 0.3, d.chance.choice((1, 1, 1, 2)), d.chance.choice((1, 1, 1, 4))
    return faults.DiskError(node, error, k, n, step, after, call, calls)


def _in_row_write(d: _Drawing) -> Fault | tuple[Fault, ...]:
    """A row of the ledger is being written when its disk fails, or when its caller leaves."""
    chance, policy = d.chance, d.policy()
    k = chance.randint(1, 12)
    if len(d.policies) < 2:
        return _disk_error(d)
    if chance.random() < 0.5:
        step = chance.choice(("ledger.open", "ledger.write", "ledger.fsync", "ledger.check", "tokens.rename"))
        error: faults.Errno = chance.choice(("ENOSPC", "EIO"))
        return faults.DiskError(policy, error, k, chance.choice((1, 1, 2, 5)), step, calls=chance.choice((1, 1, 3)))
    step = chance.choice(("ledger.check", "ledger.read", "ledger.write", "ledger.fsync"))
    slow = faults.SlowDisk(policy, round(chance.uniform(0.01, 0.2), 3), 1, 60, step)
    return slow, faults.Crash(("agent",), OnRow("gate.started", k), d.restart(whole=0.2))


def _slow_disk(d: _Drawing) -> Fault:
    node, step, k = d.step()
    return faults.SlowDisk(
        node,
        round(d.chance.choice((0.05, 1.0, 10.0)) * d.chance.uniform(0.5, 1.5), 3),
        k,
        d.chance.choice((1, 3)),
        step,
    )


def _signal(name: str) -> Maker:
    def maker(d: _Drawing) -> Fault:
        again = round(d.chance.choice((0.0, d.chance.uniform(0.0, 3.0))), 3) if d.chance.random() < 0.3 else None
        group = name == "SIGTERM" and d.chance.random() < 0.2
        return faults.Signal("SIGTERM" if name == "SIGTERM" else "SIGUSR1", d.when(), again, group)

    return maker


KINDS: tuple[tuple[str, str, Maker, float], ...] = (
    ("processes", "crash of everything", _everything, 3.0),
    ("processes", "crash of one node", _one, 2.0),
    ("processes", "crash of the controller", _controller, 1.0),
    ("processes", "crash at a named point", _at_probe, 2.0),
    ("processes", "crash at a disk step", _at_step, 2.0),
    ("processes", "trouble in a restore", _in_restore, 1.5),
    ("processes", "survivors at a checkpoint", _survivors, 0.7),
    *(("network", f"exchange lost: {how}", _lose(how), 1.0) for how in faults.LOSSES),
    ("network", "exchange delayed", _delay, 1.5),
    ("network", "exchange duplicated", _duplicate, 2.0),
    ("network", "jitter", _jitter, 0.7),
    ("network", "partition", _partition, 1.0),
    ("time", "deadline overrun", _overrun, 3.0),
    ("time", "slow node", _slow, 1.0),
    ("time", "clock offset", _offset, 1.0),
    ("time", "clock drift", _drift, 0.5),
    ("time", "clock jump", _jump, 1.0),
    ("disk", "disk error", _disk_error, 2.0),
    ("disk", "slow disk", _slow_disk, 1.0),
    ("disk", "slow write", _slow_write, 2.0),
    ("disk", "trouble in a row's write", _in_row_write, 2.0),
    ("disk", "crash at a disk step", _at_step, 1.0),
    ("signals", "SIGUSR1", _signal("SIGUSR1"), 1.5),
    ("signals", "SIGTERM", _signal("SIGTERM"), 1.5),
    *PLACES,
    *INFERENCE,
    *OTHERS,
)
"""Area, kind, how to draw one, weight within the area."""
