"""One HTTP exchange between two processes: two FIFOs of messages with latency, and what cuts them.

The client's side is in `client`-named methods, the server's in `receive` and `send`, which are the ASGI callables. The
behaviour at the edges is uvicorn's: `send` after a disconnect is dropped silently, an application that does not answer
answers 500, one that stops half-way breaks the connection.

Back-pressure: `send` waits while more than `WINDOW_BYTES` of the reply are unread; the request body arrives no further
ahead of its reader than that.

Must not know how addresses are resolved or where fates come from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio.lowlevel import Abort

from gym_ckpt.errors import PeerLost, TransportError
from gym_ckpt.wire.sse import KEEP_ALIVE
from sim.clock import Timer, VirtualClock
from sim.fates import ExchangeFate, TurnedAway
from sim.trace import describe

if TYPE_CHECKING:
    from sim.epoch import Epoch

WINDOW_BYTES = 65536
"""Unread bytes per direction beyond which the sender waits: uvicorn's high-water mark."""
CHUNK_BYTES = 65536
"""A request body arrives in messages of at most this size, as uvicorn reads it."""
SILENCE_S = 20.0
"""When a silent loss turns into a reset all the same, for a client without a time-out."""


class Wire(Protocol):
    """What an exchange needs of the network."""

    clock: VirtualClock
    cut: Callable[[str, str], str] | None
    """What becomes of something that one sends to another, while some links are cut: `silent`, `reset` or nothing."""

    def emit(self, node: str, event: str, **fields: Any) -> None: ...

    def handler_failed(self, exchange: Exchange, error: Exception | None, detail: str) -> None: ...


