"""What the gate costs while no checkpoint is taken: tagged calls through it against untagged ones beside it.

Both pass the same proxy in the same server process, in turns, so that the machine's moods strike both alike. The ratio
is of calls per second of that process's own processor time: its throughput where it is what limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from benchmarks.policy import as_main, load, policy
from benchmarks.result import Result, repeated

CALLS, AT_ONCE, TURNS = 600, 16, 4


def main(argv: Sequence[str] | None = None) -> int:
    return as_main("gate-overhead", "the gate, on and idle, against the proxy without it", argv, measure)


def measure(calls: int = CALLS) -> Result:
    figures, spread = repeated(lambda: anyio.run(_once, calls, True))
    return result("gate-overhead", figures, spread)


def result(name: str, figures: dict[str, float], spread: dict[str, float]) -> Result:
    reference = {key: figures.pop(key) for key in ("beside_calls_per_s", "beside_cpu_us", "beside_p99_ms")}
    figures["p99_difference_ms"] = figures["p99_ms"] - reference["beside_p99_ms"]
    spread["p99_difference_ms"] = spread["p99_ms"]
    return Result(name, figures, reference, figures.pop("ratio"), 5, spread)


async def _once(calls: int, checkpoint: bool) -> Mapping[str, float]:
    async with policy(checkpoint=checkpoint) as server:
        await load(server, calls, AT_ONCE, tagged=True)
        await load(server, calls, AT_ONCE, tagged=False)
        seen: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        cpu_us = {True: 0.0, False: 0.0}
        for turn in range(TURNS):
            for tagged in (True, False) if turn % 2 else (False, True):
                before = server.cpu_s()
                seen[tagged].append(await load(server, calls, AT_ONCE, tagged=tagged))
                cpu_us[tagged] += 1e6 * (server.cpu_s() - before) / (calls * TURNS)
    rate = {tagged: max(rate for rate, _ in runs) for tagged, runs in seen.items()}
    p99 = {tagged: min(p99 for _, p99 in runs) for tagged, runs in seen.items()}
    return {
        "calls_per_s": rate[True],
        "cpu_us": cpu_us[True],
        "beside_cpu_us": cpu_us[False],
        "p99_ms": 1000 * p99[True],
        "beside_calls_per_s": rate[False],
        "beside_p99_ms": 1000 * p99[False],
        "ratio": cpu_us[False] / cpu_us[True],
    }
