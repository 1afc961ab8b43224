"""A lively little world, used by the tests of determinism: chance everywhere that a world may have it.

Run as a program it prints the hash of one seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

import anyio

from gym_ckpt.errors import TransportError
from gym_ckpt.ports import FileSystem, Ports
from sim.fates import CalmFates, DiskFate, ExchangeFate
from sim.node import Main
from sim.streams import stream
from sim.world import RunResult, World

Message = MutableMapping[str, Any]


class Rough(CalmFates):
    """A bit of everything, from its own streams."""

    def __init__(self, seed: int) -> None:
        self._net: random.Random = stream(seed, "rough", "net")
        self._disk: random.Random = stream(seed, "rough", "disk")

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        chance = self._net
        return ExchangeFate(
            request_latency_s=chance.uniform(0.001, 0.01),
            reply_latency_s=chance.uniform(0.001, 0.01),
            lose=chance.choice((None, None, None, "before", "after", "mid_reply")),
            hang=chance.random() < 0.05,
            duplicate=chance.random() < 0.1,
            duplicate_delay_s=chance.uniform(0, 0.1),
        )

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        return DiskFate(latency_s=self._disk.choice((0.0001, 0.001, 0.01)))


def server(at: int) -> Main:
    """Writes a file per request and answers with a token, in two chunks."""

    async def main(ports: Ports) -> None:
        name = ports.entropy.token(2)

        def job(fs: FileSystem) -> Generator[str, None, int]:
            yield "write"
            file = fs.append(f"/{name}")
            file.write(b"x")
            yield "sync"
            file.fsync()
            return fs.size(f"/{name}")

        async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[..., Any]) -> None:
            await receive()
            size = await ports.disk.run(job)
            ports.tracer.emit("served", names={scope["path"], name}, size=size)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": ports.entropy.token().encode(), "more_body": True})
            await anyio.sleep(ports.entropy.uniform(0, 0.01))
            await send({"type": "http.response.body", "body": b"!"})

        await ports.server.serve(app, f"http://s{at}:80", ready=lambda: None)

    return main


async def client(ports: Ports) -> None:
    """Ten tasks that call both servers again and again."""

    async def calls(at: int) -> None:
        for i in range(10):
            try:
                reply = await ports.http.request(
                    "POST", f"http://s{(at + i) % 2}:80/{at}", body=b"x" * i * 20_000, timeout_s=0.5
                )
                ports.tracer.emit("reply", at=at, body=reply.body)
            except TransportError as exc:
                ports.tracer.emit("trouble", at=at, kind=type(exc).__name__)
            with anyio.move_on_after(0.05):
                async with lock:
                    await anyio.sleep(0.01)
            order.append(at)

    lock, order = anyio.Lock(), list[int]()
    async with anyio.create_task_group() as group:
        for at in range(10):
            group.start_soon(calls, at)
    ports.tracer.emit("order", order=order)


def run(seed: int) -> RunResult:
    """One run with two crashes and restarts."""
    world = World(seed, Rough(seed), keep_all_rows=True)

    async def script(world: World) -> None:
        servers = [world.add_node(f"server{at}", server(at), start=True) for at in range(2)]
        asking = world.add_node("client", client, start=True)
        for node in servers:
            await world.sleep(0.2)
            node.crash()
            await world.sleep(0.05)
            node.start()
        while asking.alive:
            await world.sleep(1)

    return world.run(script, 1000)


if __name__ == "__main__":
    print(*[run(int(seed)).check().hash for seed in sys.argv[1:]])
