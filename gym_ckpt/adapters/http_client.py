"""`HttpClient` over httpx, with a transport that scales to thousands of calls in flight.

The stock pool of httpx compares every waiting request with every connection at every change: quadratic, and at a
thousand calls in flight no use. The transport here opens a connection whenever no idle one is at hand and keeps idle
ones on a stack per origin, so its work per call does not depend on how many others there are. How many calls are in
flight at once is the caller's bound, not the transport's.

A call is never repeated here. A kept connection that the peer has closed meanwhile is noticed before anything is
written to it; once the first byte may have been sent, a failure is `PeerLost` and repeating it is for those who know
whether that is safe.

The one module that knows httpx and httpcore. Works on both of anyio's back ends.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, NamedTuple, cast
from urllib.parse import unquote

import anyio
import httpcore
import httpx

from gym_ckpt.adapters.tcp import PROBED
from gym_ckpt.errors import PeerLost, PeerTimeout, PeerUnreachable
from gym_ckpt.limits import CLIENT_IDLE_CONNECTIONS, CLIENT_IDLE_S, PEER_CONNECT_TIMEOUT_S
from gym_ckpt.ports import Headers, Reply, ReplyStream

UNIX_SCHEME: Final = "http+unix://"
"""`http+unix://<percent-encoded socket path>/target` reaches a Unix socket."""
_UNIX: Final = "gym_ckpt.unix_socket"
"""Request extension: the path of the Unix socket to use in place of the URL's host."""
_SENT: Final = "gym_ckpt.sent"
"""Request extension, set by the transport: from here on the peer may see the request."""
_BODY: Final = "gym_ckpt.body"
"""Response extension: the body without httpx's generators around it, which an early end would leave dangling."""

_FOREIGN: Final = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.NetworkError, httpx.ReadError),
)


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    try:
        yield
    except tuple(theirs for theirs, _ in _FOREIGN) as error:
        ours = next(ours for theirs, ours in _FOREIGN if isinstance(error, theirs))
        raise ours(str(error) or type(error).__name__) from error


class _Address(NamedTuple):
    """What a connection leads to."""

    scheme: bytes
    host: bytes
    port: int
    unix_socket: str | None


class ScalingTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 connections, idle ones kept per address. Obeys `request.extensions["timeout"]`.

    At most CLIENT_IDLE_CONNECTIONS are kept, each for CLIENT_IDLE_S; where there would be more than `open_max` with
    those in use, idle ones make room. TLS is set up at the first https address.
    """

    def __init__(
        self,
        *,
        idle_s: float = CLIENT_IDLE_S,
        idle_max: int = CLIENT_IDLE_CONNECTIONS,
        open_max: float = math.inf,
    ) -> None:
        self._idle: dict[_Address, deque[httpcore.AsyncHTTP11Connection]] = {}
        """Newest last. An address with nothing idle has no entry."""
        self._idle_count = 0
        self._idle_s = idle_s
        self._idle_max = idle_max
        self._busy_count = 0
        self._open_max = open_max
        self._next_sweep = 0.0
        self._closed = False
        self._tls: ssl.SSLContext | None = None
        self.opened = 0
        """Connections opened so far."""

    @property
    def idle_count(self) -> int:
        """Connections kept for reuse at present."""
        return self._idle_count

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raw = request.url
        url = httpcore.URL(scheme=raw.raw_scheme, host=raw.raw_host, port=raw.port, target=raw.raw_path)
        core_request = httpcore.Request(
            method=request.method,
            url=url,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        origin = url.origin
        address = _Address(origin.scheme, origin.host, origin.port, request.extensions.get(_UNIX))
        self._busy_count += 1
        try:
            with _as_httpx_errors():
                connection = await self._take(address) or await self._open(address, request)
                request.extensions[_SENT] = True
                response = await connection.handle_async_request(core_request)
        except BaseException:
            self._busy_count -= 1
            raise
        body = _Body(self, address, connection, response)
        return httpx.Response(
            response.status, headers=response.headers, stream=body, extensions={**response.extensions, _BODY: body}
        )

    async def aclose(self) -> None:
        self._closed = True
        idle = [connection for stack in self._idle.values() for connection in stack]
        self._idle.clear()
        self._idle_count = 0
        await _close(idle)

    async def give_back(self, address: _Address, connection: httpcore.AsyncHTTP11Connection) -> None:
        """Keep a connection whose exchange ended cleanly; closes it when there is no room for it.

        Also when more has arrived than that answer: it would be taken for the answer of the next call.
        """
        self._busy_count -= 1
        if not connection.is_idle():
            return
        await self._sweep()
        if self._closed or self._idle_count >= self._idle_max or self._full or _left_over(connection):
            await _close([connection])
            return
        self._idle.setdefault(address, deque()).append(connection)
        self._idle_count += 1

    @property
    def _full(self) -> bool:
        """Whether one more would be too many."""
        return self._busy_count + self._idle_count >= self._open_max

    async def _make_room(self) -> None:
        """For a connection that is counted as in use: the oldest idle ones of some address go."""
        surplus = []
        while self._idle and self._busy_count + self._idle_count > self._open_max:
            address, stack = next(iter(self._idle.items()))
            surplus.append(stack.popleft())
            self._forget(address, stack, 1)
        await _close(surplus)

    async def _take(self, address: _Address) -> httpcore.AsyncHTTP11Connection | None:
        """The most recently used idle connection that is still good."""
        await self._sweep()
        while stack := self._idle.get(address):
            connection = stack.pop()
            self._forget(address, stack, 1)
            if not connection.has_expired():
                return connection
            await _close([connection])
        return None

    async def _sweep(self) -> None:
        """Now and then close what has expired anywhere: an address that nobody calls again would keep its own."""
        now = anyio.current_time()
        if now < self._next_sweep:
            return
        self._next_sweep = now + self._idle_s
        expired = []
        for address, stack in list(self._idle.items()):
            gone = [connection for connection in stack if connection.has_expired()]
            for connection in gone:
                stack.remove(connection)
            self._forget(address, stack, len(gone))
            expired += gone
        await _close(expired)

    def _forget(self, address: _Address, stack: deque[httpcore.AsyncHTTP11Connection], count: int) -> None:
        self._idle_count -= count
        if not stack:
            self._idle.pop(address, None)

    async def _open(self, address: _Address, request: httpx.Request) -> httpcore.AsyncHTTP11Connection:
        await self._make_room()
        timeout = request.extensions.get("timeout", {}).get("connect")
        host = address.host.decode("ascii")
        backend = httpcore.AnyIOBackend()
        if address.unix_socket is not None:
            stream = await backend.connect_unix_socket(address.unix_socket, timeout=timeout)
        else:
            stream = await backend.connect_tcp(host, address.port, timeout=timeout, socket_options=PROBED)
        if address.scheme == b"https":
            if self._tls is None:
                self._tls = httpx.create_ssl_context(trust_env=False)
            stream = await stream.start_tls(self._tls, host, timeout)
        self.opened += 1
        origin = httpcore.Origin(address.scheme, address.host, address.port)
        return httpcore.AsyncHTTP11Connection(origin, stream, keepalive_expiry=self._idle_s)


class _Body(httpx.AsyncByteStream, AsyncIterator[bytes]):
    """A response's body; one pass. Closing it early closes the connection, closing it at its end gives that back."""

    def __init__(
        self,
        transport: ScalingTransport,
        address: _Address,
        connection: httpcore.AsyncHTTP11Connection,
        response: httpcore.Response,
    ) -> None:
        self._transport = transport
        self._address = address
        self._connection = connection
        self._response = response
        self._chunks = cast("AsyncGenerator[bytes, None]", aiter(cast("AsyncIterable[bytes]", response.stream)))
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with _as_httpx_errors():
            return await anext(self._chunks)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):  # short: nothing here waits for the peer
            await self._chunks.aclose()
            await self._response.aclose()
            await self._transport.give_back(self._address, self._connection)


def _left_over(connection: httpcore.AsyncHTTP11Connection) -> bool:
    """Whether bytes beyond the last answer were read. Neither library says so in public, and both keep them."""
    data, _ = connection._h11_state.trailing_data
    return bool(data)


