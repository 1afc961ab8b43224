"""HTTP at its edges: the simulated network, and uvicorn with our client on loopback. What both ends see is the same.

One body for both. Times are short, since the real arm waits for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.uvicorn_server import UvicornServer
from gym_ckpt.errors import PeerLost, PeerTimeout, PeerUnreachable, TransportError
from gym_ckpt.ports import HttpClient, Ports, Receive, Send
from sim.world import World, run_world
from tests.unit.adapters.loopback import AT_ONCE_S, free_port

SOON_S = 0.2
LIMIT_S = 20.0
LARGE = b"x" * 200_000


@dataclass
class Peer:
    """The application, by path; `saw`: what it met."""

    saw: list[object] = field(default_factory=list)
    begun: anyio.Event = field(default_factory=anyio.Event)
    release: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async def start(*headers: tuple[bytes, bytes], status: int = 200) -> None:
            await send({"type": "http.response.start", "status": status, "headers": headers})

        async def part(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        match scope["path"]:
            case "/echo x":
                self.saw.append((scope["method"], scope["raw_path"], scope["query_string"], scope["asgi"]))
                body = b"".join([await _part(receive)] if scope["method"] == "GET" else await _parts(receive))
                await start((b"x-length", b"%d" % len(body)), (b"content-length", b"%d" % len(body)), status=201)
                await part(body, more=False)
                self.saw.append((await receive())["type"])
            case "/nothing":
                return
            case "/raises":
                raise ValueError("before any answer")
            case "/half" | "/half-raises":
                await start()
                await part(b"half")
                if scope["path"] == "/half-raises":
                    raise ValueError("in mid-answer")
            case "/short" | "/long":
                await start((b"content-length", b"3"))
                try:
                    await part(b"xx" if scope["path"] == "/short" else b"xxxx", more=False)
                except Exception:
                    self.saw.append("refused")
                    raise
            case "/no-content":
                await start(status=204)
                await part(b"", more=False)
            case "/length":
                await start((b"content-length", b"5"))
                await part(b"12345", more=False)
            case "/left":
                await _parts(receive)
                await start()
                await part(b"one")
                self.saw.append((await receive())["type"])
                for _ in range(3):
                    await part(LARGE)  # dropped, and nobody is held back or told
                self.saw.append("sent")
            case "/waits":
                await _parts(receive)
                self.begun.set()
                self.saw.append((await receive())["type"])
            case "/drained":
                await start()
                await part(b"one")
                self.begun.set()
                await self.release.wait()
                await part(b"two", more=False)
            case "/slow":
                await start()
                await part(b"one")
                await anyio.sleep(1.1 * AT_ONCE_S)
                await part(b"two", more=False)


async def _part(receive: Receive) -> bytes:
    message = await receive()
    assert message["type"] == "http.request" and not message.get("more_body")
    return bytes(message["body"])


async def _parts(receive: Receive) -> list[bytes]:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message["body"])
        if not message["more_body"]:
            return parts


@dataclass
class Here:
    """What a body has: a client, where the peer listens and nobody does, and what stops the server."""

    http: HttpClient
    url: str
    nowhere: str
    peer: Peer
    stop: Callable[[], None]

    async def fails(self, path: str, **more: Any) -> type[Exception]:
        with pytest.raises(TransportError) as caught:
            await self.http.request("GET", self.url + path, **more)
        return caught.type

    async def saw(self, number: int) -> list[object]:
        """Its notes, once there are so many."""
        with anyio.fail_after(LIMIT_S):
            while len(self.peer.saw) < number:
                await anyio.sleep(0.01)
        return self.peer.saw


Body = Callable[[Here], Awaitable[None]]


def simulated(body: Body) -> None:
    scopes: list[anyio.CancelScope] = []

    async def script(world: World) -> None:
        peer = Peer()

        async def main(ports: Ports) -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await ports.server.serve(peer, "http://server:80", ready=lambda: None)

        world.add_node("server", main, start=True)
        await world.sleep(1)
        await body(Here(world.client(), "http://server:80", "http://server:81", peer, scopes[0].cancel))

    result = run_world(0, script, horizon_s=1000)
    assert {failure.kind for failure in result.errors} <= {"handler"}, result.errors  # uvicorn logs those


def real(body: Body) -> None:
    async def main() -> None:
        peer, scope, ready = Peer(), anyio.CancelScope(), anyio.Event()
        url = f"http://127.0.0.1:{free_port()}"

        async def serve() -> None:
            with scope:
                await UvicornServer(drain_s=LIMIT_S).serve(peer, url, ready=ready.set)

        async with HttpxClient() as http, anyio.create_task_group() as group:
            group.start_soon(serve)
            with anyio.fail_after(LIMIT_S):
                await ready.wait()
                await body(Here(http, url, f"http://127.0.0.1:{free_port()}", peer, scope.cancel))
            scope.cancel()

    anyio.run(main)


@pytest.fixture(params=[simulated, real])
def play(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    arm: Callable[[Body], None] = request.param
    return arm


@pytest.mark.parametrize("sent", [b"", b"short", LARGE])
def test_an_exchange_is_whole_and_then_disconnects(play: Callable[[Body], None], sent: bytes) -> None:
    async def body(here: Here) -> None:
        reply = await here.http.request("POST", f"{here.url}/echo%20x?q=1", headers=[("x-a", "b")], body=sent)
        assert (reply.status, reply.body, reply.header("x-length")) == (201, sent, str(len(sent)))
        seen = await here.saw(2)
        asked = ("POST", b"/echo%20x", b"q=1", {"version": "3.0", "spec_version": "2.3"})
        assert seen == [asked, "http.disconnect"]

    play(body)


def test_an_application_without_an_answer_is_a_500(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        for path in ("/nothing", "/raises"):
            assert (await here.http.request("GET", here.url + path)).status == 500

    play(body)


@pytest.mark.parametrize("path", ["/half", "/half-raises"])
def test_one_that_stops_in_mid_answer_breaks_off(play: Callable[[Body], None], path: str) -> None:
    async def body(here: Here) -> None:
        assert await here.fails(path) is PeerLost
        async with here.http.stream("GET", here.url + path) as reply:
            chunks = reply.chunks()
            assert (reply.status, await anext(chunks)) == (200, b"half")
            with pytest.raises(PeerLost):
                await anext(chunks)

    play(body)


def test_more_or_less_than_content_length_is_refused(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        assert [await here.fails(path) for path in ("/long", "/short")] == [PeerLost, PeerLost]
        assert await here.saw(2) == ["refused", "refused"]

    play(body)


def test_an_answer_without_content_has_none(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        reply = await here.http.request("GET", f"{here.url}/no-content")
        assert (reply.status, reply.body) == (204, b"")
        reply = await here.http.request("HEAD", f"{here.url}/length")
        assert (reply.status, reply.body, reply.header("content-length")) == (200, b"", "5")

    play(body)


def test_a_caller_that_leaves_is_a_disconnect_and_what_is_sent_is_dropped(
    play: Callable[[Body], None],
) -> None:
    async def body(here: Here) -> None:
        async with here.http.stream("POST", f"{here.url}/left") as reply:
            assert await anext(reply.chunks()) == b"one"
        assert await here.saw(2) == ["http.disconnect", "sent"]

    play(body)


def test_a_caller_that_is_cancelled_before_the_answer_is_a_disconnect(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(here.fails, "/waits")
            await here.peer.begun.wait()
            group.cancel_scope.cancel()
        assert await here.saw(1) == ["http.disconnect"]

    play(body)


def test_a_time_out_limits_a_whole_answer_and_only_the_head_of_a_stream(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        assert await here.fails("/slow", timeout_s=SOON_S) is PeerTimeout
        assert await here.fails("/waits", timeout_s=SOON_S) is PeerTimeout
        async with here.http.stream("GET", f"{here.url}/slow", timeout_s=AT_ONCE_S) as reply:
            assert [chunk async for chunk in reply.chunks()] == [b"one", b"two"]
        assert await here.saw(1) == ["http.disconnect"]

    play(body)


def test_where_nobody_listens_nothing_is_processed(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        with pytest.raises(PeerUnreachable):
            await here.http.request("GET", here.nowhere)

    play(body)


def test_a_server_that_is_stopped_lets_what_runs_end_and_takes_no_more(play: Callable[[Body], None]) -> None:
    async def body(here: Here) -> None:
        async with here.http.stream("GET", f"{here.url}/drained") as reply:
            chunks = reply.chunks()
            assert await anext(chunks) == b"one"
            here.stop()
            refused = await _refused(here)
            here.peer.release.set()
            assert [chunk async for chunk in chunks] == [b"two"]
        assert refused

    play(body)


async def _refused(here: Here) -> bool:
    """Soon, not at once: a listener needs a moment to close."""
    with anyio.move_on_after(LIMIT_S):
        while True:
            try:
                await here.http.request("GET", f"{here.url}/nothing")
            except (PeerUnreachable, PeerLost):
                return True
            await anyio.sleep(0.01)
    return False
