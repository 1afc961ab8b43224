"""What the libraries of an author's application meet in a world: httpx over the simulated network, and no way past it.

`in_world` puts it in force for a run. Every `httpx.AsyncClient` in a node, whoever made it, then talks over the links
of that node; its time is virtual, its cookies' time that of the node's host. Threads and connections of the
machine raise `StrayUse`, as a clock or chance would (`sim.guard`); what goes through `anyio.to_thread`, as Starlette's
synchronous endpoints do, runs inline.

A request goes on its way when its body is whole. Must not know what travels.
"""

from __future__ import annotations

import http.cookiejar
import socket
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final

import anyio
import httpx
import httpx._client

from gym_ckpt.errors import ConfigError, PeerLost, PeerTimeout, PeerUnreachable, TransportError
from sim.epoch import Epoch, current_epoch
from sim.exchange import Exchange
from sim.guard import StrayUse, refusing
from sim.network import NO_CONNECTION, Network, Replying
from sim.world import World

HOPS: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Headers of a connection, not of a request: the network makes its own."""
_FORBIDDEN: Final[tuple[tuple[type, tuple[str, ...], str], ...]] = (
    (httpx.HTTPTransport, ("handle_request",), "httpx.AsyncClient"),
    (socket.socket, ("bind", "connect", "connect_ex"), "httpx.AsyncClient"),
    (threading.Thread, ("start",), "a task of Serving.tasks, or anyio.to_thread, which runs inline"),
)


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """Until the context ends, libraries in this process's nodes live in `world`."""
    transport = httpx.AsyncHTTPTransport
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # httpx leaves its generators dangling where a stream is left early; trio ends them, and asyncio says nothing.
        warnings.filterwarnings("ignore", r"Async generator 'httpx\.", ResourceWarning)
        _put(stack, transport, "__init__", _nothing)
        _put(stack, transport, "__aenter__", _itself)
        _put(stack, transport, "__aexit__", _left)
        _put(stack, transport, "aclose", _closed)
        _put(stack, transport, "handle_async_request", _handler(world.network))
        _put(stack, httpx._client, "time", _Time(world))
        _put(stack, http.cookiejar, "time", _Time(world))
        for owner, names, instead in _FORBIDDEN:
            for name in names:
                what, real = f"{owner.__module__}.{owner.__name__}.{name}", getattr(owner, name)
                _put(stack, owner, name, refusing(what, real, instead, threading.get_ident()))
        yield


def _put(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the end; one that was inherited is inherited again."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


class _Time(ModuleType):
    """The module `time` of a library: durations are virtual, the wall clock is the one of the node's host."""

    def __init__(self, world: World) -> None:
        super().__init__("time")
        self._world = world

    def perf_counter(self) -> float:
        return self._world.now

    def time(self) -> float:
        epoch = current_epoch()
        return self._world.nodes[epoch.name].clock.wall() if epoch is not None else self._world.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


# ------------------------------------------------------------------------------------- httpx.AsyncHTTPTransport


def _nothing(transport: httpx.AsyncHTTPTransport, *_: Any, **__: Any) -> None:
    """No pool, and no certificates to load."""


async def _itself(transport: httpx.AsyncHTTPTransport) -> httpx.AsyncHTTPTransport:
    return transport


async def _left(transport: httpx.AsyncHTTPTransport, *_: Any) -> None:
    return


async def _closed(transport: httpx.AsyncHTTPTransport) -> None:
    return


def _handler(network: Network) -> Callable[[httpx.AsyncHTTPTransport, httpx.Request], Any]:
    async def handle(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        epoch = current_epoch()
        if epoch is None:
            raise StrayUse("httpx was used in the harness; use World.client")
        return await _exchanged(network, epoch, request)

    return handle


async def _exchanged(network: Network, epoch: Epoch, request: httpx.Request) -> httpx.Response:
    assert isinstance(request.stream, httpx.AsyncByteStream), "an asynchronous client sends asynchronous streams"
    body = b"".join([part async for part in request.stream])
    raw = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.headers.raw]
    headers = [(name, value) for name, value in raw if name not in HOPS]
    limits = request.extensions.get("timeout", {})
    connect_s, read_s = limits.get("connect"), limits.get("read")
    call = (epoch, request.method, str(request.url), headers, body, read_s)
    try:
        exchange = await network.open(*call, whole=False, connect_s=connect_s)
    except ConfigError as error:
        raise httpx.UnsupportedProtocol(str(error), request=request) from error
    except TransportError as error:
        raise _as_httpx(error) from error
    return httpx.Response(
        exchange.status,
        headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.headers],
        stream=_Body(epoch, exchange, read_s),
        extensions={"http_version": b"HTTP/1.1"},
    )


class _Body(httpx.AsyncByteStream):
    """The reply as it arrives; closing it early is a disconnect."""

    def __init__(self, epoch: Epoch, exchange: Exchange, read_s: float | None) -> None:
        self._epoch = epoch
        self._exchange = exchange
        self._chunks = Replying(epoch, exchange)
        self._read_s = read_s

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with anyio.fail_after(self._read_s):
                return await anext(self._chunks)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"nothing more within {self._read_s} s") from error
        except TransportError as error:
            raise _as_httpx(error) from error

    async def aclose(self) -> None:
        if self._epoch.alive:
            self._exchange.leave()


def _as_httpx(error: TransportError) -> httpx.TransportError:
    """What httpx would have said of it on a socket."""
    said = str(error)
    match error:
        case PeerUnreachable() if NO_CONNECTION in said:
            return httpx.ConnectTimeout(said)
        case PeerUnreachable():
            return httpx.ConnectError(said)
        case PeerTimeout():
            return httpx.ReadTimeout(said)
        case PeerLost() if "closed by the server" in said:
            return httpx.RemoteProtocolError(said)
        case PeerLost() if "while the request was sent" in said:
            return httpx.WriteError(said)
    return httpx.ReadError(said)
