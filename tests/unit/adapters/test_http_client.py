"""`HttpxClient` on real sockets: against our server, and against peers that misbehave byte by byte."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.abc
import pytest

from gym_ckpt.adapters.http_client import HttpxClient, ScalingTransport
from gym_ckpt.errors import PeerLost, PeerTimeout, PeerUnreachable
from sim.headers import check_headers
from tests.unit.adapters.loopback import AT_ONCE_S, STARTED_S, Application, burst, free_port, serving

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on nothing else

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def peer(handle: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A TCP server that does with each connection what `handle` says."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def guarded(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                await handle(stream)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, guarded)
        yield f"http://127.0.0.1:{port}"
        group.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------- with our own server


@on_asyncio
async def test_request_carries_method_headers_and_body_both_ways() -> None:
    app = Application()
    async with serving(app) as (url, _), HttpxClient() as client:
        reply = await client.request("PUT", f"{url}/echo", headers=[("x-a", "1"), ("x-a", "2")], body=b"\x00hello")
    assert (reply.status, reply.body, reply.header("x-method")) == (201, b"\x00hello", "PUT")
    assert [value for name, value in reply.headers if name == "x-a"] == ["1", "2"]
    sent = {name for name, _ in reply.headers}
    assert sent == {"x-method", "x-a", "host", "content-length"}, "no header that nobody asked for"


@on_asyncio
async def test_connections_are_reused() -> None:
    app = Application()
    transport = ScalingTransport()
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        for _ in range(5):
            await client.request("GET", f"{url}/x")
        assert transport.idle_count == 1
    assert (transport.opened, len(app.clients), transport.idle_count) == (1, 1, 0)


@on_asyncio
async def test_idle_connections_are_bounded() -> None:
    app = Application()
    transport = ScalingTransport(idle_max=3)
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        await burst(client, app, url, 8)
        assert (transport.opened, transport.idle_count) == (8, 3)


@on_asyncio
async def test_idle_connections_expire_even_when_their_peer_is_never_called_again() -> None:
    app, other = Application(), Application()
    transport = ScalingTransport(idle_s=0.01)
    async with serving(app) as (url, _), serving(other) as (url_of_other, _), HttpxClient(transport) as client:
        await client.request("GET", f"{url}/x")
        await anyio.sleep(0.03)
        await client.request("GET", f"{url_of_other}/x")
        assert transport.idle_count == 1


@on_asyncio
async def test_a_thousand_calls_in_flight_take_work_in_proportion_to_their_number() -> None:
    """Counted, not timed: looks at an idle connection per call, which in a quadratic pool grow with the calls."""
    app = Application()
    transport = ScalingTransport()
    looks = 0
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        replies = []

        async def call(path: str) -> None:
            replies.append(await client.request("POST", f"{url}{path}", body=b"x"))

        async def burst(path: str) -> None:
            async with anyio.create_task_group() as group:
                for _ in range(1000):
                    group.start_soon(call, path)
                while path == "/hold" and app.in_flight < 1000:
                    await anyio.sleep(0.01)
                app.release.set()

        await burst("/hold")
        assert (app.most_in_flight, transport.opened, transport.idle_count) == (1000, 1000, 1000)
        connection_type = type(next(iter(transport._idle.values()))[0])
        original = connection_type.has_expired

        def counted(connection: object) -> bool:
            nonlocal looks
            looks += 1
            return original(connection)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection_type, "has_expired", counted)
            await burst("/again")
    assert len(replies) == 2000
    assert {reply.status for reply in replies} == {200}
    assert transport.opened == 1000, "the second burst found the connections of the first"
    assert looks <= 3 * 1000, "one look per call, and now and then a sweep"


@on_asyncio
async def test_stream_delivers_chunks_as_they_come_and_then_gives_the_connection_back() -> None:
    app = Application()
    transport = ScalingTransport()
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        async with client.stream("POST", f"{url}/drip") as reply:
            chunks = reply.chunks()
            assert (reply.status, await anext(chunks)) == (200, b"one")
            app.release.set()
            assert [chunk async for chunk in chunks] == [b"two"]
        assert transport.idle_count == 1


@on_asyncio
async def test_leaving_a_stream_early_is_a_disconnect_for_the_server() -> None:
    app = Application()
    transport = ScalingTransport()
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        async with client.stream("POST", f"{url}/watch") as reply:
            async for chunk in reply.chunks():
                assert chunk == b"first"
                break
        with anyio.fail_after(STARTED_S):
            await app.disconnected.wait()
        assert transport.idle_count == 0


@on_asyncio
async def test_cancelling_a_call_is_a_disconnect_for_the_server() -> None:
    app = Application()
    transport = ScalingTransport()
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.request, "POST", f"{url}/watch")
            with anyio.fail_after(STARTED_S):
                await app.seen.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(STARTED_S):
            await app.disconnected.wait()
        assert transport.idle_count == 0


@on_asyncio
async def test_cancelling_many_calls_leaks_no_connection() -> None:
    app = Application()
    transport = ScalingTransport()
    async with serving(app) as (url, _), HttpxClient(transport) as client:
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(client.request, "POST", f"{url}/hold")
            while app.in_flight < 50:
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        assert transport.idle_count == 0
        app.release.set()
        assert (await client.request("GET", f"{url}/x")).body == b"/x"


@on_asyncio
async def test_a_reply_that_takes_too_long_may_have_been_processed() -> None:
    app = Application()
    async with serving(app) as (url, _), HttpxClient() as client:
        with pytest.raises(PeerTimeout, match=r"POST .*/hold"):
            await client.request("POST", f"{url}/hold", timeout_s=0.1)
        with pytest.raises(PeerTimeout):
            await client.request("POST", f"{url}/drip", timeout_s=0.1)
        with pytest.raises(PeerTimeout):
            async with client.stream("POST", f"{url}/hold", timeout_s=0.1):
                raise AssertionError("there are no headers yet")
        async with client.stream("POST", f"{url}/drip", timeout_s=AT_ONCE_S) as reply:
            chunks = reply.chunks()
            await anext(chunks)
            await anyio.sleep(1.1 * AT_ONCE_S)
            app.release.set()
            assert await anext(chunks) == b"two", "the time-out of a stream ends with the headers"


@on_asyncio
async def test_unix_sockets(tmp_path: Path) -> None:
    app = Application()
    url = f"http+unix://{quote(str(tmp_path / 's'), safe='')}"
    async with serving(app, url), HttpxClient() as client:
        assert (await client.request("GET", f"{url}/over/unix?q=1")).body == b"/over/unix"
        with pytest.raises(PeerUnreachable, match="absent"):
            await client.request("GET", f"http+unix://{quote(str(tmp_path / 'absent'), safe='')}/x")
    assert app.paths == ["/over/unix"]


# ----------------------------------------------------------------------------------- peers that misbehave


async def test_nobody_listening_is_unreachable() -> None:
    async with HttpxClient() as client:
        with pytest.raises(PeerUnreachable, match=r"GET http://127\.0\.0\.1"):
            await client.request("GET", f"http://127.0.0.1:{free_port()}/x")
        with pytest.raises(PeerUnreachable):
            async with client.stream("GET", f"http://127.0.0.1:{free_port()}/x"):
                raise AssertionError("nobody answered")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "http://[::1/x", "/x", "http:///x"])
async def test_a_url_that_leads_nowhere_is_unreachable(url: str) -> None:
    async with HttpxClient() as client:
        with pytest.raises(PeerUnreachable):
            await client.request("GET", url)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"this is not HTTP at all\r\n\r\n",
    ],
)
async def test_a_peer_that_goes_away_in_mid_reply_is_lost(said: bytes) -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        if said:
            await stream.send(said)

    async with peer(handle) as url, HttpxClient() as client:
        with pytest.raises(PeerLost, match=url):
            await client.request("POST", f"{url}/x", body=b"work")


async def test_a_peer_that_goes_away_in_mid_stream_is_lost_after_what_it_said() -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    got = []
    async with peer(handle) as url, HttpxClient() as client:
        with pytest.raises(PeerLost):
            async with client.stream("POST", f"{url}/x") as reply:
                async for chunk in reply.chunks():
                    got.append(chunk)
    assert got == [b"hello"]


async def test_a_connection_reset_in_mid_reply_is_lost() -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing sends a reset

    async with peer(handle) as url, HttpxClient() as client:
        with pytest.raises(PeerLost, match=url):
            await client.request("POST", f"{url}/x", body=b"work")


async def test_a_kept_connection_that_the_peer_closed_is_not_used_again() -> None:
    served = []
    closed = anyio.Event()

    async def once(stream: anyio.abc.SocketStream) -> None:
        served.append(await stream.receive())
        await stream.send(OK)
        await stream.aclose()
        closed.set()

    transport = ScalingTransport()
    async with peer(once) as url, HttpxClient(transport) as client:
        for number in range(1, 4):
            closed = anyio.Event()
            assert (await client.request("POST", f"{url}/x")).body == b"ok"
            assert len(served) == number
            with anyio.fail_after(STARTED_S):
                await closed.wait()
    assert (transport.opened, len(served)) == (3, 3)


@pytest.mark.parametrize("beyond", [OK, b"x"])
async def test_what_comes_beyond_an_answer_is_not_the_next_calls_answer(beyond: bytes) -> None:
    async def answers_too_much(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(OK.replace(b"ok", b"no") + beyond)
        await stream.receive()
        await stream.send(OK)

    transport = ScalingTransport()
    async with peer(answers_too_much) as url, HttpxClient(transport) as client:
        for opened in (1, 2):
            assert (await client.request("POST", f"{url}/x")).body == b"no", "each call has a connection of its own"
            assert (transport.opened, transport.idle_count) == (opened, 0)


@on_asyncio
async def test_header_bytes_beyond_ascii_pass_as_they_are() -> None:
    app = Application()
    async with serving(app) as (url, _), HttpxClient() as client:
        reply = await client.request("POST", f"{url}/echo", headers=[("x-a", "\xff\xfe")])
    assert reply.header("x-a") == "\xff\xfe"


async def test_a_call_is_never_repeated_by_the_client() -> None:
    """A kept connection that breaks only once the request is on it: whether that was processed nobody knows."""
    requests = []

    async def second_time_silent(stream: anyio.abc.SocketStream) -> None:
        requests.append(await stream.receive())
        await stream.send(OK)
        requests.append(await stream.receive())

    async with peer(second_time_silent) as url, HttpxClient() as client:
        await client.request("POST", f"{url}/x")
        with pytest.raises(PeerLost):
            await client.request("POST", f"{url}/x")
    assert len(requests) == 2


async def test_a_connection_that_the_peer_wants_closed_is_closed() -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()

    transport = ScalingTransport()
    async with peer(handle) as url, HttpxClient(transport) as client:
        assert (await client.request("GET", f"{url}/x")).body == b"ok"
        assert transport.idle_count == 0


async def test_a_connection_that_is_never_accepted_runs_into_the_time_limit_as_unreachable() -> None:
    """A full backlog swallows connection attempts; nothing was sent, so nothing was processed."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            await anyio.sleep(0.05)
            async with HttpxClient() as client:
                with pytest.raises(PeerUnreachable):
                    await client.request("GET", f"http://127.0.0.1:{address[1]}/x", timeout_s=0.2)
        finally:
            for filler in fillers:
                filler.close()


async def test_cookies_and_redirects_are_the_callers_business() -> None:
    heads = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        for _ in range(2):
            heads.append(await stream.receive())
            await stream.send(
                b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
            )

    async with peer(handle) as url, HttpxClient() as client:
        assert [(await client.request("GET", f"{url}/x")).status for _ in range(2)] == [302, 302]
    assert len(heads) == 2
    assert all(b"cookie" not in head.lower() for head in heads)


@pytest.mark.parametrize("value", ["two\r\nlines", "blank ", " blank", "tab\t", "a\x00b", "a\x0bb"])
@on_asyncio
async def test_a_header_that_cannot_be_sent_fails_its_call_and_nothing_else(value: str) -> None:
    with pytest.raises(PeerLost, match="Illegal header value"):  # as the simulated client does
        check_headers([("x-a", value)])
    async with serving(Application()) as (url, _), HttpxClient() as client:
        with pytest.raises(PeerLost, match="Illegal header value"):
            await client.request("GET", f"{url}/echo", headers=[("x-a", value)])
