"""Carries out the faults that nobody asks the fates about: hosts, stopped processes, half-open links, signals,
strangers, rivals, operators.

Functions of an injector and a fault. Must not know how a plan was drawn, or what must hold.
"""

from __future__ import annotations

import contextvars
import errno
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from faults import catalogue as faults
from gym_ckpt.errors import ConfigError, TransportError
from gym_ckpt.participants.ledger_routes import LEDGER_ROOT
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.serve import run_server
from gym_ckpt.settings import AgentSettings
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.publication import published
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID
from sim.cluster import HOSTS, OUTPUT, RUN_DIR, TOKEN, Options, settings_of
from sim.epoch import Epoch
from sim.fates import TurnedAway
from sim.network import NodeClient
from sim.oracle.files import Picture, incomplete
from sim.workload import workload

if TYPE_CHECKING:
    from faults.inject import Injector
    from sim.trace import Row

GENERATION = "/completions"
LOOKS = frozenset(get_args(faults.Look))
SIDES: Mapping[str, str] = {
    "net.request": "sent",
    "net.arrived": "arrived",
    "net.head": "answering",
    "net.replied": "answered",
}
"""Event of the trace → side of a message."""
MALFORMED = (
    "..", ".", "%00", "r%00", "-a1", "_r", "r%20", "r%0a", "%EF%BD%92", "r-a%EF%BC%91", "x" * 300, "r%5c", "~", "r;a",
)  # fmt: skip
"""Capture keys that are none: dots, separators, NUL, look-alikes, too long."""
STRANGER_S = 10.0
SENT_S = 0.0001
"""So long after it was sent a request is the network's, and not there yet."""


def take_up(by: Injector, fault: Any) -> None:
    """Wait for its moment."""
    match fault:
        case faults.CrashHost():
            by.upon(fault.when, lambda: _crash_host(by, fault))
        case faults.CrashAtMessage():
            event = next(event for event, side in SIDES.items() if side == fault.side)
            by.upon_message(fault.node, event, fault.k, lambda: _at_message(by, fault))
        case faults.ClockJump():
            by.upon(fault.when, lambda: _jump(by, fault))
        case faults.Signal():
            by.upon(fault.when, lambda: _signal(by, fault))
        case faults.Pause():
            by.upon(fault.when, lambda: _pause(by, fault))
        case faults.HalfOpen():
            by.upon(fault.when, lambda: _half_open(by, fault))
        case faults.LeaseExpiry():
            by.upon(faults.OnPhase(fault.phase, fault.k, fault.node), lambda: _deaf(by, fault))
        case faults.LateTimers():
            by.upon(faults.At(fault.from_s), lambda: _late(by, fault))
        case faults.Overload():
            by.upon(fault.when, lambda: _fill(by, fault))
        case faults.Mislaid():
            by.upon(fault.when, lambda: _mislay(by, fault))
        case faults.NotThere():
            by.looks.add((fault.node, fault.look), fault.k, fault.n, fault)
            by.world.disk.on_op = by.world.disk.on_op or Missing(by).look
        case faults.BitFlip():
            by.upon(fault.when, lambda: _flip(by, fault))
        case faults.Stranger():
            by.upon(fault.when, lambda: _stranger(by, fault))
        case faults.Rival():
            by.upon(faults.OnRow("collector.dispatch", fault.k), lambda: _rival(by, fault))
        case faults.Ungated():
            by.upon(fault.when, lambda: _ungated(by, fault))
        case _:
            raise AssertionError(f"nobody carries out {fault}")


def fields_of(fault: Any) -> dict[str, Any]:
    """What such a fault makes of an exchange."""
    match fault:
        case faults.Lose():
            return _loss(fault)
        case faults.Disconnect():
            return {"breaks_after_s": fault.after_s}
        case faults.SlowReader():
            return {"read_s": fault.part_s}
        case faults.SlowWorker():
            return {"keep_alives": fault.keep_alives, "keep_alive_s": fault.by_s}
        case faults.StuckWorker():
            return {"lose": "mid_reply", "hang": True, "mid_reply_chunks": fault.chunks}
    raise AssertionError(f"{fault} is no fault of an exchange")


def _loss(fault: faults.Lose) -> dict[str, Any]:
    match fault.how:
        case "refuse":
            return {"refuse": True}
        case "hang":
            return {"lose": "before", "hang": True}
        case "hang_after":
            return {"lose": "after", "hang": True}
        case "mid_reply":
            return {"lose": "mid_reply", "mid_reply_chunks": fault.chunks}
    return {"lose": fault.how}


