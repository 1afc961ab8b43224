"""A bare ASGI application with one route per situation, and a server around it on a free port of loopback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.uvicorn_server import UvicornServer
from gym_ckpt.ports import Receive, Scope, Send

STARTED_S = 10.0
"""Longest wait of a test for something that happens at once on an idle machine."""
AT_ONCE_S = 1.0
"""A time-out within which that happens on a busy machine, too, where a test waits for longer than it."""


@dataclass
class Application:
    """Answers by path; counts what it saw."""

    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    clients: set[tuple[str, int] | None] = field(default_factory=set)
    seen: anyio.Event = field(default_factory=anyio.Event)
    """A request has arrived."""
    disconnected: anyio.Event = field(default_factory=anyio.Event)
    release: anyio.Event = field(default_factory=anyio.Event)
    """Set by the test: held requests go on."""
    in_flight: int = 0
    most_in_flight: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.clients.add(tuple(scope["client"]) if scope["client"] else None)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.seen.set()
        try:
            await self._answer(scope, receive, send)
        finally:
            self.in_flight -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read(receive)
        self.bodies.append(body)
        match scope["path"]:
            case "/echo":
                names = [(b"X-Method", scope["method"].encode()), *scope["headers"]]
                await self._reply(send, body, status=201, headers=names)
            case "/hold":
                await self.release.wait()
                await self._reply(send, body)
            case "/drip":
                await self._start(send)
                await send({"type": "http.response.body", "body": b"one", "more_body": True})
                await self.release.wait()
                await send({"type": "http.response.body", "body": b"two"})
            case "/watch":
                await self._start(send)
                await send({"type": "http.response.body", "body": b"first", "more_body": True})
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.disconnected.set()
            case "/stubborn":
                await self._start(send)
                await send({"type": "http.response.body", "body": b"begun", "more_body": True})
                await anyio.sleep_forever()
            case path:
                await self._reply(send, path.encode())

    async def _read(self, receive: Receive) -> bytes:
        body = b""
        while True:
            message = await receive()
            part: bytes = message.get("body", b"")
            body += part
            if not message.get("more_body"):
                return body

    async def _start(self, send: Send, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers or []})

    async def _reply(
        self, send: Send, body: bytes, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        length = (b"content-length", str(len(body)).encode())
        kept = [(name, value) for name, value in headers or [] if name.lower() != b"content-length"]
        await self._start(send, status, [*kept, length])
        await send({"type": "http.response.body", "body": body})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(
    app: Application, url: str | None = None, server: UvicornServer | None = None
) -> AsyncIterator[tuple[str, anyio.CancelScope]]:
    """The URL it listens on, and the scope whose cancellation stops the server."""
    where = url or f"http://127.0.0.1:{free_port()}"
    listening = anyio.Event()

    async def serve(scope: anyio.CancelScope) -> None:
        with scope:
            await (server or UvicornServer(drain_s=1)).serve(app, where, ready=listening.set)

    async with anyio.create_task_group() as group:
        stop = anyio.CancelScope()
        group.start_soon(serve, stop)
        with anyio.fail_after(STARTED_S):
            await listening.wait()
        try:
            yield where, stop
        finally:
            app.release.set()
            stop.cancel()


async def burst(client: HttpxClient, app: Application, url: str, calls: int) -> None:
    """So many calls in flight at once."""
    app.release = anyio.Event()
    async with anyio.create_task_group() as group:
        for _ in range(calls):
            group.start_soon(client.request, "GET", f"{url}/hold")
        while app.in_flight < calls:
            await anyio.sleep(0.001)
        app.release.set()
