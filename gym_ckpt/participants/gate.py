"""One model call at the gate: its answer on the way from an inference worker to the caller.

An answer starts at its first body chunk that is neither empty nor a keep-alive (INV-13). At that chunk it asks for
leave to begin, is held while admission is closed (INV-11), and is booked before that chunk is sent (INV-16). A stream
passes through, chunk by chunk, at the caller's pace; where tokens are captured it is gathered and staged before it
asks, because its row binds all of them; keep-alives before it pass, and more are sent meanwhile, or proxies that end
silent connections would end a long one. Any other answer is gathered, up to a bound.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from gym_ckpt.core.lineage import Poison, Reason
from gym_ckpt.errors import PeerLost
from gym_ckpt.limits import ANSWER_MAX_BYTES, KEEP_ALIVE_S
from gym_ckpt.participants.calls import CallBook, Entry, Row
from gym_ckpt.participants.capture import Asking
from gym_ckpt.ports import Headers, Ports, ReplyStream, Send
from gym_ckpt.runtime.admission import Admission, Pass
from gym_ckpt.runtime.asgi import Answer, respond
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json, sse
from gym_ckpt.wire.sse import StartDetector

PASSED_HEADERS = frozenset({
    "retry-after", "retry-after-ms", "x-should-retry", "x-request-id", "www-authenticate", "content-encoding",
    "location",
})  # fmt: skip
PASSED_PREFIXES = ("x-ratelimit-", "openai-")
"""Headers of a worker's answer that reach the caller, beside its content type."""
EVENT_STREAM = "text/event-stream"


def passed(name: str) -> bool:
    """Whether a header of a worker's answer reaches the caller."""
    return name in PASSED_HEADERS or name.startswith(PASSED_PREFIXES)


def delivers(status: int) -> bool:
    """Whether a response of this status is an answer to its call. Errors and redirects are passed on and not booked."""
    return 200 <= status < 300


@dataclass(frozen=True, slots=True)
class Head:
    """What is said before an answer."""

    status: int
    content_type: str
    headers: Headers

    @property
    def streamed(self) -> bool:
        return self.content_type.startswith(EVENT_STREAM)


@dataclass(slots=True)
class GatedCall:
    """A call that is admitted. `asking`: its request, where tokens are captured; `at`: of its admission, wall clock."""

    ports: Ports
    admission: Admission
    work: Pass
    book: CallBook
    episode: EpisodeId
    call_id: str
    at: float
    asking: Asking | None

    async def start_captured(self, answer: bytes | None, content_type: str) -> None:
        """Stage the tokens of the whole answer, then `start`; a call that leaves first leaves none of them.

        `answer`: None, if it is too long to be held.
        """
        assert self.asking is not None, "tokens are captured"
        if answer is None:
            poison = Poison(self.call_id, Reason.CAPTURE_FAILED, f"an answer of more than {ANSWER_MAX_BYTES} bytes")
            await self.start(Entry(self.episode, Row(self.call_id), poison=(poison,)))
            return
        entry = await self.book.stage(self.episode, Row(self.call_id), self.at, self.asking, answer, content_type)
        booked = False
        try:
            await self.ports.probe("gate.staged")
            await self.start(entry)
            booked = True
        finally:
            if not booked:
                with anyio.CancelScope(shield=True):
                    await self.book.unstage(entry)

    async def start(self, entry: Entry | None) -> None:
        """Leave to deliver; waits while admission is closed. `entry`: of an answer that is no error.

        Raises:
            StaleAttempt, CallIdTaken, Unavailable: it must not be delivered after all.
        """
        if self.admission.book.closed:
            self.ports.tracer.emit("gate.held", episode=self.episode.key, call=self.call_id)
        await self.ports.probe("gate.before_start")
        await self.work.begin()
        if entry is None:
            self._told_error()
        else:
            await self.book.book(entry)
        await self.ports.probe("gate.row_written")

    async def refuse(self) -> None:
        """Leave to say that there is no answer, which is held as an answer is: a live call fails in no checkpoint."""
        if self.admission.book.closed and not self.work.working:
            self.ports.tracer.emit("gate.held", episode=self.episode.key, call=self.call_id)
        await self.work.begin()
        self._told_error()

    def _told_error(self) -> None:
        self.ports.tracer.emit("gate.error", episode=self.episode.key, call=self.call_id)

    def entry(self) -> Entry:
        """Of an answer whose tokens are not captured."""
        return Entry(self.episode, Row(self.call_id))


