"""How fast worlds run on one core, in three sizes.

    pure    no event loop: admission, marks and phases of five participants through a checkpoint with 8 episodes
    small   three nodes, a dozen requests
    full    the whole gym and its collector, 8 episodes, the faults of the default profile, the oracle watching

CPU time, so that other work on the machine counts as little as possible. Reference: one plan, in which everything is
killed after a checkpoint and comes back, on real processes; `real_s` is what that takes by the wall, which is what
somebody waits for. The ratio is `real_s` to `plan_s`, the same plan in a world; both give the same rows. Beside it
stand turns of trio's scheduler with nothing in them, in the same run: what an event costs, whatever the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
import trio

from benchmarks.result import Result, repeated
from e2e.nursery import Nursery
from e2e.plans import RealRun
from e2e.proxy import Links
from faults.catalogue import EVERYTHING, Crash, OnRow, Restart
from faults.plan import Plan, Setup
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
PLAN_SEEDS = range(5)
TURNS = 50_000
EPISODES = tuple(EpisodeId(f"r{number}", 0) for number in range(8))
OPERATIONS = 12
WHOLE = Restart("whole", 0.1)
PLAN = Plan(
    Setup(workload=1, every_s=0.5, timeout_s=8.0, grace_s=6.0),
    chaos_s=8.0,
    requeue=WHOLE,
    faults=(Crash((EVERYTHING,), OnRow("collector.published"), WHOLE),),
)
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
    """All sizes and the plan on real processes, at least five times each."""
    for number in range(WORKLOADS):
        reference(number)
    with Nursery() as nursery:
        figures, spread = repeated(lambda: _once(nursery))
    beside = {name: figures.pop(name) for name in ("real_s", "trio_turns_per_s")}
    figures["events_per_turn"] = figures["events_per_s"] / beside["trio_turns_per_s"]
    spread["events_per_turn"] = spread["events_per_s"]
    return Result("sim-throughput", figures, beside, beside["real_s"] / figures["plan_s"], 5, spread)


def _once(nursery: Nursery) -> dict[str, float]:
    full_s, full = _timed(lambda: [run_seed(seed) for seed in FULL_SEEDS])
    calm_s, calm = _timed(lambda: [run_seed(seed, "calm") for seed in CALM_SEEDS])
    small_s, _ = _timed(_small_worlds)
    pure_s, _ = _timed(_pure_worlds)
    turns_s, _ = _timed(lambda: trio.run(_turns))
    plan_s, plans = _timed(lambda: [run_seed(seed, "kept", plan=PLAN) for seed in PLAN_SEEDS])
    assert all(verdict.ok for verdict in (*full, *calm, *plans)), "a world that fails is not measured"
    return {
        "full_worlds_per_s": len(FULL_SEEDS) / full_s,
        "calm_worlds_per_s": len(CALM_SEEDS) / calm_s,
        "small_worlds_per_s": len(SMALL_SEEDS) / small_s,
        "pure_worlds_per_s": len(PURE_SEEDS) / pure_s,
        "events_per_s": sum(verdict.events for verdict in full) / full_s,
        "chaos_virtual_s_per_s": sum(verdict.virtual_s for verdict in full) / full_s,
        "calm_virtual_s_per_s": sum(verdict.virtual_s for verdict in calm) / calm_s,
        "plan_s": plan_s / len(PLAN_SEEDS),
        "real_s": _on_real_processes(nursery),
        "trio_turns_per_s": TURNS / turns_s,
    }


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def _on_real_processes(nursery: Nursery) -> float:
    """Seconds from the start of the first process until the collector has said that every row is there."""
    with tempfile.TemporaryDirectory(prefix="plan", dir="/tmp") as folder, Links() as links:
        run = RealRun(nursery, links, Path(folder) / "g", PLAN)
        began = time.monotonic()
        played = run.play()
        took = time.monotonic() - began
    assert played.complete and sum(played.struck.values()) == 1, f"not the plan's run: {played.said[-1000:]}"
    rows = reference(PLAN.setup.workload).output.rows
    assert Counter(played.output.rows) == Counter(rows), "the same rows, or it is no reference"
    return took


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
