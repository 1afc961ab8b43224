"""Libraries of an author's application in a world: no way past network, clock and scheduler; and a crash."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Awaitable, Callable

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gym_ckpt.ports import Ports
from sim.fates import CalmFates, ExchangeFate
from sim.guard import StrayUse
from sim.libraries import in_world
from sim.node import WALL_START_S
from sim.world import RunResult, World


def play(main: Callable[[Ports], Awaitable[None]], world: World | None = None, dies_at_s: float | None = None) -> World:
    """`main` as a node beside a server that answers and counts."""
    world = World(5) if world is None else world
    heard: list[str] = world.__dict__.setdefault("heard", [])

    async def answer(request: Request) -> PlainTextResponse:
        await request.body()
        heard.append(request.url.path)
        return PlainTextResponse(request.headers.get("cookie", "none"), headers={"set-cookie": "a=b; Max-Age=60"})

    async def serve(ports: Ports) -> None:
        app = Starlette(routes=[Route("/{path}", answer, methods=["GET", "POST"])])
        await ports.server.serve(app, "http://server:80", ready=lambda: None)

    async def script(world: World) -> None:
        world.add_node("server", serve, start=True)
        await world.sleep(1)
        node = world.add_node("author", main, start=True)
        if dies_at_s is not None:
            await world.sleep(dies_at_s)
            node.crash()
        await world.sleep(200)

    with in_world(world):
        world.result = world.run(script, 1000)  # type: ignore[attr-defined]
    return world


def result_of(world: World) -> RunResult:
    found: RunResult = world.result  # type: ignore[attr-defined]
    return found


def connects() -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", 9))


def blocks_httpx() -> None:
    with httpx.Client(trust_env=False, verify=False) as client:
        client.get("http://server:80/x")


@pytest.mark.parametrize(
    ("stray", "said"),
    [
        (lambda: threading.Thread(target=print).start(), r"threading.Thread.start was used inside the simulator"),
        (connects, r"socket.socket.connect was used .* use httpx.AsyncClient"),
        (lambda: subprocess.Popen(["true"]), r"subprocess.Popen.__init__ was used"),
        (blocks_httpx, r"HTTPTransport.handle_request was used .* use httpx.AsyncClient"),
        (lambda: time.time(), r"time.time was used .* use the Clock port"),
        (lambda: uuid.uuid4(), r"uuid.uuid4 was used .* use the Entropy port"),
    ],
)
def test_a_way_out_of_the_world_is_closed_and_says_so(stray: Callable[[], object], said: str) -> None:
    async def main(ports: Ports) -> None:
        with pytest.raises(StrayUse, match=said):
            stray()
        with pytest.raises(StrayUse, match=said):
            await anyio.to_thread.run_sync(stray)

    result_of(play(main)).check()


def test_what_needs_another_event_loop_or_a_real_thread_fails_at_once() -> None:
    async def main(ports: Ports) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError):
            await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(anyio.sleep, 0))

    result_of(play(main)).check()


def test_work_for_a_thread_runs_inline_and_others_run_before_it() -> None:
    order: list[str] = []

    async def main(ports: Ports) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, lambda: order.append("done"))
            order.append("begun")
        assert threading.current_thread() is threading.main_thread()

    result_of(play(main)).check()
    assert order == ["begun", "done"]


def test_time_in_libraries_is_the_worlds() -> None:
    """Cookies expire by the host's clock, and an answer takes as long as its messages do."""

    class Slow(CalmFates):
        def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
            return ExchangeFate(request_latency_s=2.0, reply_latency_s=3.0)

    said: list[str] = []

    async def main(ports: Ports) -> None:
        async with httpx.AsyncClient(base_url="http://server", timeout=20) as client:
            for _ in range(2):
                reply = await client.get("/x")
                said.append(reply.text)
                assert reply.elapsed.total_seconds() == pytest.approx(5.0)
            (cookie,) = client.cookies.jar
            assert cookie.expires == pytest.approx(WALL_START_S + 11 + 60, abs=1)
            await anyio.sleep(70)
            said.append((await client.get("/x")).text)

    result_of(play(main, World(5, Slow()))).check()
    assert said == ["none", "a=b", "none"]


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        (ExchangeFate(refuse=True), httpx.ConnectError),
        (ExchangeFate(lose="before", hang=True), httpx.ConnectTimeout),
        (ExchangeFate(lose="after", hang=True), httpx.ReadTimeout),
        (ExchangeFate(lose="before"), httpx.ReadError),
        (ExchangeFate(lose="mid_request"), httpx.WriteError),
        (ExchangeFate(lose="mid_reply", mid_reply_chunks=0), httpx.ReadError),
    ],
)
def test_what_befalls_a_message_is_what_httpx_says_of_sockets(
    fate: ExchangeFate, said: type[httpx.TransportError]
) -> None:
    class Always(CalmFates):
        def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
            return fate

    async def main(ports: Ports) -> None:
        began = anyio.current_time()
        async with httpx.AsyncClient(timeout=httpx.Timeout(3.0, connect=2.0)) as client:
            with pytest.raises(httpx.TransportError) as caught:
                await client.post("http://server:80/x", content=b"x")
        assert caught.type is said
        assert anyio.current_time() - began < 4, "a time-out is obeyed"

    world = play(main, World(5, Always()))
    assert [failure.detail for failure in result_of(world).errors if failure.node == "author"] == []


def test_only_http_is_carried() -> None:
    async def main(ports: Ports) -> None:
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.UnsupportedProtocol, match="carries http://host:port"):
                await client.get("https://example.org/")

    result_of(play(main)).check()


def test_nothing_that_a_dead_node_does_with_httpx_has_an_effect() -> None:
    async def main(ports: Ports) -> None:
        async with httpx.AsyncClient(base_url="http://server", timeout=None) as client:
            await client.get("/alive")
            try:
                await anyio.sleep(100)
            finally:
                with anyio.CancelScope(shield=True):
                    while True:
                        try:
                            await client.post("/dead", content=b"x")
                        except BaseException:
                            await anyio.sleep(0)

    world = play(main, dies_at_s=10)
    result_of(world).check()
    assert world.__dict__["heard"] == ["/alive"]


def test_outside_everything_is_as_it_was() -> None:
    before = {name: vars(httpx.AsyncHTTPTransport)[name] for name in ("__init__", "handle_async_request", "aclose")}

    async def main(ports: Ports) -> None:
        return

    play(main)
    assert all(vars(httpx.AsyncHTTPTransport)[name] is value for name, value in before.items())
    assert "connect" not in vars(socket.socket) and threading.Thread.start.__module__ == "threading"
    world = World(0)

    async def script(_: World) -> None:
        async with httpx.AsyncClient() as client:
            with pytest.raises(StrayUse, match=r"use World\.client"):
                await client.get("http://server/x")

    with in_world(world):
        world.run(script).check()