def turned_away(by: Injector, dst: str, path: str) -> dict[str, Any]:
    """What becomes of an exchange with a worker that is full."""
    for fault, until in by.full:
        if fault.node == dst and by.world.now < until and path.endswith(GENERATION):
            number = round(1000 * fault.pause_s) if fault.says == "retry-after-ms" else math.ceil(fault.pause_s)
            headers = ((fault.says, str(number)),) if fault.says else ()
            return {"turned_away": TurnedAway(fault.status, headers, fault.pause_s if fault.says else 0.0)}
    return {}


def _fill(by: Injector, fault: faults.Overload) -> None:
    by.count(fault, fault.node)
    by.full.append((fault, by.world.now + fault.for_s))


class Missing:
    """Looks at names that are there and are said not to be: each name once, then it is seen."""

    def __init__(self, by: Injector) -> None:
        self._by = by
        self._missed: set[tuple[str, str]] = set()

    def look(self, owner: str, op: str, path: str) -> None:
        """As `SimFileSystem.on_op`. Raises `FileNotFoundError`."""
        by = self._by
        if by.healed or op not in LOOKS or not by.world.disk.holds(path):
            return
        if (owner, path) in self._missed:  # the second look, of whatever kind
            self._missed.discard((owner, path))
            return
        for fault in by.looks.due((owner, op)):
            self._missed.add((owner, path))
            # In the trace once the step is over: whoever strikes upon it must not strike in the midst of a job.
            by.strikes(fault)
            by.world.clock.call_after(0.0, by.say, fault, owner)
            raise FileNotFoundError(errno.ENOENT, "not there, for once", path)


def _crash_host(by: Injector, fault: faults.CrashHost) -> None:
    alive = [name for name in HOSTS[fault.host] if name in by.everyone and by.world.nodes[name].alive]
    if alive:
        by.count(fault, alive[0])
        by.down(alive, fault.restart, silent=True)


def _at_message(by: Injector, fault: faults.CrashAtMessage) -> None:
    if fault.side == "sent":  # once it is on its way: what its sender's death closes comes behind it
        by.world.clock.call_after(SENT_S, by.unless_healed, lambda: _crash_at_message(by, fault))
    else:
        _crash_at_message(by, fault)


def _crash_at_message(by: Injector, fault: faults.CrashAtMessage) -> None:
    if by.world.nodes[fault.node].alive:
        by.count(fault, fault.node)
        by.down([fault.node], fault.restart)


def _jump(by: Injector, fault: faults.ClockJump) -> None:
    by.world.clock_of(fault.node).jump(fault.seconds)
    by.count(fault, fault.node)


def _signal(by: Injector, fault: faults.Signal) -> None:
    node = by.world.nodes[by.controller]
    if node.alive:
        by.count(fault, node.name)
        node.signal(fault.name)
    if fault.group:
        for name in by.everyone:
            if name != by.controller:
                by.world.nodes[name].signal(fault.name)
    if fault.again_s is not None:
        once = faults.Signal(fault.name, fault.when)
        by.world.clock.call_after(fault.again_s, by.unless_healed, lambda: _signal(by, once))


def _pause(by: Injector, fault: faults.Pause) -> None:
    node = by.world.nodes.get(fault.node)
    if node is not None and node.alive:
        by.count(fault, fault.node)
        node.stop()
        by.world.clock.call_after(fault.for_s, node.go_on)


def _half_open(by: Injector, fault: faults.HalfOpen) -> None:
    world = by.world
    ends = [world.nodes[name].epoch for name in (fault.one, fault.other) if name in world.nodes]
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        if world.network.half_open(ends[0], ends[1]):
            by.count(fault, fault.one)
        for src, dst in ((fault.one, fault.other), (fault.other, fault.one)):
            by.cut(faults.Partition(src, dst, world.now, fault.for_s), fault)


def _deaf(by: Injector, fault: faults.LeaseExpiry) -> None:
    by.cut(faults.Partition(by.controller, fault.node, by.world.now, fault.for_s), fault)


def _late(by: Injector, fault: faults.LateTimers) -> None:
    by.count(fault, fault.node)
    by.world.emit(fault.node, "node.lagging")
    by.world.freezer.lag(fault.node, fault.by_s)
    by.world.clock.call_after(fault.for_s, by.world.freezer.lag, fault.node, 0.0)


def _flip(by: Injector, fault: faults.BitFlip) -> None:
    disk = by.world.disk
    tree = disk.tree(RUN_DIR)
    names = finish(Picture(tree), published(RUN_DIR)).checkpoint_ids
    kept = names[: by.plan.setup.keep]  # a publication is followed by the end of those beyond
    whole = [each for each in kept if incomplete(tree, RUN_DIR, each) is None]
    if len(whole) < 2:
        return  # nothing would be left to go back to
    root = layout.checkpoint_dir(RUN_DIR, whole[0]) + "/"
    files = sorted(path for path, data in tree.items() if data and path.startswith(root))
    path = files[fault.file % len(files)]
    by.count(fault)
    disk.flip(path, fault.bit)  # before anybody dies of it: a power cut may leave nothing of the file
    by.world.emit("", "disk.flipped", path=path, checkpoint_id=whole[0])


