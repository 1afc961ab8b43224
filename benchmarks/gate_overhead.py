"""What the gate costs while no checkpoint is taken: tagged calls through it against untagged ones beside it.

Both pass the same proxy in the same server process, in short blocks that take turns, so that the machine's moods strike
both alike. Throughput: calls of all blocks by the time that they took. The 99th percentile is of all calls of an arm.
Beside them stands what a call costs of the server's own processor time, which no other process can take from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from benchmarks.policy import as_main, load, percentile, policy
from benchmarks.result import Result, repeated

CALLS, AT_ONCE, BLOCK = 4000, 8, 100


def main(argv: Sequence[str] | None = None) -> int:
    return as_main("gate-overhead", "the gate, on and idle, against the proxy without it", argv, measure)


def measure(calls: int = CALLS) -> Result:
    figures, spread = repeated(lambda: anyio.run(once, calls, True))
    return result("gate-overhead", figures, spread)


def result(name: str, figures: dict[str, float], spread: dict[str, float]) -> Result:
    reference = {key: figures.pop(key) for key in ("beside_calls_per_s", "beside_cpu_us", "beside_p99_ms")}
    ratio = figures["throughput_ratio"]
    return Result(name, figures, reference, ratio, 5, {key: spread[key] for key in figures})


async def once(calls: int, checkpoint: bool) -> Mapping[str, float]:
    """`calls` of each kind."""
    async with policy(checkpoint=checkpoint) as server:
        for tagged in (True, False):
            await load(server, 2 * BLOCK, AT_ONCE, tagged=tagged)
        took: dict[bool, list[float]] = {True: [], False: []}
        wall_s, cpu_s = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
        for turn in range(max(1, calls // BLOCK)):
            for tagged in (True, False) if turn % 2 else (False, True):
                before = server.cpu_s()
                block, seconds = await load(server, BLOCK, AT_ONCE, tagged=tagged)
                cpu_s[tagged] += server.cpu_s() - before
                wall_s[tagged] += seconds
                took[tagged] += block
    made = len(took[True])
    p99_ms = {tagged: 1000 * percentile(all_, 0.99) for tagged, all_ in took.items()}
    return {
        "calls_per_s": made / wall_s[True],
        "throughput_ratio": wall_s[False] / wall_s[True],
        "cpu_us": 1e6 * cpu_s[True] / made,
        "cpu_ratio": cpu_s[False] / cpu_s[True],
        "p99_ms": p99_ms[True],
        "p99_difference_ms": p99_ms[True] - p99_ms[False],
        "p50_difference_ms": 1000 * (percentile(took[True], 0.5) - percentile(took[False], 0.5)),
        "beside_calls_per_s": made / wall_s[False],
        "beside_cpu_us": 1e6 * cpu_s[False] / made,
        "beside_p99_ms": p99_ms[False],
    }
