"""Carries out a plan in a world: answers its fates, and does at their time or event the things that nobody asks about.

Deterministic: what chance there is (jitter) comes from a stream of the world's seed. A fault is counted when it
strikes, not when it is planned. After `heal` nothing strikes any more.

Long because each kind of fault has its few lines here.

Must not know: how a plan was drawn, or what must hold.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import trio

from faults import acts
from faults import catalogue as faults
from faults.catalogue import EVERYTHING, Restart, When, kind_of
from faults.plan import Plan
from sim.fates import CALM_DISK, CALM_EXCHANGE, CALM_PROBE, DiskFailure, DiskFate, ExchangeFate, ProbeFate
from sim.streams import stream

if TYPE_CHECKING:
    from sim.trace import Row
    from sim.world import World

Act = Callable[[], None]
Key = tuple[str, str]
GENERATION = "completions"


class _Rules:
    """Faults by what they wait for, and how often it has come: only what some fault waits for is counted."""

    def __init__(self) -> None:
        self._by_key: dict[Key, list[tuple[int, int, Any]]] = {}
        self._seen: Counter[Key] = Counter()

    def add(self, key: Key, k: int, n: int, fault: Any) -> None:
        self._by_key.setdefault(key, []).append((k, n, fault))

    def events(self) -> set[str]:
        """Events of the trace that some fault waits for."""
        return {"phase" if kind == "phase" else name for kind, name in self._by_key}

    def due(self, *keys: Key) -> list[Any]:
        """It has come once more under these keys: the faults that strike now."""
        found = []
        for key in keys:
            rules = self._by_key.get(key)
            if rules is not None:
                self._seen[key] += 1
                seen = self._seen[key]
                found += [fault for k, n, fault in rules if k <= seen < k + n]
        return found


class Injector:
    """The `Fates` of a world. Call `attach` before it runs."""

    def __init__(self, seed: int, plan: Plan, everyone: tuple[str, ...], controller: str) -> None:
        self.plan = plan
        self.struck: Counter[str] = Counter()
        """How often faults of each kind struck."""
        self.points: Counter[str] = Counter()
        """How often one struck at each named point."""
        self.hit: set[faults.Fault] = set()
        """Faults of the plan that struck."""
        self.healed = False
        self.everyone = everyone
        self.controller = controller
        self._restarts: dict[str, Restart] = {}
        self._chance = stream(seed, "fates")
        self._jitter: faults.Jitter | None = None
        self._felt: set[faults.Slow | faults.Jitter] = set()
        """What lasts, once it has struck."""
        self._exchanges, self._disk, self._probes, self._rows = _Rules(), _Rules(), _Rules(), _Rules()
        self._any_exchange = self._any_disk = self._any_probe = False
        self._behaviour = _Rules()
        self.looks = _Rules()
        """At what is on the disk."""
        self._messages: _Rules | None = None
        self._kept: dict[faults.Duplicate, list[Act]] = {}
        """What delivers requests that a proxy has kept."""
        self.on_heal: list[Act] = []
        """What is undone when nothing strikes any more."""
        self._slow: list[faults.Slow] = []
        self._partitions: list[tuple[faults.Partition, faults.Fault]] = []
        """And the fault that each is a part of."""
        self.full: list[tuple[faults.Overload, float]] = []
        """Workers that are full, and until when."""
        self._on_event: dict[int, list[Act]] = {}
        self._world: World | None = None

    @property
    def world(self) -> World:
        assert self._world is not None, "an injector works once it is attached"
        return self._world

    def attach(self, world: World) -> None:
        """Take up the plan. Subscribe whoever must see an event before its faults strike first."""
        self._world = world
        for fault in self.plan.faults:
            self._take_up(fault)
        # Any event may be one to strike upon only where the plan says so.
        events = self._rows.events() | (set(acts.SIDES) if self._messages is not None else set())
        world.trace.subscribe(self._saw, None if self._on_event else events)

    def restart_of(self, node: str) -> Restart | None:
        """How this node comes back from the fault that brought it down; None when no fault did."""
        return self._restarts.pop(node, None)

    def heal(self) -> None:
        """Nothing strikes any more; clocks stay where they are and run as they should."""
        self.healed = True
        for act in self.on_heal:
            act()
        for host in self.world.hosts.values():
            host.drift(0.0)
        for node in self.world.nodes.values():
            self.world.freezer.lag(node.name, 0.0)
            node.go_on()

    # ------------------------------------------------------------------------------------------- the plan

    def _take_up(self, fault: faults.Fault) -> None:
        match fault:
            case faults.Crash():
                self.upon(fault.when, lambda: self._crash(fault))
            case faults.CrashAtProbe() | faults.DelayAtProbe() | faults.FailAtProbe():
                self._probes.add(("probe", fault.point), fault.k, 1, fault)
                self._any_probe = True
            case faults.CrashAtStep():
                self._disk.add((fault.node, fault.step), fault.k, 1, fault)
                self._any_disk = True
            case faults.DiskError() | faults.SlowDisk():
                self._disk.add((fault.node, fault.step), fault.k, fault.n, fault)
                self._any_disk = True
            case faults.Lose() | faults.Delay() | faults.Disconnect() | faults.SlowReader() | faults.FailedReply():
                self._exchanges.add((fault.dst, fault.route), fault.k, fault.n, fault)
                self._any_exchange = True
            case faults.Duplicate():
                self._exchanges.add((fault.dst, fault.route), fault.k, fault.n, fault)
                self._any_exchange = True
                if fault.when is not None:
                    self.upon(fault.when, lambda: self._deliver(fault))
            case faults.Overrun():
                self._exchanges.add((fault.dst, fault.operation), fault.k, fault.n, fault)
                self._any_exchange = True
            case faults.Slow():
                self._slow.append(fault)
            case faults.Partition():
                self.cut(fault, fault)
            case faults.Jitter():
                if self._jitter is None or self._jitter.max_s < fault.max_s:
                    self._jitter = fault
            case faults.ClockOffset():
                self.world.clock_of(fault.node).jump(fault.seconds)
                self.world.clock_of(fault.node).when_asked(
                    partial(self.unless_healed, partial(self.count, fault, fault.node))
                )
            case faults.ClockDrift():
                self.world.clock_of(fault.node).drift(fault.rate)
                self.world.clock_of(fault.node).when_asked(
                    partial(self.unless_healed, partial(self.count, fault, fault.node))
                )
            case faults.SlowWorker() | faults.StuckWorker():
                self._exchanges.add((fault.node, GENERATION), fault.k, fault.n, fault)
                self._any_exchange = True
            case faults.ToolFails():
                self._behaviour.add((fault.node, "tool"), fault.k, fault.n, fault)
            case faults.JudgeFails():
                self._behaviour.add((fault.node, "verify"), fault.k, fault.n, fault)
            case faults.BadState():
                self._behaviour.add((fault.node, "export"), fault.k, fault.n, fault)
            case faults.GymChanged():
                self._behaviour.add((fault.node, "check"), fault.k, fault.n, fault)
            case _:
                acts.take_up(self, fault)

    def upon(self, when: When, act: Act) -> None:
        """Do it then, unless all has healed."""
        match when:
            case faults.At():
                self.world.clock.call_at(when.t_s, self.unless_healed, act)
            case faults.OnEvent():
                self._on_event.setdefault(when.index, []).append(act)
            case faults.OnRow():
                self._rows.add(("row", when.event), when.k, 1, act)
            case faults.OnPhase():
                self._rows.add(("phase", f"{when.node} {when.phase}" if when.node else when.phase), when.k, 1, act)

    def count(self, fault: faults.Fault, node: str = "") -> None:
        """It strikes, here and now: counted, and seen in the trace before what follows from it."""
        self.strikes(fault)
        self.say(fault, node)

    def strikes(self, fault: faults.Fault) -> None:
        """Counted, and not seen in the trace."""
        self.struck[kind_of(fault)] += 1
        self.hit.add(fault)
        if isinstance(fault, faults.CrashAtProbe | faults.DelayAtProbe | faults.FailAtProbe):
            self.points[fault.point] += 1

    def say(self, fault: faults.Fault, node: str) -> None:
        """Seen in the trace, and not counted."""
        self.world.emit(node, "fault", kind=kind_of(fault), words=fault.words())

    def unless_healed(self, act: Act) -> None:
        if not self.healed:
            act()

    def _saw(self, row: Row) -> None:
        if self.healed:
            return
        if self._messages is not None and row.event in acts.SIDES:
            for act in self._messages.due((row.node, row.event)):
                act()
        due = self._on_event.pop(self.world.trace.events, None) if self._on_event else None
        if row.event == "phase":
            due = [*(due or ()), *self._rows.due(*_phase_keys(row))]
        else:
            due = [*(due or ()), *self._rows.due(("row", row.event))]
        for act in due:
            if trio.lowlevel.in_trio_task():
                act()
            else:  # amid the network's own work: right after it, and before any task runs
                self.world.clock.call_after(0.0, self.unless_healed, act)

    # ------------------------------------------------------------------------------------------- things that are done

    def _crash(self, fault: faults.Crash) -> None:
        names = self.everyone if EVERYTHING in fault.nodes else fault.nodes
        alive = [name for name in names if name in self.everyone and self.world.nodes[name].alive]
        if alive:
            self.count(fault, alive[0] if len(alive) == 1 else "")
        self.down(alive, fault.restart, silent=fault.silent)

    def upon_message(self, node: str, event: str, k: int, act: Act) -> None:
        """Do it when the node's k-th message of this event is seen."""
        if self._messages is None:
            self._messages = _Rules()
        self._messages.add((node, event), k, 1, act)

    def down(self, names: list[str], restart: Restart, *, silent: bool = False) -> None:
        """These nodes die."""
        for name in names:
            self._restarts[name] = restart
        for name in names:
            self.world.nodes[name].crash(silent=silent)

    def _dies(self, fault: faults.CrashAtStep | faults.CrashAtProbe, node: str) -> None:
        """Whoever has come there, or everybody."""
        self.count(fault, node)
        names = self.everyone if fault.everything else (node,)
        self.down([name for name in names if self.world.nodes[name].alive], fault.restart)

    def _deliver(self, fault: faults.Duplicate) -> None:
        for again in self._kept.pop(fault, ()):
            again()

    # ------------------------------------------------------------------------------------------- fates

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        """See `sim.fates.Fates`."""
        if self.healed:
            return CALM_EXCHANGE
        there = back = 0.0
        fields: dict[str, Any] = {}
        if self._any_exchange:
            route = _route(path)
            for fault in self._exchanges.due((dst, route), (dst, ""), (EVERYTHING, route), (EVERYTHING, "")):
                self.count(fault, src)
                match fault:
                    case faults.Delay():
                        there, back = there + fault.request_s, back + fault.reply_s
                    case faults.Overrun():
                        there += fault.by_s if fault.side == "request" else 0.0
                        back += fault.by_s if fault.side == "reply" else 0.0
                    case faults.Duplicate() if fault.when is not None:
                        fields |= {"keep": self._kept.setdefault(fault, []).append}
                    case faults.Duplicate():
                        fields |= {"duplicate": True, "duplicate_delay_s": fault.after_s}
                    case faults.SlowWorker() if not fault.keep_alives:
                        back += fault.by_s
                    case faults.FailedReply():
                        fields |= {"status": fault.status}
                        back += fault.by_s
                    case _:
                        fields |= acts.fields_of(fault)
        if self._partitions and (how := self._cut(src, dst)):
            fields |= {"lose": "before", "hang": True} if how == "silent" else {"refuse": True}
        if self.full:
            fields |= acts.turned_away(self, dst, path)
        slow = self._slowness(src) + self._slowness(dst)
        if self._jitter is not None:
            self._feel(self._jitter)
            there += self._chance.random() * self._jitter.max_s
            back += self._chance.random() * self._jitter.max_s
        if not fields and not there and not back and not slow:
            return CALM_EXCHANGE
        calm = CALM_EXCHANGE.request_latency_s
        return ExchangeFate(request_latency_s=calm + there + slow, reply_latency_s=calm + back + slow, **fields)

    def cut(self, partition: faults.Partition, fault: faults.Fault) -> None:
        """From some time on the link is cut, as a part of this fault."""
        self._partitions.append((partition, fault))
        self.world.network.cut = self._cut

    def _cut(self, src: str, dst: str) -> str:
        """What becomes now of something that one sends to the other."""
        for cut, fault in self._partitions if not self.healed else ():
            if cut.src in (src, EVERYTHING) and cut.dst in (dst, EVERYTHING) and self._within(cut.from_s, cut.for_s):
                self.count(fault, src)
                return "silent" if cut.silent else "reset"
        return ""

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        """See `sim.fates.Fates`."""
        if self.healed or not (self._any_disk or self._slow):
            return CALM_DISK
        due = self._disk.due((node, step), (node, "")) if self._any_disk else ()
        slow = self._slowness(node)
        if not due and not slow:  # who is told that it is calm need not let time pass here
            return CALM_DISK
        latency, crash, strike = CALM_DISK.latency_s + slow, None, None
        failure: DiskFailure | None = None
        for fault in due:
            match fault:
                case faults.DiskError():
                    struck = partial(self.count, fault, node)
                    failure = DiskFailure(getattr(errno, fault.errno), fault.call, fault.calls, fault.after, struck)
                case faults.SlowDisk():
                    self.count(fault, node)
                    latency += fault.latency_s
                case faults.CrashAtStep():
                    crash, strike = fault.side, partial(self.unless_healed, partial(self._dies, fault, node))
        return DiskFate(latency_s=latency, failure=failure, crash=crash, strike=strike)

    def probe(self, node: str, point: str) -> ProbeFate:
        """See `sim.fates.Fates`."""
        if self.healed or not (self._any_probe or self._slow):
            return CALM_PROBE
        due = self._probes.due(("probe", point)) if self._any_probe else []
        delay, strike, fail = self._slowness(node), None, False
        for fault in due:
            match fault:
                case faults.DelayAtProbe():
                    self.count(fault, node)
                    delay += fault.by_s
                case faults.FailAtProbe():
                    self.count(fault, node)
                    fail = True
                case faults.CrashAtProbe():
                    strike = partial(self.unless_healed, partial(self._dies, fault, node))
        if not (strike or delay or fail):
            return CALM_PROBE
        return ProbeFate(crash=strike is not None, delay_s=delay, fail=fail, strike=strike)

    def behave(self, node: str, what: str) -> str:
        """See `sim.fates.Fates`."""
        how = ""
        if not self.healed:
            for fault in self._behaviour.due((node, what)):
                self.count(fault, node)
                how = getattr(fault, "how", "raises")
        return how

    def _slowness(self, node: str) -> float:
        felt_s = 0.0
        for slow in self._slow:
            if slow.node == node and self._within(slow.from_s, slow.for_s):
                self._feel(slow)
                felt_s += slow.delay_s
        return felt_s

    def _feel(self, fault: faults.Slow | faults.Jitter) -> None:
        if fault not in self._felt:
            self._felt.add(fault)
            self.count(fault, fault.node if isinstance(fault, faults.Slow) else "")

    def _within(self, from_s: float, for_s: float) -> bool:
        return from_s <= self.world.now < from_s + for_s


def _phase_keys(row: Row) -> tuple[Key, ...]:
    now = row.fields["now"]
    return ("phase", now), ("phase", f"{row.node} {now}"), ("row", "phase")


@lru_cache(maxsize=8192)
def _route(path: str) -> str:
    return path.rpartition("/")[2]