def _mislay(by: Injector, fault: faults.Mislaid) -> None:
    world, disk = by.world, by.world.disk
    latest = layout.latest(RUN_DIR)
    if latest not in disk.durable_tree(latest):
        return  # nothing is published, and a run that has begun may miss nothing
    by.count(fault)
    by.down([name for name in by.everyone if world.nodes[name].alive], faults.Restart("whole", 0.05))
    paths = (layout.checkpoints_dir(RUN_DIR), *((latest,) if fault.pointer else ()))
    world.emit("", "disk.mislaid")
    taken = {path: node for path in paths if (node := disk.take_away(path)) is not None}

    def back(_: Row | None = None) -> None:
        if taken:
            for path in list(taken):
                disk.put_back(path, taken.pop(path))
            world.emit("", "disk.put_back")

    world.trace.subscribe(back, ("collector.refused",))
    by.on_heal.append(back)


def _stranger(by: Injector, fault: faults.Stranger) -> None:
    world = by.world
    if fault.dst not in world.nodes:
        return
    by.count(fault, fault.dst)
    number = by.struck["stranger"]
    path, headers, body = _asks(fault, number)
    client = NodeClient(world.network, Epoch("stranger", number, 0))
    url = f"http://{fault.dst}:80{path}"

    async def ask() -> None:
        try:
            await client.request("POST", url, headers=headers, body=body, timeout_s=STRANGER_S)
        except TransportError:
            return  # nothing is promised to a stranger whose connection is lost

    contextvars.Context().run(world.nursery.start_soon, ask)


def _rival(by: Injector, fault: faults.Rival) -> None:
    """All at once, so that no controller ends meanwhile; what it gets it gives back at once, too."""
    if not by.world.nodes[by.controller].alive:
        return  # it died of the same event, and its directory is nobody's
    disk, path = by.world.disk.view("rival"), layout.collector_pid(RUN_DIR)
    by.count(fault)
    if fault.how != "claims":
        for each in (path, layout.output_lock(OUTPUT)):
            if disk.exists(each):
                disk.unlink(each)
    if fault.how != "sweeps":
        lock = disk.try_lock(path, "rival")
        if lock is not None:
            by.world.emit("", "rival.took", swept=fault.how == "takes over")
            lock.release()


def _ungated(by: Injector, fault: faults.Ungated) -> None:
    """A process of its own, at an address that nobody calls: all that it can do is start, or refuse to."""
    name = f"agent-ungated-{by.struck['ungated']}"
    setup = by.plan.setup
    gym = settings_of(workload(setup.workload), Options(grace_s=setup.grace_s))
    worker = workload(setup.workload).workers[0]
    model = {"name": (worker,), "url": (gym.url(worker),), "beside": (*gym.models(), worker)}[fault.by]
    agent = AgentSettings(url=f"http://{name}:80", model=model)
    settings = msgspec.structs.replace(gym, servers={**gym.servers, name: agent})
    by.count(fault, name)

    async def main(ports: Ports) -> None:
        try:
            await run_server(settings, name, ports, ready=lambda: ports.tracer.emit("ungated.ready", model=model))
        except ConfigError as error:
            ports.tracer.emit("ungated.refused", why=str(error))

    node = by.world.add_node(name, main)
    contextvars.Context().run(node.start)


def _asks(fault: faults.Stranger, number: int) -> tuple[str, tuple[tuple[str, str], ...], bytes]:
    match fault.asks:
        case "malformed":
            return f"/ng-rollout/{MALFORMED[fault.number % len(MALFORMED)]}/v1/responses", (), b"{}"
        case "untagged":
            text = f"judge this [[turns=0 tokens={20 + fault.number % 200}]]"
            asked = {"messages": [{"role": "user", "content": text}]}
            return "/v1/chat/completions", ((CALL_ID, f"stranger-{number}"),), json.dumps(asked)
        case "untagged_run":
            return "/run", (), json.dumps({"episode_id": {"rollout_id": "r", "attempt": 0}, "task": {}})
        case "ledger_retire" | "ledger_delete":
            nobody = [{"rollout_id": "nobody", "attempt": 0}]
            body = json.dumps({"episode_ids": nobody, "deadline_ts": 4e9, "budget_s": STRANGER_S})
            route = LEDGER_ROOT + fault.asks.removeprefix("ledger_")
            return route, (("authorization", f"Bearer {TOKEN}"),), body
