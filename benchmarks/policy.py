"""A policy-model server in a process of its own, for the benchmarks of the gate; worker and callers are in ours.

The worker answers at once, or when it is told to. Nothing of it is the gate's.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from gym_ckpt.adapters.host import free_ports
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.system import production_ports
from gym_ckpt.ports import Receive, Scope, Send
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.serve import run_server
from gym_ckpt.settings import CheckpointSettings, GymSettings, InferenceSettings, ModelSettings
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID, CONTROL_PREFIX

TOKEN = "benchmark"
PATH = "/v1/chat/completions"
ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}, "text": "x" * 400})
BODY = json.dumps({"messages": [{"role": "user", "content": "x" * 400}]})
WAIT_S = 300.0
QUIET_S = 0.5
"""A server that uses no processor for so long has nothing left to do."""


@dataclass
class Worker:
    """Answers when `go` is set. `waiting`: calls that wait for it."""

    go: anyio.Event = field(default_factory=anyio.Event)
    waiting: int = 0
    answered: int = 0

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})
        self.answered += 1

    async def all_wait(self, calls: int) -> bool:
        return self.waiting >= calls

    async def all_answered(self, calls: int) -> bool:
        return self.answered >= calls


@dataclass
class Policy:
    """The server under measurement, and how to reach it."""

    url: str
    pid: int
    worker: Worker
    http: HttpxClient

    async def call(self, name: str, *, tagged: bool = True) -> None:
        """One call, answered. Untagged it is as long, as new to every cache, and has its id all the same."""
        path = f"/ng-rollout/{name}{PATH}" if tagged else f"{PATH}?ng-rollout={name}"
        reply = await self.http.request("POST", self.url + path, headers=((CALL_ID, f"{name}.c0"),), body=BODY)
        assert reply.status == 200, reply

    async def control(self, operation: str, checkpoint_id: str) -> None:
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": time.time() + 60, "budget_s": 60.0}
        headers = (("authorization", f"Bearer {TOKEN}"),)
        url = self.url + CONTROL_PREFIX + operation
        reply = await self.http.request("POST", url, headers=headers, body=json.dumps(body))
        assert reply.status == 200, reply

    async def counts(self) -> dict[str, int]:
        headers = (("authorization", f"Bearer {TOKEN}"),)
        reply = await self.http.request("GET", self.url + CONTROL_PREFIX + "status", headers=headers)
        counts: dict[str, int] = json.loads(reply.body)["report"]["counts"]
        return counts

    async def holds(self, calls: int) -> None:
        """Wait until it has taken in all that the worker has answered, and see that it holds as many answers."""
        with anyio.fail_after(WAIT_S):
            before = -1.0
            while before != (before := self.cpu_s()):  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(QUIET_S)
        held = (await self.counts())["parked"]
        assert held == calls, f"{held} of {calls} answers are held"

    def cpu_s(self) -> float:
        """Processor time that the server's process has used."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Memory of the server's process."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settings(urls: Sequence[str], *, checkpoint: bool) -> GymSettings:
    return GymSettings(
        control_token=TOKEN,
        checkpoint=CheckpointSettings() if checkpoint else None,
        servers={
            "policy": ModelSettings(url=urls[0], workers=("worker",)),
            "worker": InferenceSettings(url=urls[1]),
        },
    )


def _serve(gym: GymSettings) -> None:
    async def main() -> None:
        async with production_ports() as ports:
            await run_server(gym, "policy", ports, ready=lambda: None)

    anyio.run(main)


@asynccontextmanager
async def policy(*, checkpoint: bool) -> AsyncIterator[Policy]:
    """Start it, and stop it."""
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    gym = settings(urls, checkpoint=checkpoint)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(gym,), daemon=True)
    process.start()
    worker = Worker()
    worker.go.set()
    try:
        async with production_ports() as ports, HttpxClient() as http, anyio.create_task_group() as tasks:

            async def serve_worker() -> None:
                await ports.server.serve(worker.app, urls[1], ready=lambda: None)

            tasks.start_soon(serve_worker)
            await until(lambda: _up(http, urls[0]))
            assert process.pid is not None
            yield Policy(urls[0], process.pid, worker, http)
            tasks.cancel_scope.cancel()
    finally:
        process.terminate()
        process.join()


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so. Raises `TimeoutError` after `WAIT_S`."""
    with anyio.fail_after(WAIT_S):
        for pause in itertools.repeat(0.05):
            if await met():
                return
            await anyio.sleep(pause)


async def _up(http: HttpxClient, url: str) -> bool:
    try:
        return (await http.request("GET", url + "/health", timeout_s=5.0)).status == 200
    except Exception:
        return False


async def load(server: Policy, calls: int, at_once: int, *, tagged: bool) -> tuple[list[float], float]:
    """Seconds of each call, and of all of them together."""
    took: list[float] = []
    left = iter(range(calls))

    async def caller() -> None:
        for number in left:
            began = time.perf_counter()
            await server.call(f"r{number}", tagged=tagged)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with Tasks() as tasks:
        for _ in range(at_once):
            tasks.start_soon(caller)
    return took, time.perf_counter() - began


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def as_main(name: str, description: str, argv: Sequence[str] | None, measure: Any) -> int:
    """The command line that these benchmarks share."""
    import argparse

    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=description)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--number", type=int, help="how many calls")
    options = parser.parse_args(argv)
    result = measure() if options.number is None else measure(options.number)
    print(json.dumps(result.as_json()).decode() if options.json else result.words())
    return 0
