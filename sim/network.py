"""The network: who listens where, and the journey of each request to an application inside the server's node.

Implements the `HttpClient` and `HttpServer` ports over bare ASGI, without httpx. Every request is an exchange of its
own, with the fate that `Fates.exchange` decides when it begins.

Crash: a dead process's connections are reset, or fall silent; nothing reaches its code any more, and what it still
calls never returns. Must not know what travels over it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import trio

from gym_ckpt.errors import ConfigError, PeerLost, PeerTimeout, PeerUnreachable
from gym_ckpt.limits import DRAIN_S
from gym_ckpt.ports import ASGIApp, Headers, Reply
from sim.clock import VirtualClock
from sim.determinism import park
from sim.epoch import Epoch
from sim.exchange import SILENCE_S, Exchange, Slot
from sim.fates import ExchangeFate, Fates, TurnedAway
from sim.headers import check_headers

NO_CONNECTION = "no connection"
"""What is said of one that does not come about, and is not refused either."""
Emit = Callable[..., None]
OnError = Callable[[Epoch, str, BaseException | None, str], None]


class Target(NamedTuple):
    """A parsed URL, in the forms that an ASGI scope wants."""

    authority: str
    host: str
    port: int
    scheme: str
    path: str
    raw_path: bytes
    query: bytes


@lru_cache(maxsize=8192)
def parse(url: str) -> Target:
    """Raises `ConfigError` for anything but an absolute http URL."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"the simulated network carries http://host:port/..., not {url!r}")
    raw = parts.path or "/"
    port = parts.port or 80
    authority = f"{parts.hostname}:{port}"
    return Target(authority, parts.hostname, port, "http", unquote(raw), raw.encode(), parts.query.encode())


