"""A whole cluster under one seed: nodes, network, disk, clock and trace, and the script that plays with them.

`run_world(seed, script)` is the entry. Whatever goes wrong is in the result's `errors`, never lost: a node that died, a
handler that raised, a script that failed, a run that stuck. Judging them is the caller's business.

Must not know the protocol.
"""

from __future__ import annotations

import math
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from sim.clock import Stuck, VirtualClock
from sim.determinism import Policy, Reaper, run_deterministic
from sim.disk import SimFileSystem
from sim.epoch import Epoch, NodeCrashed
from sim.fates import CalmFates, Fates
from sim.freezer import Freezer
from sim.network import Network, NodeClient
from sim.node import HostClock, Main, Node
from sim.streams import stream
from sim.trace import Row, Trace, describe

FIRST_PID = 1001
_FRAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that no run may end with unless it was asked for. `kind`: died, handler, script, stuck."""

    t: float
    node: str
    kind: str
    detail: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves behind. Equal seeds and scripts give equal hashes."""

    seed: int
    hash: str
    events: int
    virtual_s: float
    rows_tail: tuple[Row, ...]
    errors: tuple[Failure, ...]
    probes: Mapping[str, int]

    def check(self) -> RunResult:
        """Raise the first error, if there is one."""
        for failure in self.errors:
            raise AssertionError(
                f"seed {self.seed}, {failure.t:.6f} s, {failure.node or 'world'} {failure.kind}: {failure.detail}"
            ) from failure.error
        return self


class World:
    """One cluster. Made outside the run, so that a script's owner can add nodes and listeners first."""

    def __init__(
        self,
        seed: int,
        fates: Fates | None = None,
        *,
        policy: Policy | None = None,
        keep_all_rows: bool = False,
        tail: int = 200,
        journalled: bool = True,
        links: bool = True,
    ) -> None:
        self.seed = seed
        self.fates: Fates = CalmFates() if fates is None else fates
        self.policy = policy
        self.clock = VirtualClock()
        self.reaper = Reaper()
        self.freezer = Freezer(self.clock)
        self.trace = Trace(tail=tail, keep_all=keep_all_rows)
        self.disk = SimFileSystem(stream(seed, "disk"), journalled=journalled)
        self.disk.links = links
        self.network = Network(self.clock, self.fates, self.emit, self._handler_failed)
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, HostClock] = {}
        self.errors: list[Failure] = []
        self.probes: Counter[str] = Counter()
        self._streams: dict[str, random.Random] = {}
        self._pid = FIRST_PID
        self._nursery: trio.Nursery | None = None

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.clock.current_time()

    @property
    def nursery(self) -> trio.Nursery:
        """Where nodes live. An assertion fails outside a run."""
        assert self._nursery is not None, "nodes live only while the world runs"
        return self._nursery

    def stream(self, name: str) -> random.Random:
        """The seeded stream of this name; the same object every time."""
        if name not in self._streams:
            self._streams[name] = stream(self.seed, "world", name)
        return self._streams[name]

    def add_node(self, name: str, main: Main, *, host: str | None = None, start: bool = False) -> Node:
        """A node that runs `main`. Nodes of one `host` (by default a node has its own) share a wall clock."""
        assert name not in self.nodes, f"there is a node {name} already"
        node = self.nodes[name] = Node(self, name, main, self.host(name if host is None else host))
        if start:
            node.start()
        return node

    def clock_of(self, name: str) -> HostClock:
        """The clock of the host on which this node runs, also where there is no such node."""
        return self.nodes[name].clock if name in self.nodes else self.host(name)

    def host(self, name: str) -> HostClock:
        """The clock of a host."""
        if name not in self.hosts:
            self.hosts[name] = HostClock(self.clock)
        return self.hosts[name]

    def client(self, name: str = "outside") -> NodeClient:
        """An `HttpClient` of the harness, which never crashes."""
        return NodeClient(self.network, Epoch(name, 0, 0))

    def emit(self, node: str, event: str, **fields: Any) -> None:
        """Append a row to the trace, at the present instant."""
        self.trace.emit(self.clock.current_time(), node, event, fields)

    def record(self, node: str, kind: str, error: BaseException | None, detail: str) -> None:
        """Keep a failure for the result."""
        self.errors.append(Failure(self.now, node, kind, detail, error))

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def _handler_failed(self, epoch: Epoch, kind: str, error: BaseException | None, detail: str) -> None:
        self.record(epoch.name, kind, error, detail)

    def _stop(self, error: Exception) -> None:
        if self.clock.fault is not None:
            self.clock.fault(error)

    async def sleep(self, seconds: float) -> None:
        """For scripts."""
        await self.clock.sleep(seconds)

    async def _run(self, script: Callable[[World], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await script(self)
            finally:
                self._close()

    def _close(self) -> None:
        """The script is over: from here on nothing counts, and whatever still runs is ended."""
        self.trace.close()
        for name in self.nodes:
            self.freezer.lag(name, 0.0)
            self.freezer.let_go(name)
        for node in self.nodes.values():
            if node.epoch is not None and node.epoch.alive:
                node.epoch.alive = False
                if node._task is not None:
                    self.reaper.condemn(node._task, NodeCrashed(node.name))

    def run(
        self, script: Callable[[World], Awaitable[None]], horizon_s: float = math.inf, *, guard: bool = True
    ) -> RunResult:
        """Play `script` to its end, or until the run sticks or reaches `horizon_s`. Once per world."""
        self.clock.horizon_s = horizon_s
        self.trace.fault = self._stop
        try:
            run_deterministic(
                lambda: self._run(script),
                self.seed,
                self.clock,
                policy=self.policy,
                reaper=self.reaper,
                sieve=self.freezer,
                guard=guard,
            )
        except Stuck as exc:
            self.record("", "stuck", exc, describe(exc))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # a death that escaped its node, trio's own internal error: this run's failure
            error = exc
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self.record("", "script", error, describe(error) + _caused(error))
        return RunResult(
            seed=self.seed,
            hash=self.trace.hexdigest(),
            events=self.trace.events,
            virtual_s=self.now,
            rows_tail=tuple(self.trace.rows),
            errors=tuple(self.errors),
            probes=dict(sorted(self.probes.items())),
        )


def _caused(error: BaseException) -> str:
    """Of an error that only says that trio broke: what broke it, and where."""
    cause = error.__cause__
    if not isinstance(error, trio.TrioInternalError) or cause is None:
        return ""
    frames = traceback.extract_tb(cause.__traceback__)[-_FRAMES_SHOWN:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return f"; {describe(cause)} in {' > '.join(places)}"


def run_world(
    seed: int,
    script: Callable[[World], Awaitable[None]],
    *,
    fates: Fates | None = None,
    horizon_s: float = math.inf,
    policy: Policy | None = None,
    keep_all_rows: bool = False,
) -> RunResult:
    """A world of its own for `script`, run to the end. See `World.run`."""
    return World(seed, fates, policy=policy, keep_all_rows=keep_all_rows).run(script, horizon_s)
