"""Processes that do not run for a while, though they live: stopped by a signal, or slow to wake.

What happens to a stopped process goes on happening: its connections take bytes, its deadlines pass, its disk writes.
It sees all of it at once when it goes on. Must not know why a process is stopped.
"""

from __future__ import annotations

from trio.lowlevel import Task

from sim.clock import VirtualClock
from sim.determinism import run_again
from sim.epoch import epoch_of


class Freezer:
    """The `Sieve` of a world. Nodes by name; a node that dies is let go."""

    def __init__(self, clock: VirtualClock) -> None:
        self.active = False
        self._clock = clock
        self._stopped: set[str] = set()
        self._lags: dict[str, float] = {}
        self._asleep: set[str] = set()
        """Nodes that something has woken, and that have not noticed yet."""
        self._awake_at: dict[str, float] = {}
        """When a slow node was last awake: whatever is due at that instant is done in it."""
        self._held: list[Task] = []

    def stop(self, name: str) -> None:
        """SIGSTOP."""
        self._stopped.add(name)
        self._look()

    def go_on(self, name: str) -> None:
        """SIGCONT; nothing where it was not stopped."""
        self._stopped.discard(name)
        self._release(name)

    def lag(self, name: str, seconds: float) -> None:
        """From now on whatever wakes the node, a timer above all, is noticed so much later; 0: at once again."""
        self._lags.pop(name, None)
        if seconds > 0:
            self._lags[name] = seconds
        else:
            self._asleep.discard(name)
            self._release(name)
        self._look()

    def let_go(self, name: str) -> None:
        """The node's process is over."""
        self._stopped.discard(name)
        self._asleep.discard(name)
        self._release(name)

    def is_stopped(self, name: str) -> bool:
        return name in self._stopped

    def sift(self, batch: list[Task]) -> None:
        """Keep the tasks of processes that do not run."""
        run = []
        for task in batch:
            epoch = epoch_of(task)
            if epoch is not None and epoch.alive and self._holds(epoch.name):
                self._held.append(task)
            else:
                run.append(task)
        batch[:] = run

    def _holds(self, name: str) -> bool:
        if name in self._stopped or name in self._asleep:
            return True
        lag = self._lags.get(name)
        if lag is None or self._awake_at.get(name) == self._clock.current_time():
            return False
        self._asleep.add(name)
        self._clock.call_after(lag, self._wake, name)
        return True

    def _wake(self, name: str) -> None:
        if name in self._asleep:
            self._asleep.discard(name)
            self._awake_at[name] = self._clock.current_time()
            self._release(name)

    def _release(self, name: str) -> None:
        free: list[Task] = []
        kept: list[Task] = []
        for task in self._held:
            epoch = epoch_of(task)
            (free if epoch is None or epoch.name == name else kept).append(task)
        self._held = kept
        run_again(free)
        self._look()

    def _look(self) -> None:
        self.active = bool(self._stopped or self._lags or self._held)