class Delivery:
    """One answer, from a worker to the caller. `sent`: whether the caller has had anything of it."""

    def __init__(self, send: Send, gate: GatedCall | None) -> None:
        self._send = send
        self._gate = gate
        self._streaming = False
        self._sending = anyio.Lock(fast_acquire=True)
        self.sent = False

    async def break_off(self, reason: str) -> None:
        """End a stream that cannot go on with an error in it, which its reader tells from an end by itself."""
        if self._streaming:
            event = sse.event(json.dumps({"error": {"message": reason, "type": "broken_off"}}))
            await self._send({"type": "http.response.body", "body": b"\n\n" + event, "more_body": False})

    async def run(self, upstream: ReplyStream) -> None:
        """Pass the answer on.

        Raises:
            TransportError: the worker is lost, or what it said is no answer.
            Others as `GatedCall.start`.
        """
        if not 200 <= upstream.status < 600:
            raise PeerLost(f"status {upstream.status} is none")
        content_type = dict(upstream.headers).get("content-type", "application/json")
        head = Head(upstream.status, content_type, [line for line in upstream.headers if passed(line[0])])
        gate = self._gate
        captured = gate is not None and gate.asking is not None and delivers(upstream.status)
        if head.streamed and not captured:
            await self._stream(upstream, head)
        else:
            await self._gathered(upstream, head, captured=captured)

    async def _stream(self, upstream: ReplyStream, head: Head) -> None:
        detector, started = StartDetector(), self._gate is None
        async for chunk in upstream.chunks():
            if not started and detector.starts(chunk):
                await self._start(upstream.status)
                started = True
            await self._part(head, chunk)
        if not started:
            await self._start(upstream.status)  # of an answer that says nothing, the end is its start
        await self._end(head)

    async def _start(self, status: int) -> None:
        if self._gate is not None:
            await self._gate.start(self._gate.entry() if delivers(status) else None)

    async def _gathered(self, upstream: ReplyStream, head: Head, *, captured: bool) -> None:
        """Gather, stage if it is captured, begin, deliver; of an answer without end only as much as may be held.

        An answer that is no stream is gathered even where its tokens are not captured: once a part of it is out, a
        worker's loss could not be told to the caller, and the call would count as delivered.
        """
        chunks = upstream.chunks()
        gathered: list[bytes] = []
        async with self._kept_alive(head):
            whole = await self._gather(chunks, gathered, head)
            answer = b"".join(gathered)
            if not captured:
                await self._start(upstream.status)
            elif self._gate is not None:
                await self._gate.start_captured(answer if whole else None, head.content_type)
        if whole and not head.streamed:
            self.sent = True
            await respond(self._send, Answer(answer, head.status, head.headers, head.content_type))
            return
        await self._rest(gathered, chunks, head)

    async def _gather(self, chunks: AsyncIterator[bytes], gathered: list[bytes], head: Head) -> bool:
        """Fill `gathered`; whether it is the whole answer. Keep-alives of a stream pass."""
        detector, size = StartDetector(), 0
        async for chunk in chunks:
            if head.streamed and not detector.starts(chunk):
                async with self._sending:
                    await self._part(head, chunk)
                continue
            gathered.append(chunk)
            size += len(chunk)
            if size > ANSWER_MAX_BYTES:
                return False
        return True

    @asynccontextmanager
    async def _kept_alive(self, head: Head) -> AsyncIterator[None]:
        """Meanwhile a stream says now and then that it is alive: proxies end connections that are silent. In a stream
        that is encoded it would be noise.
        """
        if not head.streamed or any(name == "content-encoding" for name, _ in head.headers):
            yield
            return
        async with Tasks() as tasks:
            tasks.start_soon(self._keep_alive, head)
            yield
            tasks.cancel_scope.cancel()

    async def _keep_alive(self, head: Head) -> None:
        while True:
            await anyio.sleep(KEEP_ALIVE_S)
            async with self._sending:
                await self._part(head, sse.KEEP_ALIVE)

    async def _rest(self, gathered: list[bytes], chunks: AsyncIterator[bytes], head: Head) -> None:
        for chunk in gathered:
            await self._part(head, chunk)
        async for chunk in chunks:
            await self._part(head, chunk)
        await self._end(head)

    async def _end(self, head: Head) -> None:
        await self._begin_response(head)
        self._streaming = False
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _part(self, head: Head, chunk: bytes) -> None:
        await self._begin_response(head)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _begin_response(self, head: Head) -> None:
        if not self.sent:
            self.sent = self._streaming = True
            lines = [("content-type", head.content_type), *head.headers]
            if head.streamed:
                lines.append(("cache-control", "no-cache"))
            encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
            await self._send({"type": "http.response.start", "status": head.status, "headers": encoded})
