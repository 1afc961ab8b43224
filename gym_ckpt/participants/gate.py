"""One model call at the gate: its answer on the way from an inference worker to the caller.

An answer starts at its first body chunk that is neither empty nor a keep-alive (INV-13). At that chunk it asks for
leave to begin, is held while admission is closed (INV-11), and is booked before that chunk is sent (INV-16). Where
tokens are captured the answer is gathered whole and staged before it asks, because its row binds all of them;
keep-alives before it pass. Otherwise a stream passes through, chunk by chunk, at the caller's pace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from gym_ckpt.core.lineage import Poison, Reason
from gym_ckpt.limits import ANSWER_MAX_BYTES
from gym_ckpt.participants.calls import CallBook, Entry, Row
from gym_ckpt.participants.capture import Asking
from gym_ckpt.ports import Headers, Ports, ReplyStream, Send
from gym_ckpt.runtime.admission import Admission, Pass
from gym_ckpt.runtime.asgi import Answer, respond
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json, sse
from gym_ckpt.wire.sse import StartDetector

PASSED_HEADERS = ("content-type", "retry-after", "x-request-id")
"""Headers of a worker's answer that reach the caller."""
EVENT_STREAM = "text/event-stream"


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

    async def staged(self, row: Row, answer: bytes, content_type: str) -> Entry:
        """Keep the tokens of the whole answer, before it asks to begin."""
        assert self.asking is not None, "tokens are captured"
        entry = await self.book.stage(self.episode, row, self.at, self.asking, answer, content_type)
        await self.ports.probe("gate.staged")
        return entry

    async def start(self, entry: Entry | None) -> None:
        """Leave to deliver; waits while admission is closed. `entry`: of an answer that is no error.

        Raises:
            StaleAttempt, Unavailable: it must not be delivered after all.
        """
        if self.admission.book.closed:
            self.ports.tracer.emit("gate.held", episode=self.episode.key, call=self.call_id)
        await self.ports.probe("gate.before_start")
        await self.work.begin()
        if entry is not None:
            await self.book.book(entry)
        await self.ports.probe("gate.row_written")

    def entry(self) -> Entry:
        """Of an answer whose tokens are not captured."""
        return Entry(self.episode, Row(self.call_id))


class Delivery:
    """One answer, from a worker to the caller. `sent`: whether the caller has had anything of it."""

    def __init__(self, send: Send, gate: GatedCall | None) -> None:
        self._send = send
        self._gate = gate
        self._streaming = False
        self.sent = False

    async def break_off(self, reason: str) -> None:
        """End a stream that cannot go on with an error in it, which its reader tells from an end by itself."""
        if self._streaming:
            event = sse.event(json.dumps({"error": {"message": reason, "type": "broken_off"}}))
            await self._send({"type": "http.response.body", "body": b"\n\n" + event, "more_body": False})

    async def run(self, upstream: ReplyStream) -> None:
        """Pass the answer on. Raises `TransportError` when the worker is lost, and as `GatedCall.start`."""
        content_type = dict(upstream.headers).get("content-type", "application/json")
        headers = [(name, value) for name, value in upstream.headers if name in PASSED_HEADERS[1:]]
        streamed = content_type.startswith(EVENT_STREAM)
        if self._gate is not None and self._gate.asking is not None and upstream.status < 400:
            await self._captured(self._gate, upstream, content_type, headers)
        elif streamed:
            await self._stream(upstream, content_type, headers)
        else:
            await self._whole(upstream, content_type, headers)

    async def _whole(self, upstream: ReplyStream, content_type: str, headers: Headers) -> None:
        body = b"".join([chunk async for chunk in upstream.chunks()])
        if self._gate is not None:
            await self._gate.start(self._gate.entry() if upstream.status < 400 else None)
        self.sent = True
        await respond(self._send, Answer(body, upstream.status, headers, content_type))

    async def _stream(self, upstream: ReplyStream, content_type: str, headers: Headers) -> None:
        detector, waits = StartDetector(), self._gate is not None
        async for chunk in upstream.chunks():
            if waits and self._gate is not None and detector.starts(chunk):
                await self._gate.start(self._gate.entry() if upstream.status < 400 else None)
                waits = False
            await self._part(upstream.status, content_type, headers, chunk)
        await self._end()

    async def _captured(self, gate: GatedCall, upstream: ReplyStream, content_type: str, headers: Headers) -> None:
        """Gather, stage, begin, deliver; of an answer without end only as much as may be held."""
        streamed = content_type.startswith(EVENT_STREAM)
        detector, chunks = StartDetector(), upstream.chunks()
        gathered: list[bytes] = []
        size = 0
        async for chunk in chunks:
            if streamed and not detector.starts(chunk):
                await self._part(upstream.status, content_type, headers, chunk)
                continue
            gathered.append(chunk)
            size += len(chunk)
            if size > ANSWER_MAX_BYTES:
                break
        row, answer = Row(gate.call_id), b"".join(gathered)
        if size > ANSWER_MAX_BYTES:
            poison = Poison(gate.call_id, Reason.CAPTURE_FAILED, f"an answer of more than {ANSWER_MAX_BYTES} bytes")
            await gate.start(Entry(gate.episode, row, poison=(poison,)))
        else:
            await gate.start(await gate.staged(row, answer, content_type))
        if size <= ANSWER_MAX_BYTES and not streamed:
            self.sent = True
            await respond(self._send, Answer(answer, upstream.status, headers, content_type))
            return
        await self._rest(gathered, chunks, upstream.status, content_type, headers)

    async def _rest(
        self, gathered: list[bytes], chunks: AsyncIterator[bytes], status: int, content_type: str, headers: Headers
    ) -> None:
        for chunk in gathered:
            await self._part(status, content_type, headers, chunk)
        async for chunk in chunks:
            await self._part(status, content_type, headers, chunk)
        await self._end()

    async def _end(self) -> None:
        self._streaming = False
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _part(self, status: int, content_type: str, headers: Headers, chunk: bytes) -> None:
        if not self.sent:
            self.sent = self._streaming = True
            lines = [("content-type", content_type), ("cache-control", "no-cache"), *headers]
            encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
            await self._send({"type": "http.response.start", "status": status, "headers": encoded})
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
