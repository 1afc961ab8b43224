"""A process that starts, crashes and starts again, and the clock of the host that it runs on.

`start` runs the node's real start-up code in a new epoch. `crash` ends that epoch in the order that makes it a crash:
the epoch is dead, the disk may forget, connections break, and every task is struck down at this instant, whatever its
`finally` blocks and shielded scopes try. Memory is gone with the tasks; nothing is handed to the next life.

A `main` that raises is recorded in `error` and traced as `node.died`; one that returns, as `node.exited`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from gym_ckpt.ports import Ports
from sim.clock import VirtualClock
from sim.epoch import Epoch, NodeCrashed
from sim.ports import SignalBox, build_ports
from sim.trace import describe

if TYPE_CHECKING:
    from sim.world import World

Main = Callable[[Ports], Awaitable[None]]

POWER_CUTS = 0.4
"""Share of the deaths of a process, by no signal and not silently, that are its host's: what is not synced is lost."""
WALL_START_S = 1_700_000_000.0
"""The wall clock of a host without offset when the world begins."""


class HostClock:
    """The wall clock of one host, over virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._rate = 1.0
        self._at = 0.0
        self._wall = WALL_START_S
        self._asked: list[Callable[[], None]] = []

    def wall(self) -> float:
        """Seconds since the epoch, as this host believes."""
        if self._asked:
            asked, self._asked = self._asked, []
            for tell in asked:
                tell()
        return self._reads()

    def when_asked(self, tell: Callable[[], None]) -> None:
        """Call this once, as soon as somebody reads the clock."""
        self._asked.append(tell)

    def _reads(self) -> float:
        return self._wall + (self._clock.current_time() - self._at) * self._rate

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._wall, self._at = self._reads() + seconds, self._clock.current_time()

    def drift(self, rate: float) -> None:
        """From now on it gains `rate` seconds per second (negative: loses)."""
        self._wall, self._at = self._reads(), self._clock.current_time()
        self._rate = 1.0 + rate


class Node:
    """Made by `World.add_node`. `epoch` is the present or last life, None before the first."""

    def __init__(self, world: World, name: str, main: Main, clock: HostClock) -> None:
        self.world = world
        self.name = name
        self.main = main
        self.clock = clock
        self.epoch: Epoch | None = None
        self.exited = False
        """The last life ended because `main` returned."""
        self.error: BaseException | None = None
        """What `main` raised in the last life."""
        self.signals = SignalBox()
        self.disk_steps = 0
        self._task: trio.lowlevel.Task | None = None

    @property
    def alive(self) -> bool:
        return self.epoch is not None and self.epoch.alive

    def start(self) -> None:
        """Begin a life. An assertion fails if one is going on."""
        assert not self.alive, f"{self.name} is running already"
        epoch = Epoch(self.name, 1 if self.epoch is None else self.epoch.number + 1, self.world.next_pid())
        epoch.behave = partial(self.world.fates.behave, self.name)
        self.epoch, self.exited, self.error, self._task = epoch, False, None, None
        self.signals = SignalBox()
        ports = build_ports(self, epoch)
        self.world.emit(self.name, "node.started", epoch=epoch.number)
        epoch.spawn(self.world.nursery, self._live, epoch, ports, name=self.name)

    def crash(self, *, silent: bool = False) -> None:
        """Kill the process now. `silent`: with its host, so that peers see no reset. Nothing if it is not running.

        Sometimes its host restarts with it. Otherwise the page cache lives, and with it all that was not synced.
        """
        self._crash(silent or self.world.stream("power cuts").random() < POWER_CUTS, silent)

    def _crash(self, power_cut: bool, silent: bool = False) -> None:
        epoch = self.epoch
        if epoch is None or not epoch.alive:
            return
        epoch.alive = False
        if power_cut:
            self.world.disk.crash(self.name)
        else:
            self.world.disk.end(self.name)
        self.world.emit(self.name, "node.crashed", epoch=epoch.number)  # listeners see the disk as the crash left it
        self._end(epoch, silent)

    def signal(self, name: str) -> None:
        """Deliver `SIGTERM`, `SIGUSR1` or `SIGKILL`. Without a listener, or as SIGKILL, it ends the process."""
        if not self.alive:
            return
        self.world.emit(self.name, "node.signal", name=name)
        if name == "SIGKILL" or not self.signals.deliver(name):
            self._crash(power_cut=False)

    def stop(self) -> None:
        """SIGSTOP: the process lives and does not run. Nothing if it is not running anyway."""
        if self.alive and not self.world.freezer.is_stopped(self.name):
            self.world.emit(self.name, "node.stopped")
            self.world.freezer.stop(self.name)

    def go_on(self) -> None:
        """SIGCONT."""
        if self.alive and self.world.freezer.is_stopped(self.name):
            self.world.emit(self.name, "node.continued")
            self.world.freezer.go_on(self.name)

    def _end(self, epoch: Epoch, silent: bool) -> None:
        self.world.freezer.let_go(self.name)
        self.world.network.reset(epoch, silent=silent)
        if self._task is not None:
            self.world.reaper.condemn(self._task, NodeCrashed(self.name))

    async def _live(self, epoch: Epoch, ports: Ports) -> None:
        if not epoch.alive:
            return
        self._task = trio.lowlevel.current_task()
        try:
            async with trio.open_nursery() as nursery:
                epoch.nursery = nursery
                error: BaseException | None = None
                try:
                    await self.main(ports)
                except Exception as exc:
                    error = exc
                if epoch.alive:
                    self._finish(epoch, error)
                nursery.cancel_scope.cancel()
        except BaseException as exc:
            if epoch.alive:
                self._finish(epoch, exc)
        finally:
            epoch.nursery = None

    def _finish(self, epoch: Epoch, error: BaseException | None) -> None:
        """`main` is over: the process ends, the host lives, and the page cache with it."""
        epoch.alive = False
        self.error, self.exited = error, error is None
        fields: dict[str, Any] = {"epoch": epoch.number}
        if error is not None:
            fields["error"] = describe(error)
            self.world.record(self.name, "died", error, fields["error"])
        self.world.emit(self.name, "node.exited" if error is None else "node.died", **fields)
        self.world.disk.end(self.name)
        self._end(epoch, False)
