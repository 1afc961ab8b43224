"""What one life of a node is given: a `gym_ckpt.ports.Ports` whose every handle is fenced by the epoch.

The dead get no error from here: asynchronous calls never return to them, and what they emit is dropped. Chance is a
stream of the node and epoch, so that another node's draws never shift it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gym_ckpt.ports import ASGIApp, Job, Ports
from sim.determinism import park
from sim.disk import Failing, View
from sim.epoch import Epoch
from sim.exchange import Slot
from sim.fates import CALM_DISK, CALM_PROBE, DiskFailure, InjectedFailure
from sim.network import Network, NodeClient
from sim.streams import stream

if TYPE_CHECKING:
    from sim.node import Node

T = TypeVar("T")
STEPS_TOGETHER = 10
"""At most so many steps of a disk job are done in one go."""


class StreamEntropy:
    """The `Entropy` port over a seeded stream."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def token(self, nbytes: int = 8) -> str:
        return f"{self._chance.getrandbits(nbytes * 8):0{nbytes * 2}x}" if nbytes else ""

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._chance.random()


class _Server:
    """The `HttpServer` port."""

    def __init__(self, network: Network, epoch: Epoch) -> None:
        self._network = network
        self._epoch = epoch

    async def serve(self, app: ASGIApp, url: str, *, ready: Callable[[], None]) -> None:
        await self._network.serve(self._epoch, app, url, ready)


class _Disk:
    """The `Disk` port: a job runs step by step, each step with a latency, a fault or a crash of its own.

    Others run between two steps of a job, but not between any two: a turn of the scheduler costs more than a step. So
    a few steps are done in one go, how many is drawn, and the time that they took passes after them.
    """

    def __init__(self, node: Node, epoch: Epoch, files: View) -> None:
        self._node = node
        self._epoch = epoch
        self._files = files
        self._chance = stream(node.world.seed, "disk steps", node.name, str(epoch.number))
        self._together = 0
        self._owed_s = 0.0

    async def run(self, job: Job[T]) -> T:
        epoch = self._epoch
        await epoch.checkpoint()
        steps = job(self._files)
        try:
            return await self._steps(steps)
        finally:
            if not epoch.alive:
                _abandon(steps)

    async def _steps(self, steps: Generator[str, None, T]) -> T:
        node, epoch, world = self._node, self._epoch, self._node.world
        crash_after: Callable[[], None] | None = None
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._files.failing = None
                if crash_after is not None:  # whatever has come of the step
                    crash_after()
                if not epoch.alive:
                    await park()
            fate = world.fates.disk(node.name, step, node.disk_steps)
            node.disk_steps += 1
            world.trace.emit(world.clock.current_time(), node.name, "disk.step", {"step": step})
            self._owed_s += fate.latency_s
            self._together -= 1
            if self._together < 0 or fate is not CALM_DISK:
                self._together = self._chance.randrange(STEPS_TOGETHER)
                owed_s, self._owed_s = self._owed_s, 0.0
                await world.clock.sleep_through(owed_s)
            await epoch.fence()
            crash_after = None
            if fate.crash == "after":
                crash_after = fate.strike or node.crash
            elif fate.crash == "before":
                (fate.strike or node.crash)()
                await epoch.fence()
            if fate.failure is not None:
                self._files.failing = self._failing(fate.failure, step)

    def _failing(self, failure: DiskFailure, step: str) -> Failing:
        def struck(call: str, path: str) -> None:
            if failure.struck is not None:
                failure.struck()
            self._node.world.emit(
                self._node.name, "disk.error", step=step, errno=failure.errno, call=call, path=path, after=failure.after
            )

        return Failing(failure.errno, failure.call, failure.calls, failure.after, struck)


def _abandon(steps: Generator[str, None, Any]) -> None:
    """Close a dead process's job here and now: what its `finally` blocks try meets a disk that is dead to them."""
    try:
        steps.close()
    except BaseException:
        pass


class SignalBox:
    """Who listens for the signals of one process."""

    def __init__(self) -> None:
        self._listeners: list[_Signals] = []

    def deliver(self, name: str) -> bool:
        """False when nobody listens."""
        for listener in self._listeners:
            listener.put(name)
        return bool(self._listeners)

    @asynccontextmanager
    async def listen(self, epoch: Epoch) -> AsyncIterator[AsyncIterator[str]]:
        """Receive every signal from now on."""
        listener = _Signals(epoch)
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)


class _Signals:
    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._queue: deque[str] = deque()
        self._slot = Slot()

    def put(self, name: str) -> None:
        self._queue.append(name)
        self._slot.wake()

    def __aiter__(self) -> _Signals:
        return self

    async def __anext__(self) -> str:
        await self._epoch.checkpoint()
        while not self._queue:
            await self._slot.wait()
            await self._epoch.fence()
        return self._queue.popleft()


class _SignalsPort:
    """The `Signals` port."""

    def __init__(self, box: SignalBox, epoch: Epoch) -> None:
        self._box = box
        self._epoch = epoch

    def listen(self) -> Any:
        return self._box.listen(self._epoch)


class _Tracer:
    """The `Tracer` port. The dead leave no rows."""

    def __init__(self, node: Node, epoch: Epoch) -> None:
        self._clock = node.world.clock
        self._emit = node.world.trace.emit
        self._name = node.name
        self._epoch = epoch

    def emit(self, event: str, **fields: Any) -> None:
        if self._epoch.alive:
            self._emit(self._clock.current_time(), self._name, event, fields)


class _Probes:
    """The `Probes` port: counts every point, and strikes where the fates say so."""

    def __init__(self, node: Node, epoch: Epoch, counts: Counter[str]) -> None:
        self._node = node
        self._epoch = epoch
        self._counts = counts

    async def __call__(self, point: str) -> None:
        node, epoch = self._node, self._epoch
        if not epoch.alive:
            await park()
        self._counts[point] += 1
        world = node.world
        fate = world.fates.probe(node.name, point)
        if fate is CALM_PROBE:  # it costs no turn of the scheduler, as in production
            return
        world.emit(node.name, "probe", point=point)
        await world.clock.sleep(fate.delay_s)
        await epoch.fence()
        if fate.crash:
            (fate.strike or node.crash)()
            await epoch.fence()
        if fate.fail:
            raise InjectedFailure(point)


def build_ports(node: Node, epoch: Epoch) -> Ports:
    """The ports of one life."""
    world = node.world
    return Ports(
        clock=node.clock,
        entropy=StreamEntropy(stream(world.seed, "entropy", node.name, str(epoch.number))),
        disk=_Disk(node, epoch, world.disk.view(node.name)),
        http=NodeClient(world.network, epoch),
        control=NodeClient(world.network, epoch),
        server=_Server(world.network, epoch),
        signals=_SignalsPort(node.signals, epoch),
        tracer=_Tracer(node, epoch),
        probe=_Probes(node, epoch, world.probes),
        pid=epoch.pid,
    )
