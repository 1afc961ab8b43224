"""An author's `httpx.AsyncClient`, over the simulated network and on real sockets: the same is seen by both.

The server is a Starlette application, as an author would have it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from gym_ckpt.adapters.uvicorn_server import UvicornServer
from gym_ckpt.ports import ASGIApp, Ports
from sim.libraries import in_world
from sim.world import World
from tests.unit.adapters.loopback import free_port

LARGE = 200_000


class Peer:
    """`gone`: its streams that were left before their end. `over`: nobody needs late answers any more."""

    def __init__(self) -> None:
        self.gone = 0
        self.over = anyio.Event()

    async def echo(self, request: Request) -> Response:
        return Response(await request.body(), headers={"x-asked": request.headers.get("x-asked", "")})

    async def parts(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                for number in range(int(request.query_params["n"])):
                    yield b"%d," % number
                    await anyio.sleep(float(request.query_params.get("pause", "0")))
            except anyio.get_cancelled_exc_class():
                self.gone += 1
                raise

        return StreamingResponse(parts())

    async def login(self, request: Request) -> Response:
        reply = PlainTextResponse("hello")
        reply.set_cookie("who", "me", max_age=60)
        return reply

    async def who(self, request: Request) -> Response:
        return PlainTextResponse(request.cookies.get("who", "nobody"))

    async def away(self, request: Request) -> Response:
        return RedirectResponse("/who")

    async def slow(self, request: Request) -> Response:
        await self.over.wait()
        return PlainTextResponse("late")

    def threaded(self, request: Request) -> Response:
        return PlainTextResponse("from a thread pool")

    async def teapot(self, request: Request) -> Response:
        return Response(status_code=418)

    @staticmethod
    async def cut(scope: Any, receive: Any, send: Any) -> None:
        """Breaks off in the middle of its answer."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})

    def app(self) -> ASGIApp:
        names = ("parts", "login", "who", "away", "slow", "threaded", "teapot")
        routes = [Route(f"/{name}", getattr(self, name)) for name in names]
        echo = Route("/echo", self.echo, methods=["POST"])
        starlette = Starlette(routes=[*routes, echo])

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (self.cut if scope["path"] == "/cut" else starlette)(scope, receive, send)

        return app


async def session(peer: Peer, url: str, nowhere: str) -> list[object]:
    """What a caller sees of it."""
    seen: list[object] = []

    async def large() -> AsyncIterator[bytes]:
        for _ in range(LARGE // 1000):
            yield b"x" * 1000

    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        reply = await client.post("/echo", content=large(), headers={"X-Asked": "this"})
        seen.append(
            (reply.status_code, len(reply.content), reply.headers["x-asked"], reply.elapsed.total_seconds() >= 0)
        )
        seen.append((await client.get("/parts", params={"n": 3})).text)
        async with client.stream("GET", "/parts", params={"n": 1000, "pause": 0.05}) as streamed:
            async with aclosing(streamed.aiter_bytes()) as arriving:  # type: ignore[type-var]
                seen.append((await anext(arriving))[:2])
        seen.append([(await client.get(path)).text for path in ("/who", "/login", "/who")])
        seen.append((await client.get("/away", follow_redirects=True)).text)
        seen.append((await client.get("/threaded")).text)
        await _failing(client, nowhere, seen)
        with anyio.move_on_after(0.2) as limit:
            await client.get("/slow")
        seen.append(limit.cancelled_caught)
    while peer.gone < 2:  # the one that was left early, and the one that timed out
        await anyio.sleep(0.01)
    return seen


async def _failing(client: httpx.AsyncClient, nowhere: str, seen: list[object]) -> None:
    async def fail(call: Callable[[], Awaitable[httpx.Response]]) -> None:
        try:
            (await call()).raise_for_status()
        except httpx.HTTPError as error:
            seen.append((type(error), error.request.method))

    await fail(partial(client.get, "/teapot"))
    await fail(partial(client.get, nowhere))
    await fail(partial(client.get, "/slow", timeout=0.2))
    await fail(partial(client.get, "/parts", params={"n": 2, "pause": 30}, timeout=0.2))
    await fail(partial(client.get, "/cut"))


SEEN = [
    (200, LARGE, "this", True),
    "0,1,2,",
    b"0,",
    ["nobody", "hello", "me"],
    "me",
    "from a thread pool",
    (httpx.HTTPStatusError, "GET"),
    (httpx.ConnectError, "GET"),
    (httpx.ReadTimeout, "GET"),
    (httpx.ReadTimeout, "GET"),
    (httpx.RemoteProtocolError, "GET"),
    True,
]


@asynccontextmanager
async def on_loopback(app: ASGIApp) -> AsyncIterator[str]:
    """Its url."""
    url, ready = f"http://127.0.0.1:{free_port()}", anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(UvicornServer(drain_s=1).serve, app, url, ready=ready.set))
        await ready.wait()
        yield url
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_on_sockets() -> None:
    peer = Peer()
    async with on_loopback(peer.app()) as url:
        with anyio.fail_after(20):
            assert await session(peer, url, f"http://127.0.0.1:{free_port()}/") == SEEN
        peer.over.set()


def test_in_a_world() -> None:
    peer, world, seen = Peer(), World(3), list[object]()

    async def serve(ports: Ports) -> None:
        await ports.server.serve(peer.app(), "http://server:80", ready=lambda: None)

    async def call(ports: Ports) -> None:
        await anyio.sleep(1)
        seen.extend(await session(peer, "http://server:80", "http://nowhere:80/"))

    async def script(world: World) -> None:
        caller = world.add_node("caller", call, start=True)
        world.add_node("server", serve, start=True)
        while caller.alive:
            await world.sleep(1)

    with in_world(world):
        errors = world.run(script, 600).errors
    assert seen == SEEN, errors
    assert [failure.detail for failure in errors] == ["ASGI callable returned without completing response"]
