"""Memory of a held answer and of a waiting call, beyond what the server spends on a call that waits for its worker.

Reference: as many untagged calls, each waiting for the worker. Resident memory of the server's process, per call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import anyio

from benchmarks.policy import Policy, as_main, policy, until
from benchmarks.result import Result, repeated

CALLS = 2000


def main(argv: Sequence[str] | None = None) -> int:
    return as_main("parked-memory", "bytes per held answer and per waiting call", argv, measure)


def measure(calls: int = CALLS) -> Result:
    figures, spread = repeated(lambda: anyio.run(_once, calls))
    open_call = figures["open_call_bytes"]
    spread = {name: spread[name] for name in ("held_bytes", "waiting_bytes")}
    shown = {name: figures[name] - open_call for name in ("held_bytes", "waiting_bytes")}
    return Result("parked-memory", shown, {"open_call_bytes": open_call}, max(shown.values()) / 4096, 5, spread)


async def _once(calls: int) -> Mapping[str, float]:
    return {
        "open_call_bytes": await _parked(calls, "open"),
        "held_bytes": await _parked(calls, "held"),
        "waiting_bytes": await _parked(calls, "waiting"),
    }


async def _parked(calls: int, how: str) -> float:
    async with policy(checkpoint=True) as server:
        for _ in range(200):
            await server.call("warm")
        before = server.resident_bytes()
        if how != "waiting":
            server.worker.go = anyio.Event()
        else:
            await server.control("prepare", "c")
        async with anyio.create_task_group() as tasks:
            for number in range(calls):
                tasks.start_soon(partial(server.call, f"r{number}", tagged=how != "open"))
            await _until_parked(server, calls, how)
            used = server.resident_bytes() - before
            server.worker.go.set()
            if how != "open":
                await server.control("resume", "c")
    return used / calls


async def _until_parked(server: Policy, calls: int, how: str) -> None:
    if how == "waiting":
        await until(lambda: _waiting(server, calls))
        return
    await until(lambda: server.worker.all_wait(calls))
    if how == "held":
        done = server.worker.answered
        await server.control("prepare", "c")
        server.worker.go.set()
        await until(lambda: server.worker.all_answered(done + calls))
        await server.holds(calls)


async def _waiting(server: Policy, calls: int) -> bool:
    return (await server.counts())["waiting"] >= calls