class Slot:
    """Tasks waiting for one thing. Cheaper than an event, and can be waited for again."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: list[trio.lowlevel.Task] = []

    async def wait(self) -> None:
        task = trio.lowlevel.current_task()
        self._tasks.append(task)

        def abort(_: object) -> Abort:
            self._tasks.remove(task)
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        if self._tasks:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                trio.lowlevel.reschedule(task)


class Exchange:
    """State of both sides. `src` and `dst` are the epochs; `dst` is None until someone is found listening."""

    def __init__(self, wire: Wire, number: int, src: Epoch, dst: Epoch | None, fate: ExchangeFate, method: str) -> None:
        self._wire = wire
        self._clock = wire.clock
        self.number = number
        self.src = src
        self.dst = dst
        self.fate = fate
        self.method = method
        self.finished: Callable[[Exchange], None] | None = None
        # client
        self.status = 0
        self.headers: tuple[tuple[str, str], ...] = ()
        self.chunks: deque[bytes] = deque()
        self.ended = False
        self.error: TransportError | None = None
        self.whole = True
        self.timer: Timer | None = None
        self.client_slot = Slot()
        self._left = False
        self.tap: Callable[[int, int, bytes], None] | None = None
        # server
        self.arrived = False
        self.disconnected = False
        self._incoming: deque[bytes] = deque()
        self._on_the_way: deque[bytes] = deque()
        self._in_flight = 0
        self._request_done = False
        self._server_slot = Slot()
        self._started = False
        self._complete = False
        self._expected: int | None = None
        self._chunks_sent = 0
        self._window = 0
        self._severed = False
        self.silent = False
        """The link is half-open: nothing that either side sends arrives."""
        self._cut_request = False
        self._replaced = False
        self._limit = 0 if fate.read_s else WINDOW_BYTES
        self._to_server = 0.0
        self._to_client = 0.0

    # ------------------------------------------------------------------ client

    def fail(self, error: TransportError) -> None:
        """The client learns that the exchange is broken."""
        if self.error is None and not self.ended and not self._left:
            self.error = error
            self._wire.emit(self.src.name, "net.failed", x=self.number, error=describe(error))
            self._close_client()

    def leave(self, after_s: float | None = None) -> None:
        """The client is gone (or done); the server sees a disconnect, if it still can, `after_s` later."""
        if not self._left:
            self._left = True
            if not self.ended and self.error is None:
                self._wire.emit(self.src.name, "net.left", x=self.number)
            self._close_client(after_s)

    def credit(self, size: int) -> None:
        """The client has read `size` bytes of the reply."""
        self._window -= size
        if self._window <= self._limit:
            self._server_slot.wake()

    def _close_client(self, after_s: float | None = None) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.client_slot.wake()
        if not self.disconnected and not self._complete:
            lost = self.silent or (self.arrived and self._is_cut(self.src, self.dst))
            self._call_server(self._disconnect, after_s=SILENCE_S if lost else after_s)
        self._maybe_finished()

    def go_silent(self) -> None:
        """From now on the link is half-open: each side learns of it only much later, by itself."""
        if not (self._severed or self.ended or self.error is not None or self._left):
            self._severed = self.silent = True
            self._clock.call_after(SILENCE_S, self.fail, PeerLost("no answer, and then a reset"))
            self._clock.call_after(SILENCE_S, self._disconnect)

    def _is_cut(self, sender: Epoch, receiver: Epoch | None) -> bool:
        """Nothing gets through any more in this direction, and so in none."""
        how = self._wire.cut(sender.name, receiver.name) if self._wire.cut is not None and receiver is not None else ""
        if how == "silent":
            self.go_silent()
        elif how:
            self._sever()
        return bool(how)

    def _call_server(self, fn: Callable[..., object], *args: Any, after_s: float | None = None) -> None:
        latency = self.fate.request_latency_s if after_s is None else after_s
        self._to_server = max(self._to_server, self._clock.current_time() + latency)
        self._clock.call_at(self._to_server, fn, *args)

    def _call_client(self, fn: Callable[..., object], *args: Any, after_s: float | None = None) -> None:
        latency = self.fate.reply_latency_s if after_s is None else after_s
        self._to_client = max(self._to_client, self._clock.current_time() + latency)
        self._clock.call_at(self._to_client, fn, *args)

    # ------------------------------------------------------------------ arrival at the client

    def _head_arrives(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        if self.error is None and not self._left and not self.silent:
            self.status, self.headers = status, headers
            if self.timer is not None:  # in a stream the time-out is for the headers only
                self.timer.cancel()
                self.timer = None
            self.client_slot.wake()

    def _chunk_arrives(self, chunk: bytes, last: bool) -> None:
        if self.error is not None or self._left or self.silent:
            return
        if chunk:
            if self.tap is not None:
                self.tap(self.number, self.status, chunk)
            self.chunks.append(chunk)
            if self.whole:
                self.credit(len(chunk))
        if last:
            self.ended = True
            self._wire.emit(self.src.name, "net.replied", x=self.number, status=self.status)
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            self._maybe_finished()
        if last or not self.whole:
            self.client_slot.wake()

    # ------------------------------------------------------------------ server

    def request_arrives(self, body: bytes) -> None:
        """The head is here; the body follows as fast as it is read."""
        self.arrived = True
        if self.fate.lose == "mid_request":
            self._cut_request = True
            body = body[: len(body) // 2]
        if len(body) <= CHUNK_BYTES:
            self._incoming.append(body)
        else:
            self._on_the_way.extend(body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES))
            self._incoming.append(self._on_the_way.popleft())

    def turn_away(self, answer: TurnedAway) -> None:
        """The server answers without having looked at the request."""
        self._started = self._complete = True
        headers = (("content-type", "application/json"), *answer.headers)
        if self.whole:
            self.status, self.headers = answer.status, headers
        else:
            self._call_client(self._head_arrives, answer.status, headers)
        self._call_client(self._chunk_arrives, b'{"error": {"message": "overloaded, come again later"}}', True)

    def _body_arrives(self, chunk: bytes) -> None:
        self._in_flight -= 1
        self._incoming.append(chunk)
        self._server_slot.wake()

    def _disconnect(self) -> None:
        if self.arrived and not self.disconnected and not self._complete and self.dst is not None:
            self._wire.emit(self.dst.name, "net.gone", x=self.number)
        self.disconnected = True
        self._server_slot.wake()
        self._maybe_finished()

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI `receive`."""
        epoch = self.dst
        assert epoch is not None
        await epoch.fence()
        while True:
            if self._incoming and not self.disconnected:
                chunk = self._incoming.popleft()
                if self._on_the_way and not self._is_cut(self.src, epoch):
                    self._in_flight += 1
                    self._call_server(self._body_arrives, self._on_the_way.popleft())
                more = bool(self._incoming or self._on_the_way or self._in_flight or self._cut_request)
                return {"type": "http.request", "body": chunk, "more_body": more}
            if self.disconnected or self._complete:
                return {"type": "http.disconnect"}
            await self._server_slot.wait()
            await epoch.fence()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI `send`."""
        epoch = self.dst
        assert epoch is not None
        await epoch.fence()  # no turn of the scheduler: as with real sockets, what fits the buffer waits for nothing
        while self._window > self._limit and not self.disconnected:
            await self._server_slot.wait()
            await epoch.fence()
        if self.disconnected:
            return
        kind = message["type"]
        if not self._started:
            if kind != "http.response.start":
                raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{kind}'.")
            self._start(int(message["status"]), message.get("headers", ()))
        elif self._complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        elif kind != "http.response.body":
            raise RuntimeError(f"Expected ASGI message 'http.response.body', but got '{kind}'.")
        else:
            self._body(message.get("body", b""), not message.get("more_body", False))

    def _start(self, status: int, raw: Any) -> None:
        self._started = True
        assert self.dst is not None
        headers = tuple((key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in raw)
        streams = any(key == "content-type" and value.startswith("text/event-stream") for key, value in headers)
        self._wire.emit(self.dst.name, "net.head", x=self.number, status=status, stream=streams)
        bodyless = status in (204, 304) or self.method == "HEAD"
        if not bodyless:
            self._expected = next((int(value) for key, value in headers if key == "content-length"), None)
        if self.fate.lose == "after":
            self._sever()
        elif not (self._severed or self._is_cut(self.dst, self.src)):
            if self.fate.status and status < 400:
                self._replaced = True
                status, headers = self.fate.status, (("content-type", "application/json"),)
            if self.fate.keep_alives and not streams:
                self._to_client = max(self._to_client, self._clock.current_time()) + self.fate.keep_alive_s
            if self.whole:  # who waits for all of it does not see when its head is there
                self.status, self.headers = status, headers
            else:
                self._call_client(self._head_arrives, status, headers)
            if self.fate.keep_alives and streams:
                self._keep_alive()

    def _body(self, chunk: bytes, last: bool) -> None:
        if self.method == "HEAD":
            chunk = b""
        if self._expected is not None:
            self._expected -= len(chunk)
            if self._expected < 0:
                raise RuntimeError("Response content longer than Content-Length")
            if last and self._expected > 0:
                raise RuntimeError("Response content shorter than Content-Length")
        if self.fate.lose in ("mid_reply", "in_frame") and (last or self._chunks_sent >= self.fate.mid_reply_chunks):
            if chunk and self._chunks_sent < self.fate.mid_reply_chunks:
                self._push(chunk, last=False)
            elif chunk and self.fate.lose == "in_frame":
                self._push(chunk[: (len(chunk) + 1) // 2], last=False)
            self._sever()
        if last:
            self._complete = True
        if chunk or last:
            self._push(chunk, last)
        self._chunks_sent += 1
        if last:
            self._server_slot.wake()
            self._maybe_finished()

    def _keep_alive(self) -> None:
        """What a worker, or a proxy before it, sends while there is no answer yet."""
        self._to_client = max(self._to_client, self._clock.current_time())
        for _ in range(self.fate.keep_alives):
            self._to_client += self.fate.keep_alive_s / self.fate.keep_alives
            self._call_client(self._chunk_arrives, KEEP_ALIVE, False)

    def _push(self, chunk: bytes, last: bool) -> None:
        self._window += len(chunk)
        if self._replaced:
            chunk = b'{"error": {"code": "refused", "detail": "it went wrong on the way"}}' if last else b""
        assert self.dst is not None
        if not (self._severed or self._is_cut(self.dst, self.src)):
            if self.fate.read_s:
                self._to_client = max(self._to_client, self._clock.current_time()) + self.fate.read_s
            self._call_client(self._chunk_arrives, chunk, last)

    def _sever(self) -> None:
        """From here on nothing of the reply gets through; both sides see a reset, or silence."""
        if self._severed:
            return
        self._severed = True
        if self.fate.hang:
            self._call_client(self.fail, PeerLost("no answer, and then a reset"), after_s=SILENCE_S)
        else:
            self._call_client(self.fail, PeerLost("connection reset during the reply"))
            self._clock.call_after(self.fate.reply_latency_s, self._disconnect)

    # ------------------------------------------------------------------ the end of the server's side

    def handler_ended(self, error: Exception | None) -> None:
        """The application returned or raised; whatever is missing is made up for as uvicorn does."""
        if error is not None:
            self._wire.handler_failed(self, error, describe(error))
        elif not self._started and not self.disconnected:
            self._wire.handler_failed(self, None, "ASGI callable returned without starting response")
        elif not self._complete and not self.disconnected:
            self._wire.handler_failed(self, None, "ASGI callable returned without completing response")
        if not self._started and not self.disconnected:
            self._start(500, ((b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")))
            self._body(b"Internal Server Error", True)
        elif not self._complete:
            self.server_gone()

    def server_gone(self, after_s: float | None = None) -> None:
        """The server's side of the connection is closed; the client sees a reset behind what was sent before."""
        if not self._complete or (self._severed and self.fate.hang):
            self._complete = self.disconnected = True
            self._call_client(self.fail, PeerLost("connection closed by the server"), after_s=after_s)
            self._maybe_finished()

    def _maybe_finished(self) -> None:
        client_done = self.ended or self.error is not None or self._left
        if client_done and (self._complete or self.disconnected) and self.finished is not None:
            finished, self.finished = self.finished, None
            finished(self)
