"""Whether a simulated world costs per event what a small one does when it has a thousand episodes.

Both are calm, take checkpoints in mid-flight and have the oracle watching; `captured`: with tokens in a ledger that two
policy-model servers share. The ratio is that of events per second of CPU time, the large world's to the small one's,
and the lower of the two kinds; whatever is scanned or kept per episode once too often makes it fall. The small one has
64 episodes: of fewer, a larger share of the events is the checkpoints', which are cheaper.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence

from benchmarks.result import Result, repeated
from gym_ckpt.wire import json
from sim.cluster import Cluster, Options, until
from sim.oracle import Oracle
from sim.reference import Reference, played
from sim.workload import Workload, workload
from sim.world import World

EPISODES = 1000
SMALL = 64
KINDS: Mapping[str, int] = {"plain": 4, "captured": 9}
"""By what they are, the workload."""
EVERY_S = 0.8
CHECKPOINTS = 2
LIMIT_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the last line is one JSON object with `--json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sim-scale", description="one world, many episodes")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    result = measure(options.episodes)
    print(json.dumps(result.as_json()).decode() if options.json else result.words())
    return 0


def measure(episodes: int = EPISODES) -> Result:
    """Both kinds, both sizes, at least five times each."""
    worlds = {
        f"{kind}_{size}": (workload(number, size), played(workload(number, size)))
        for kind, number in KINDS.items()
        for size in (SMALL, episodes)
    }

    def once() -> dict[str, float]:
        return {f"{name}_events_per_s": _rate(*world) for name, world in worlds.items()}

    figures, spread = repeated(once)
    small = {f"{kind}_{SMALL}_events_per_s": figures.pop(f"{kind}_{SMALL}_events_per_s") for kind in KINDS}
    for name in small:
        del spread[name]
    ratios = [figures[f"{kind}_{episodes}_events_per_s"] / small[f"{kind}_{SMALL}_events_per_s"] for kind in KINDS]
    return Result("sim-scale", figures, small, min(ratios), 5, spread)


def _rate(work: Workload, expected: Reference) -> float:
    """Events per second of CPU time."""
    times = max(1, EPISODES // len(work.tasks) // 4)
    began = time.process_time()
    events = sum(_events(work, expected) for _ in range(times))
    return events / (time.process_time() - began)


def _events(work: Workload, expected: Reference) -> int:
    world = World(1)
    cluster = Cluster(world, work, Options(every_s=EVERY_S))
    oracle = Oracle(world, cluster, expected)
    oracle.attach()

    async def script(world: World) -> None:
        cluster.start()
        assert await until(world, lambda: cluster.complete, LIMIT_S), "it completes"

    result = world.run(script, 2 * LIMIT_S)
    result.check()
    oracle.judge()
    assert not oracle.violations, "only a sound run is measured"
    assert oracle.acknowledged["collector.published"] >= CHECKPOINTS, "checkpoints were taken while it ran"
    return result.events
