"""How fast worlds run on one core, in three sizes.

    pure    no event loop: admission, marks and phases of five participants through a checkpoint with 8 episodes
    small   three nodes, a dozen requests
    full    the whole gym and its collector, 8 episodes, the faults of the default profile, the oracle watching

CPU time, so that other work on the machine counts as little as possible. Reference: turns of trio's scheduler with
nothing in them, measured in the same run; the ratio is events of full worlds per such turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio
import trio

from benchmarks.result import Result, repeated
from gym_ckpt.core import phases
from gym_ckpt.core.admission import AdmissionBook
from gym_ckpt.ports import Ports, Receive, Scope, Send
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from sim.reference import reference
from sim.run import run_seed
from sim.workload import WORKLOADS
from sim.world import World, run_world

FULL_SEEDS = range(1000, 1030)
CALM_SEEDS = range(12)
SMALL_SEEDS = range(60)
PURE_SEEDS = range(300)
TURNS = 50_000
EPISODES = tuple(EpisodeId(f"r{number}", 0) for number in range(8))
OPERATIONS = 12
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the last line is one JSON object with `--json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sim-throughput", description="worlds on one core")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    result = measure()
    print(json.dumps(result.as_json()).decode() if options.json else result.words())
    return 0


def measure() -> Result:
    """All sizes, at least five times each."""
    for number in range(WORKLOADS):
        reference(number)
    figures, spread = repeated(_once)
    turns = figures.pop("trio_turns_per_s")
    del spread["trio_turns_per_s"]
    return Result("sim-throughput", figures, {"trio_turns_per_s": turns}, figures["events_per_s"] / turns, 5, spread)


def _once() -> dict[str, float]:
    full_s, full = _timed(lambda: [run_seed(seed) for seed in FULL_SEEDS])
    calm_s, calm = _timed(lambda: [run_seed(seed, "calm") for seed in CALM_SEEDS])
    small_s, _ = _timed(_small_worlds)
    pure_s, _ = _timed(_pure_worlds)
    turns_s, _ = _timed(lambda: trio.run(_turns))
    assert all(verdict.ok for verdict in (*full, *calm)), "a world that fails is not measured"
    return {
        "full_worlds_per_s": len(FULL_SEEDS) / full_s,
        "calm_worlds_per_s": len(CALM_SEEDS) / calm_s,
        "small_worlds_per_s": len(SMALL_SEEDS) / small_s,
        "pure_worlds_per_s": len(PURE_SEEDS) / pure_s,
        "events_per_s": sum(verdict.events for verdict in full) / full_s,
        "chaos_virtual_s_per_s": sum(verdict.virtual_s for verdict in full) / full_s,
        "calm_virtual_s_per_s": sum(verdict.virtual_s for verdict in calm) / calm_s,
        "trio_turns_per_s": TURNS / turns_s,
    }


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


async def _turns() -> None:
    for _ in range(TURNS):
        await trio.lowlevel.checkpoint()


def _small_worlds() -> None:
    for seed in SMALL_SEEDS:
        _small(seed)


def _pure_worlds() -> None:
    for _ in PURE_SEEDS:
        _pure()


def _small(seed: int) -> None:
    """One server, two clients, a dozen requests."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def server(ports: Ports) -> None:
        await ports.server.serve(app, "http://server:80", ready=lambda: None)

    async def client(ports: Ports) -> None:
        await anyio.sleep(0.01)
        for _ in range(OPERATIONS // 2):
            await ports.http.request("POST", "http://server:80/run", body=b"{}")

    async def script(world: World) -> None:
        world.add_node("server", server, start=True)
        for name in ("one", "two"):
            world.add_node(name, client, start=True)
        await world.sleep(1.0)

    run_world(seed, script).check()


def _pure() -> None:
    """Five participants prepare, commit and resume with every episode at work, and retire one."""
    for _ in range(5):
        book, state = AdmissionBook(), phases.State()
        tickets = [book.arrive(episode) for episode in EPISODES]
        for ticket in tickets:
            book.begin(ticket)
        state, _ = phases.step(state, phases.Prepare("c", 10.0))
        book.close()
        for ticket in tickets:
            book.park(ticket)
        assert book.quiet
        state, _ = phases.step(state, phases.Ready("c"))
        state, _ = phases.step(state, phases.Commit("c", phases.Target("/d", EPISODES), 10.0))
        state, _ = phases.step(state, phases.CommitWritten("c"))
        state, _ = phases.step(state, phases.Resume("c"))
        book.open()
        book.mark(EPISODES[:1])
        for ticket in tickets:
            book.leave(ticket)
