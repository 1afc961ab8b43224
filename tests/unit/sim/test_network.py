"""HTTP between nodes: what uvicorn and a real network do at the edges, and every fate.

Long because every fate is told from both ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import pytest

from gym_ckpt.errors import ConfigError, PeerLost, PeerTimeout, PeerUnreachable
from gym_ckpt.ports import ASGIApp, Ports
from sim.exchange import SILENCE_S, WINDOW_BYTES
from sim.fates import CalmFates, ExchangeFate
from sim.network import NodeClient
from sim.world import RunResult, World, run_world

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
URL = "http://server:80/path%20x?q=1"


class Always(CalmFates):
    def __init__(self, fate: ExchangeFate) -> None:
        self.fate = fate

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        return self.fate


def play(
    app: ASGIApp,
    use: Callable[[World, NodeClient], Awaitable[None]],
    fate: ExchangeFate | None = None,
    *,
    errors: tuple[str, ...] = (),
) -> RunResult:
    """Serve `app` and let `use` call it."""

    async def main(ports: Ports) -> None:
        await ports.server.serve(app, "http://server:80", ready=lambda: None)

    async def script(world: World) -> None:
        world.add_node("server", main, start=True)
        await world.sleep(1)
        await use(world, world.client())
        await world.sleep(2 * SILENCE_S)
        assert not world.nodes["server"].epoch.exchanges, "nothing is left behind"  # type: ignore[union-attr]

    result = run_world(0, script, fates=None if fate is None else Always(fate), horizon_s=2000, keep_all_rows=True)
    assert tuple(failure.detail for failure in result.errors) == errors
    return result


async def body_of(receive: Receive) -> tuple[bytes, int]:
    chunks, more = [], True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        chunks.append(message["body"])
        more = message["more_body"]
    return b"".join(chunks), len(chunks)


async def start(send: Send, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def chunk(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    data, count = await body_of(receive)
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.3"}
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/path x", b"/path%20x", b"q=1")
    await start(send, 201, (b"X-Chunks", str(count).encode()), (b"content-length", str(len(data)).encode()))
    await chunk(send, data, more=False)
    assert (await receive()) == {"type": "http.disconnect"}


@pytest.mark.parametrize(("size", "chunks"), [(0, 1), (5, 1), (200_000, 4)])
def test_a_request_and_its_reply_are_whole(size: int, chunks: int) -> None:
    async def use(world: World, http: NodeClient) -> None:
        reply = await http.request("POST", URL, headers=[("x-a", "b")], body=b"x" * size, timeout_s=5)
        assert (reply.status, reply.header("x-chunks"), reply.body) == (201, str(chunks), b"x" * size)

    play(echo, use)


def test_a_stream_arrives_chunk_by_chunk_with_latency() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await start(send)
        for at in range(3):
            await anyio.sleep(1)
            await chunk(send, b"%d" % at)
        await chunk(send, b"", more=False)

    async def use(world: World, http: NodeClient) -> None:
        async with http.stream("GET", URL, timeout_s=0.5) as reply:
            assert (reply.status, round(world.now, 3)) == (200, 1.002)
            seen = [(round(world.now, 3), data) async for data in reply.chunks()]
        assert seen == [(2.002, b"0"), (3.002, b"1"), (4.002, b"2")]

    play(app, use)


def test_a_slow_reader_holds_the_sender_back() -> None:
    sent: list[int] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await start(send)
        for at in range(40):
            await chunk(send, b"x" * 8192)
            sent.append(at)
        await chunk(send, b"", more=False)

    async def use(world: World, http: NodeClient) -> None:
        async with http.stream("GET", URL) as reply:
            await world.sleep(5)
            assert len(sent) == WINDOW_BYTES // 8192 + 1
            chunks = reply.chunks()
            await anext(chunks)
            await world.sleep(5)
            assert len(sent) == WINDOW_BYTES // 8192 + 2
            assert sum([len(data) async for data in chunks]) == 39 * 8192

    play(app, use)


def test_a_client_that_leaves_is_a_disconnect_and_sends_are_dropped() -> None:
    seen: list[str] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await start(send)
        await chunk(send, b"first")
        seen.append((await receive())["type"])
        await chunk(send, b"dropped")
        seen.append("sent")
        await chunk(send, b"", more=False)

    async def use(world: World, http: NodeClient) -> None:
        async with http.stream("POST", URL) as reply:
            assert await anext(reply.chunks()) == b"first"
            assert seen == []
        await world.sleep(1)
        assert seen == ["http.disconnect", "sent"]

    play(app, use)


def test_a_sender_held_back_is_freed_when_the_client_leaves() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await start(send)
        for _ in range(100):
            await chunk(send, b"x" * 8192)
        ended.append(True)

    ended: list[bool] = []

    async def use(world: World, http: NodeClient) -> None:
        async with http.stream("GET", URL):
            await world.sleep(1)
            assert not ended
        await world.sleep(1)
        assert ended

    play(app, use)


def test_a_client_cancelled_before_the_reply_is_a_disconnect() -> None:
    seen: list[tuple[float, str]] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await body_of(receive)
        kind = (await receive())["type"]
        seen.append((round(anyio.current_time(), 3), kind))

    async def use(world: World, http: NodeClient) -> None:
        with anyio.move_on_after(3):
            await http.request("GET", URL)
        await world.sleep(1)
        assert seen == [(4.001, "http.disconnect")]

    play(app, use)


def test_a_time_out_limits_the_whole_reply_but_only_the_head_of_a_stream() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await start(send)
        await anyio.sleep(3)
        await chunk(send, b"x", more=False)

    async def use(world: World, http: NodeClient) -> None:
        with pytest.raises(PeerTimeout):
            await http.request("GET", URL, timeout_s=2)
        assert world.now == 3
        async with http.stream("GET", URL, timeout_s=2) as reply:
            assert [data async for data in reply.chunks()] == [b"x"]

    play(app, use)


def test_nobody_listens() -> None:
    async def use(world: World, http: NodeClient) -> None:
        with pytest.raises(PeerUnreachable):
            await http.request("GET", "http://elsewhere:80/")
        world.nodes["server"].crash()
        with pytest.raises(PeerUnreachable):
            await http.request("GET", URL)
        with pytest.raises(ConfigError):
            await http.request("GET", "https://server/")

    play(echo, use)


def test_one_address_has_one_listener() -> None:
    async def main(ports: Ports) -> None:
        await ports.server.serve(echo, "http://server:80", ready=lambda: None)

    async def script(world: World) -> None:
        first = world.add_node("first", main, start=True)
        await world.sleep(1)
        second = world.add_node("second", main, start=True)
        await world.sleep(1)
        assert isinstance(second.error, ConfigError)
        first.crash()
        second.start()
        await world.sleep(1)
        assert second.alive

    assert [failure.kind for failure in run_world(0, script).errors] == ["died"]


def test_an_application_that_raises_is_a_500_and_a_failure() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        raise ValueError("boom")

    async def use(world: World, http: NodeClient) -> None:
        assert (await http.request("GET", URL)).status == 500

    result = play(app, use, errors=("ValueError: boom",))
    assert any(row.event == "handler.error" for row in result.rows_tail)


def test_an_application_that_says_nothing_is_a_500_and_one_that_stops_breaks_off() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await start(send)
            await chunk(send, b"half")

    async def use(world: World, http: NodeClient) -> None:
        assert (await http.request("GET", URL)).status == 500
        async with http.stream("POST", URL) as reply:
            chunks = reply.chunks()
            assert await anext(chunks) == b"half"
            with pytest.raises(PeerLost):
                await anext(chunks)

    play(
        app,
        use,
        errors=(
            "ASGI callable returned without starting response",
            "ASGI callable returned without completing response",
        ),
    )


def test_more_or_less_than_content_length_is_refused() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await start(send, 200, (b"content-length", b"3"))
        await chunk(send, b"x" * (2 if scope["method"] == "GET" else 4), more=False)

    async def use(world: World, http: NodeClient) -> None:
        for method in ("GET", "POST"):
            with pytest.raises(PeerLost):
                await http.request(method, URL)

    play(
        app,
        use,
        errors=(
            "RuntimeError: Response content shorter than Content-Length",
            "RuntimeError: Response content longer than Content-Length",
        ),
    )


def counting(calls: list[float]) -> ASGIApp:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        calls.append(anyio.current_time())
        await start(send)
        for _ in range(3):
            await chunk(send, b"x")
        await chunk(send, b"", more=False)

    return app


@pytest.mark.parametrize(
    ("fate", "error", "served", "after_s"),
    [
        (ExchangeFate(refuse=True), PeerUnreachable, 0, 0.002),
        (ExchangeFate(lose="before"), PeerLost, 0, 0.002),
        (ExchangeFate(lose="after"), PeerLost, 1, 0.002),
        (ExchangeFate(lose="mid_reply", mid_reply_chunks=2), PeerLost, 1, 0.002),
        (ExchangeFate(lose="mid_reply", mid_reply_chunks=99), PeerLost, 1, 0.002),
        (ExchangeFate(hang=True), PeerLost, 0, SILENCE_S),
        (ExchangeFate(hang=True, lose="after"), PeerLost, 1, SILENCE_S + 0.001),
        (ExchangeFate(hang=True, lose="mid_reply"), PeerLost, 1, SILENCE_S + 0.001),
    ],
)
def test_losses(fate: ExchangeFate, error: type[Exception], served: int, after_s: float) -> None:
    calls: list[float] = []

    async def use(world: World, http: NodeClient) -> None:
        with pytest.raises(error) as caught:
            await http.request("GET", URL)
        assert type(caught.value) is error
        assert world.now - 1 == pytest.approx(after_s)
        await world.sleep(1)
        assert len(calls) == served
        with pytest.raises(error if error is PeerUnreachable else PeerLost):
            await http.request("GET", URL, timeout_s=5)

    play(counting(calls), use, fate)


def test_a_stream_lost_half_way_delivers_what_came_before() -> None:
    async def use(world: World, http: NodeClient) -> None:
        async with http.stream("GET", URL) as reply:
            chunks = reply.chunks()
            assert [await anext(chunks), await anext(chunks)] == [b"x", b"x"]
            with pytest.raises(PeerLost):
                await anext(chunks)

    play(counting([]), use, ExchangeFate(lose="mid_reply", mid_reply_chunks=2))


def test_a_duplicate_takes_effect_twice_and_answers_once() -> None:
    calls: list[float] = []

    async def use(world: World, http: NodeClient) -> None:
        assert (await http.request("GET", URL)).body == b"xxx"
        await world.sleep(10)
        assert calls == [pytest.approx(1.001), pytest.approx(4.001)]

    play(counting(calls), use, ExchangeFate(duplicate=True, duplicate_delay_s=3))


def test_a_crashed_client_is_a_disconnect_and_a_silent_crash_is_noticed_late() -> None:
    seen: list[float] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await receive()
        seen.append(round(anyio.current_time(), 3))

    async def asking(ports: Ports) -> None:
        await ports.http.request("GET", URL)

    async def use(world: World, http: NodeClient) -> None:
        node = world.add_node("asking", asking, start=True)
        await world.sleep(1)
        node.crash()
        await world.sleep(1)
        node.start()
        await world.sleep(1)
        node.crash(silent=True)
        await world.sleep(2 * SILENCE_S)
        assert seen == [2.001, 4 + SILENCE_S]

    play(app, use)


def test_a_request_on_the_way_to_a_restarted_server_is_lost() -> None:
    async def use(world: World, http: NodeClient) -> None:
        async def bounce() -> None:
            await anyio.sleep(0.5)
            world.nodes["server"].crash()
            world.nodes["server"].start()

        async with anyio.create_task_group() as group:
            group.start_soon(bounce)
            with pytest.raises(PeerLost):
                await http.request("GET", URL)

    play(echo, use, ExchangeFate(request_latency_s=1))


def test_serving_drains_before_it_ends() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await start(send)
        await anyio.sleep(3 if scope["method"] == "GET" else 300)
        await chunk(send, b"done", more=False)

    async def main(ports: Ports) -> None:
        with anyio.move_on_after(2):
            await ports.server.serve(app, "http://server:80", ready=lambda: ports.tracer.emit("ready"))

    async def script(world: World) -> None:
        node = world.add_node("server", main, start=True)
        await world.sleep(1)
        lost: list[float] = []

        async def long() -> None:
            with pytest.raises(PeerLost):
                await world.client().request("POST", URL)
            lost.append(world.now)

        async with anyio.create_task_group() as group:
            group.start_soon(long)
            assert (await world.client().request("GET", URL)).body == b"done"
            assert node.alive
            with pytest.raises(PeerUnreachable):
                await world.client().request("GET", URL)
        assert lost == [pytest.approx(12.001)]
        assert node.exited

    run_world(0, script, horizon_s=1000).check()
