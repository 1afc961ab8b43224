"""`UvicornServer`: listening, refusing to, and draining."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.uvicorn_server import UvicornServer
from gym_ckpt.errors import ConfigError, PeerLost, PeerUnreachable
from gym_ckpt.ports import Receive, Scope, Send
from tests.unit.adapters.loopback import STARTED_S, Application, free_port, serving

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def refuses(url: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        await UvicornServer().serve(Application(), url, ready=lambda: pytest.fail("it said that it listens"))
    return str(refusal.value)


async def test_the_scope_is_what_the_simulator_gives_too() -> None:
    scopes = []

    class Recording(Application):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            scopes.append(scope)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with serving(Recording()) as (url, _), HttpxClient() as client:
        reply = await client.request("GET", f"{url}/a%20b?c=d")
    (scope,) = scopes
    assert scope["asgi"]["spec_version"] == "2.3"
    assert (scope["path"], scope["query_string"]) == ("/a b", b"c=d")
    assert reply.headers == (), "no header that the application did not send"


async def test_an_address_in_use_is_a_configuration_error_that_names_the_mend() -> None:
    async with serving(Application()) as (url, _):
        text = await refuses(url)
    assert url in text
    assert "configure another port" in text


@pytest.mark.parametrize(
    "url", ["127.0.0.1:80", "http://127.0.0.1", "https://127.0.0.1:1", "http://h:x", "http://127.0.0.1:1/path"]
)
async def test_an_address_that_cannot_be_is_a_configuration_error(url: str) -> None:
    assert "write http://host:port" in await refuses(url)


async def test_an_unknown_host_is_a_configuration_error() -> None:
    assert "no-such-host.invalid" in await refuses("http://no-such-host.invalid:1")


async def test_stopped_it_accepts_no_more_and_lets_running_requests_end() -> None:
    app = Application()
    async with serving(app, server=UvicornServer(drain_s=5)) as (url, stop), HttpxClient() as client:
        bodies = []

        async def call() -> None:
            bodies.append((await client.request("POST", f"{url}/hold", body=b"held")).body)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await app.seen.wait()
            stop.cancel()
            with anyio.fail_after(STARTED_S):
                while True:
                    try:
                        await client.request("GET", f"{url}/x")
                    except (PeerUnreachable, PeerLost):
                        break
                    await anyio.sleep(0.01)
            assert not bodies
            app.release.set()
        assert bodies == [b"held"]


async def test_what_outlasts_the_drain_is_cut_off() -> None:
    app = Application()
    async with serving(app, server=UvicornServer(drain_s=0.1)) as (url, stop), HttpxClient() as client:
        async with client.stream("POST", f"{url}/stubborn") as reply:
            chunks = reply.chunks()
            assert await anext(chunks) == b"begun"
            stop.cancel()
            with anyio.fail_after(STARTED_S), pytest.raises(PeerLost):
                await anext(chunks)
    assert app.in_flight == 0, "its handler was cancelled and waited for"


async def test_what_has_not_begun_to_answer_is_cut_off_without_one() -> None:
    """A 500 would be an answer, of a handler that never made it."""
    app = Application()
    async with serving(app, server=UvicornServer(drain_s=0.1)) as (url, stop), HttpxClient() as client:

        async def call() -> None:
            with pytest.raises(PeerLost):
                await client.request("POST", f"{url}/hold", body=b"held")

        with anyio.fail_after(STARTED_S):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await app.seen.wait()
                stop.cancel()


async def test_a_server_cancelled_before_it_listens_says_nothing_and_frees_the_port() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with anyio.CancelScope() as scope:
        scope.cancel()
        await UvicornServer().serve(Application(), url, ready=lambda: pytest.fail("it was cancelled"))
    async with serving(Application(), url):
        pass


async def test_signal_handlers_are_left_alone() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    async with serving(Application()):
        assert {number: signal.getsignal(number) for number in before} == before


async def test_a_socket_file_left_by_a_dead_server_is_replaced_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    url = f"http+unix://{quote(str(path), safe='')}"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(Application(), url), HttpxClient() as client:
        assert "stop the process that listens there" in await refuses(url)
        assert (await client.request("GET", f"{url}/x")).status == 200
    assert not path.exists()
    path.write_text("precious")
    await refuses(url)
    assert path.read_text() == "precious"


async def test_a_socket_path_that_is_too_long_is_a_configuration_error() -> None:
    assert "at most 100 bytes" in await refuses(f"http+unix://{quote('/' + 'x' * 120, safe='')}")
