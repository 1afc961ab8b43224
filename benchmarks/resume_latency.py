"""From resume to the last of many held answers delivered, against the same answers written without a hold.

Reference: as many calls wait for the worker, which then answers all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import anyio

from benchmarks.policy import as_main, policy, until
from benchmarks.result import Result, repeated

CALLS = 8000


def main(argv: Sequence[str] | None = None) -> int:
    return as_main("resume-latency", "seconds from resume to the last held answer", argv, measure)


def measure(calls: int = CALLS) -> Result:
    figures, spread = repeated(lambda: anyio.run(_once, calls))
    free = figures.pop("unheld_s")
    del spread["unheld_s"]
    return Result("resume-latency", figures, {"unheld_s": free}, figures["resume_s"] / free, 5, spread)


async def _once(calls: int) -> Mapping[str, float]:
    return {"resume_s": await _seconds(calls, held=True), "unheld_s": await _seconds(calls, held=False)}


async def _seconds(calls: int, *, held: bool) -> float:
    async with policy(checkpoint=True) as server:
        await server.call("warm")
        server.worker.go = anyio.Event()
        done = server.worker.answered
        async with anyio.create_task_group() as tasks:
            for number in range(calls):
                tasks.start_soon(server.call, f"r{number}")
            await until(lambda: server.worker.all_wait(calls))
            if held:
                await server.control("prepare", "c")
                server.worker.go.set()
                await until(lambda: server.worker.all_answered(done + calls))
                await server.holds(calls)
                began = time.perf_counter()
                await server.control("resume", "c")
            else:
                began = time.perf_counter()
                server.worker.go.set()
        return time.perf_counter() - began