async def _close(connections: list[httpcore.AsyncHTTP11Connection]) -> None:
    with anyio.CancelScope(shield=True):  # short: closing a socket waits for no one
        for connection in connections:
            await connection.aclose()


# ------------------------------------------------------------------------------------------------ the port


class HttpxClient:
    """`ports.HttpClient`. An async context manager: leaving it closes its idle connections."""

    def __init__(self, transport: ScalingTransport | None = None) -> None:
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self._client = httpx.AsyncClient(
            transport=transport or ScalingTransport(), trust_env=False, cookies=no_cookies, follow_redirects=False
        )

    async def __aenter__(self) -> HttpxClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._client.aclose()

    async def request(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        request = _build(method, url, headers, body)
        with _as_our_errors(request), anyio.fail_after(timeout_s):
            response = await self._client.send(request, stream=True)
            arriving: _Body = response.extensions[_BODY]
            try:
                parts = [part async for part in arriving]
            finally:
                await response.aclose()
        return Reply(response.status_code, _header_lines(response), b"".join(parts))

    def stream(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[ReplyStream]:
        return self._stream(_build(method, url, headers, body), timeout_s)

    @asynccontextmanager
    async def _stream(self, request: httpx.Request, timeout_s: float | None) -> AsyncIterator[ReplyStream]:
        with _as_our_errors(request), anyio.fail_after(timeout_s):
            response = await self._client.send(request, stream=True)
        try:
            yield _Stream(request, response)
        finally:
            await response.aclose()


class _Stream:
    """`ports.ReplyStream`."""

    def __init__(self, request: httpx.Request, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = _header_lines(response)
        self._chunks = _Chunks(request, response.extensions[_BODY])

    def chunks(self) -> AsyncIterator[bytes]:
        return self._chunks


class _Chunks(AsyncIterator[bytes]):
    """Not a generator: one left before its end would be finished by the garbage collector, in a task of its own."""

    def __init__(self, request: httpx.Request, body: _Body) -> None:
        self._request = request
        self._body = body

    async def __anext__(self) -> bytes:
        with _as_our_errors(self._request):
            while True:
                if part := await anext(self._body):
                    return part


def _build(method: str, url: str, headers: Headers, body: bytes) -> httpx.Request:
    """Built here, not by the client: no cookies, no compression, no header that the caller did not ask for."""
    extensions: dict[str, object] = {"timeout": {"connect": PEER_CONNECT_TIMEOUT_S}}
    target = url
    if url.startswith(UNIX_SCHEME):
        path, slash, rest = url.removeprefix(UNIX_SCHEME).partition("/")
        extensions[_UNIX] = unquote(path)
        target = f"http://localhost{slash}{rest}"
    try:
        # Text would have to be ASCII.
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        request = httpx.Request(method, target, headers=raw, content=body, extensions=extensions)
    except httpx.InvalidURL as error:
        raise PeerUnreachable(f"{method} {url}: {error}") from error
    if request.url.scheme not in ("http", "https") or not request.url.host:
        raise PeerUnreachable(f"{method} {url}: write http://host:port/path")
    return request


def _header_lines(response: httpx.Response) -> tuple[tuple[str, str], ...]:
    return tuple((key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in response.headers.raw)


@contextmanager
def _as_our_errors(request: httpx.Request) -> Iterator[None]:
    """The border: what httpx and a time-out raise becomes what a caller can act on."""
    try:
        yield
    except (httpx.HTTPError, TimeoutError) as error:
        what = f"{_naming(request)}: {str(error) or type(error).__name__}"
        if not request.extensions.get(_SENT):
            raise PeerUnreachable(what) from error
        if isinstance(error, (httpx.TimeoutException, TimeoutError)):
            raise PeerTimeout(f"{_naming(request)}: no answer in time") from error
        raise PeerLost(what) from error


def _naming(request: httpx.Request) -> str:
    where = request.extensions.get(_UNIX)
    return f"{request.method} {request.url}" + (f" (socket {where})" if where else "")