class Listener:
    """An application that listens on one address, and its requests in progress."""

    def __init__(self, epoch: Epoch, app: ASGIApp) -> None:
        self.epoch = epoch
        self.app = app
        self.open = True
        self.nursery: trio.Nursery | None = None
        self.active = 0
        self.idle = Slot()

    async def host(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task above the requests' tasks: they outlive a cancelled `serve` until they are drained."""
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            task_status.started()
            await park()


class Network:
    """All links of a world."""

    def __init__(self, clock: VirtualClock, fates: Fates, emit: Emit, on_error: OnError) -> None:
        self.clock = clock
        self.fates = fates
        self.emit = emit
        self._on_error = on_error
        self.cut: Callable[[str, str], str] | None = None
        self.shown: Mapping[str, str] = {}
        """Request headers that a trace shows, by lower-case name, and as which field."""
        self.tap: Callable[[int, int, bytes], None] | None = None
        """Given number, status and each part, as it arrives, of replies to requests with such a header."""
        self._listeners: dict[str, Listener] = {}
        self._number = 0
        self._nobody = Epoch("network", 0, 0)

    def reset(self, epoch: Epoch, *, silent: bool = False) -> None:
        """`epoch` is gone: close its sockets. `silent`: its host is, so that peers notice only much later."""
        for authority in [key for key, listener in self._listeners.items() if listener.epoch is epoch]:
            self._listeners.pop(authority).open = False
        after_s = SILENCE_S if silent else None
        for exchange in list(epoch.exchanges.values()):
            if exchange.src is epoch:
                exchange.leave(after_s)
            elif exchange.arrived:
                exchange.server_gone(after_s)

    def half_open(self, one: Epoch, other: Epoch) -> int:
        """Every link between these two goes silent; how many were in use."""
        links = [each for each in one.exchanges.values() if {each.src, each.dst} == {one, other}]
        for exchange in links:
            exchange.go_silent()
        return len(links)

    # ------------------------------------------------------------------ client

    async def open(
        self,
        src: Epoch,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        timeout_s: float | None,
        *,
        whole: bool,
        connect_s: float | None = None,
    ) -> Exchange:
        """Send a request and wait for the whole reply, or for its head. `connect_s`: how long a connection may take.

        Raises: what the `HttpClient` port says.
        """
        await src.fence()
        target = parse(url)
        if src.number:  # the harness may say anything, as strangers may
            check_headers(headers)
        exchange = self._begin(src, method, target, headers, body, timeout_s, whole)
        if connect_s is not None and exchange.fate.lose == "before" and exchange.fate.hang:
            late = PeerUnreachable(f"{target.authority}: {NO_CONNECTION} within {connect_s} s")
            self.clock.call_after(connect_s, exchange.fail, late)
        try:
            while exchange.error is None and not exchange.ended and (whole or not exchange.status):
                await exchange.client_slot.wait()
                await src.fence()
        except BaseException:
            exchange.leave()
            raise
        if exchange.error is not None and (whole or not exchange.status):
            raise exchange.error  # a stream whose head is here delivers what came before the error first
        return exchange

    def _begin(
        self,
        src: Epoch,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        timeout_s: float | None,
        whole: bool,
    ) -> Exchange:
        clock = self.clock
        listener = self._listeners.get(target.authority)
        dst = listener.epoch if listener is not None else None
        dst_name = target.authority if dst is None else dst.name
        fate = self.fates.exchange(src.name, dst_name, method, target.path)
        exchange = self._exchange(src, dst, fate, method)
        exchange.whole = whole
        fields = self._told(headers)
        exchange.tap = self.tap if fields else None
        self.emit(src.name, "net.request", x=exchange.number, dst=dst_name, method=method, path=target.path, **fields)
        there_and_back = fate.request_latency_s + fate.reply_latency_s
        scope = _scope(method, target, headers, body)
        if listener is None or fate.refuse:
            clock.call_after(there_and_back, exchange.fail, PeerUnreachable(f"{target.authority}: connection refused"))
        elif fate.lose in (None, "before") and fate.hang:
            clock.call_after(SILENCE_S, exchange.fail, PeerLost(f"{target.authority}: no answer, and then a reset"))
        elif fate.lose == "mid_request":
            exchange._call_server(self._arrive, exchange, listener, scope, body)
            cut = PeerLost(f"{target.authority}: connection reset while the request was sent")
            clock.call_after(there_and_back, exchange.fail, cut)
        elif fate.lose == "before":
            clock.call_after(there_and_back, exchange.fail, PeerLost(f"{target.authority}: connection reset"))
        elif fate.turned_away is not None:
            exchange._call_server(self._turn_away, exchange, listener, fate.turned_away)
        else:
            exchange._call_server(self._arrive, exchange, listener, scope, body)
            if fate.duplicate:
                clock.call_after(
                    fate.request_latency_s + fate.duplicate_delay_s, self._arrive_again, listener, fate, scope, body
                )
        if fate.keep is not None:
            fate.keep(lambda: self._arrive_anew(target.authority, fate, scope, body))
        if fate.breaks_after_s is not None:
            clock.call_after(fate.breaks_after_s, exchange.fail, PeerLost(f"{target.authority}: connection reset"))
        if timeout_s is not None:
            # Its text is part of the trace, so it says nothing that differs between runs.
            late = PeerTimeout(f"{method} {target.authority}{target.path}: no answer within {timeout_s} s")
            exchange.timer = clock.call_after(timeout_s, exchange.fail, late)
        return exchange

    def _told(self, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
        shown = self.shown
        return {shown[key.lower()]: value for key, value in headers if key.lower() in shown} if shown else {}

    def _exchange(self, src: Epoch, dst: Epoch | None, fate: ExchangeFate, method: str) -> Exchange:
        self._number += 1
        exchange = Exchange(self, self._number, src, dst, fate, method)
        src.exchanges[exchange.number] = exchange
        if dst is not None:
            dst.exchanges[exchange.number] = exchange
        exchange.finished = _forget
        return exchange

    # ------------------------------------------------------------------ server

    def _arrive_anew(self, authority: str, fate: ExchangeFate, scope: dict[str, Any], body: bytes) -> None:
        listener = self._listeners.get(authority)
        if listener is not None:
            self._arrive_again(listener, fate, scope, body)

    def _arrive_again(self, listener: Listener, fate: ExchangeFate, scope: dict[str, Any], body: bytes) -> None:
        calm = ExchangeFate(request_latency_s=fate.request_latency_s, reply_latency_s=fate.reply_latency_s)
        ghost = self._exchange(self._nobody, listener.epoch, calm, scope["method"])
        fields = self._told((key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"])
        self.emit("network", "net.duplicate", x=ghost.number, path=scope["path"], **fields)
        self._arrive(ghost, listener, {**scope, "headers": list(scope["headers"])}, body)

    def _turn_away(self, exchange: Exchange, listener: Listener, answer: TurnedAway) -> None:
        if exchange.silent:
            return
        if not (listener.open and listener.epoch.alive):
            exchange._call_client(exchange.fail, PeerLost("connection reset: the server is gone"))
            return
        self.emit(
            listener.epoch.name, "net.turned_away", x=exchange.number, status=answer.status, asked_s=answer.asked_s
        )
        exchange.turn_away(answer)

    def _arrive(self, exchange: Exchange, listener: Listener, scope: dict[str, Any], body: bytes) -> None:
        epoch = listener.epoch
        if exchange.silent or exchange.finished is None:  # its sender was gone before it came
            return
        if not (listener.open and epoch.alive and listener.nursery is not None):
            exchange._call_client(exchange.fail, PeerLost("connection reset: the server is gone"))
            return
        exchange.request_arrives(body)  # first: who dies of this very message resets its connection
        self.emit(epoch.name, "net.arrived", x=exchange.number)
        if exchange.disconnected:
            return
        listener.active += 1
        epoch.spawn(listener.nursery, self._handle, exchange, listener, scope, name=f"{epoch.name}:{scope['path']}")

    async def _handle(self, exchange: Exchange, listener: Listener, scope: dict[str, Any]) -> None:
        epoch = listener.epoch
        try:
            await listener.app(scope, exchange.receive, exchange.send)
        except Exception as exc:
            if epoch.alive:
                exchange.handler_ended(exc)
        except BaseException:
            if epoch.alive:
                exchange.server_gone()
            raise
        else:
            if epoch.alive:
                exchange.handler_ended(None)
        finally:
            listener.active -= 1
            if not listener.active:
                listener.idle.wake()

    def handler_failed(self, exchange: Exchange, error: Exception | None, detail: str) -> None:
        """Traced, and a failure of the run unless the harness says otherwise."""
        assert exchange.dst is not None
        self.emit(exchange.dst.name, "handler.error", x=exchange.number, error=detail)
        self._on_error(exchange.dst, "handler", error, detail)

    async def serve(self, epoch: Epoch, app: ASGIApp, url: str, ready: Callable[[], None]) -> None:
        """The `HttpServer` port."""
        await epoch.fence()
        authority = parse(url).authority
        if authority in self._listeners:
            raise ConfigError(f"{url}: the address is in use")
        assert epoch.nursery is not None
        listener = Listener(epoch, app)
        await epoch.nursery.start(listener.host)
        await epoch.fence()
        assert listener.nursery is not None
        self._listeners[authority] = listener
        self.emit(epoch.name, "net.listening", at=authority)
        try:
            ready()
            await park()
        finally:
            if self._listeners.get(authority) is listener:
                del self._listeners[authority]
            listener.open = False
            with trio.move_on_after(DRAIN_S, shield=True):
                while listener.active:
                    await listener.idle.wait()
            listener.nursery.cancel_scope.cancel()


def _forget(exchange: Exchange) -> None:
    exchange.src.exchanges.pop(exchange.number, None)
    if exchange.dst is not None:
        exchange.dst.exchanges.pop(exchange.number, None)


def _scope(method: str, target: Target, headers: Headers, body: bytes) -> dict[str, Any]:
    raw = [(b"host", target.authority.encode())]
    raw.extend((key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers)
    if body or method in ("POST", "PUT", "PATCH"):
        raw.append((b"content-length", b"%d" % len(body)))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": (target.host, target.port),
        "client": ("127.0.0.1", 50000),
        "scheme": target.scheme,
        "method": method,
        "root_path": "",
        "path": target.path,
        "raw_path": target.raw_path,
        "query_string": target.query,
        "headers": raw,
        "state": {},
    }


class NodeClient:
    """The `HttpClient` port of one process."""

    def __init__(self, network: Network, epoch: Epoch) -> None:
        self._network = network
        self._epoch = epoch

    async def request(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        exchange = await self._network.open(self._epoch, method, url, headers, body, timeout_s, whole=True)
        chunks = exchange.chunks
        return Reply(exchange.status, exchange.headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def stream(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> _Stream:
        return _Stream(self._network, self._epoch, (method, url, headers, body, timeout_s))


class _Stream:
    """The context of a streamed reply."""

    def __init__(self, network: Network, epoch: Epoch, call: tuple[str, str, Headers, bytes, float | None]) -> None:
        self._network = network
        self._epoch = epoch
        self._call = call
        self._exchange: Exchange | None = None

    async def __aenter__(self) -> Replying:
        self._exchange = await self._network.open(self._epoch, *self._call, whole=False)
        return Replying(self._epoch, self._exchange)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._exchange is not None
        if self._epoch.alive:
            self._exchange.leave()


class Replying:
    """The `ReplyStream` port. Its own iterator: an abandoned generator would be finalized at an arbitrary moment."""

    def __init__(self, epoch: Epoch, exchange: Exchange) -> None:
        self._epoch = epoch
        self._exchange = exchange
        self.status = exchange.status
        self.headers = exchange.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> Replying:
        return self

    async def __anext__(self) -> bytes:
        exchange = self._exchange
        await self._epoch.fence()
        while not exchange.chunks:
            if exchange.error is not None:
                raise exchange.error
            if exchange.ended:
                raise StopAsyncIteration
            await exchange.client_slot.wait()
            await self._epoch.fence()
        chunk = exchange.chunks.popleft()
        exchange.credit(len(chunk))
        return chunk
