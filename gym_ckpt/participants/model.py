"""Policy-model server: the gate in front of the inference workers.

* Closing never waits for a generation: a call is parked from its admission until its answer starts (INV-10).
* An answer starts at its first body chunk that is neither empty nor a keep-alive (INV-13). At that chunk the gate asks
  for leave to begin: while closed the answer is held (INV-11), and undelivered calls are in no checkpoint (INV-17).
* A call that has begun gets its row before its first chunk is sent; it drains while closed (INV-12).
* Untagged calls (judges, probes) pass beside the gate and leave no trace in it (INV-22).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import anyio
import msgspec

from gym_ckpt.errors import InvalidCheckpointState, StaleAttempt, TransportError
from gym_ckpt.limits import PEER_RETRY_BUDGET_S, PEER_RETRY_FIRST_S, PEER_RETRY_MAX_S
from gym_ckpt.ports import Headers, Ports, ReplyStream, Send
from gym_ckpt.runtime.admission import Pass
from gym_ckpt.runtime.asgi import Answer, Refused, Request, Route, answer, respond
from gym_ckpt.runtime.install import CONTROL_ROOT, HEALTH
from gym_ckpt.runtime.participant import Participant, Record, up_to
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json, sse
from gym_ckpt.wire.messages import plain
from gym_ckpt.wire.sse import SseParser, StartDetector

CALL_ID = "x-ng-model-call-id"
STARTED_PATH = CONTROL_ROOT + "v1/model/started"
PASSED_HEADERS = ("content-type", "retry-after", "x-request-id")
"""Headers of a worker's answer that reach the caller."""


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One call whose answer started. Token counts are known once the answer is whole; never token ids (INV-52)."""

    model_call_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[Row]


class CallRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    capture_key: str
    model_call_id: str


class StartedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    calls: list[CallRef]


class StartedReply(msgspec.Struct, frozen=True):
    started: list[str]


class ModelParticipant(Participant):
    """Serves `/v1/...` by passing calls on to inference workers, each episode always to the same one."""

    kind = Kind.MODEL

    def __init__(self, instance: str, ports: Ports, workers: Sequence[str]) -> None:
        super().__init__(instance, ports)
        self._workers = tuple(workers)
        self._rows: dict[EpisodeId, list[Row]] = {}

    def routes(self) -> tuple[Route, ...]:
        paths = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
        return (*(Route("POST", path, stream=self.generate) for path in paths), HEALTH)

    def control_routes(self) -> tuple[Route, ...]:
        """Beside the checkpoint operations: which of its calls an agent must still wait for."""
        return (Route("POST", STARTED_PATH, self.started),)

    async def started(self, request: Request) -> Answer:
        """Of the calls named, those whose answer has started. Final while admission is closed."""
        body = await request.typed(StartedRequest)
        return answer(StartedReply([call.model_call_id for call in body.calls if self._has_row(call)]))

    def _has_row(self, call: CallRef) -> bool:
        rows = self._rows.get(EpisodeId.from_key(call.capture_key), ())
        return any(row.model_call_id == call.model_call_id for row in rows)

    # One call.

    async def generate(self, request: Request, send: Send) -> None:
        body = await request.body()
        episode = request.episode
        if episode is None:
            await request.while_connected(lambda: self._forward(request, body, _Delivery(send, None), None))
            return
        delivery: _Delivery | None = None
        try:
            async with self.admission.enter(episode) as work:
                call_id = request.header(CALL_ID) or self.ports.entropy.token()
                self.ports.tracer.emit("gate.admitted", episode=episode.key, call=call_id)
                gate = _Call(self, work, episode, call_id)
                delivery = answering = _Delivery(send, gate)
                await request.while_connected(lambda: self._forward(request, body, answering, gate))
        except StaleAttempt as error:
            if delivery is None or not delivery.sent:
                raise
            await delivery.break_off(error.detail)

    async def _forward(self, request: Request, body: bytes, delivery: _Delivery, gate: _Call | None) -> None:
        """Pass the call on; repeated when a worker is lost, as long as nothing was sent to the caller."""
        pause, give_up = PEER_RETRY_FIRST_S, None
        while True:
            try:
                async with self._upstream(request, body, gate) as upstream:
                    await delivery.run(upstream)
                    return
            except TransportError as error:
                if delivery.sent:
                    self.ports.tracer.emit("gate.broken", why=str(error))
                    await delivery.break_off("the inference worker was lost in mid-answer")
                    return
                failure = error
            now = anyio.current_time()
            give_up = give_up if give_up is not None else now + PEER_RETRY_BUDGET_S
            if now >= give_up:
                raise Refused(502, f"no inference worker could be reached: {failure}")
            await anyio.sleep(self.ports.entropy.uniform(pause / 2, pause))
            pause = min(pause * 2, PEER_RETRY_MAX_S)

    def _upstream(self, request: Request, body: bytes, gate: _Call | None) -> AbstractAsyncContextManager[ReplyStream]:
        headers: list[tuple[str, str]] = [("content-type", "application/json")]
        if gate is not None:
            headers.append((CALL_ID, gate.call_id))
        return self.ports.http.stream(
            "POST", self._worker(request.episode) + request.scope["path"], headers=headers, body=body
        )

    def _worker(self, episode: EpisodeId | None) -> str:
        """The same worker for every call of a rollout, so that its prefix cache is of use."""
        name = b"" if episode is None else episode.rollout_id.encode()
        return self._workers[zlib.crc32(name) % len(self._workers)]

    def add_row(self, episode: EpisodeId, row: Row) -> None:
        """The call's answer starts; from now on it is delivered."""
        self._rows.setdefault(episode, []).append(row)
        self.ports.tracer.emit("gate.started", episode=episode.key, call=row.model_call_id)

    # The participant.

    def live(self) -> Iterable[EpisodeId]:
        return self._rows

    def counts(self) -> dict[str, int]:
        return {"delivered_calls": sum(len(rows) for rows in self._rows.values())}

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        held = [(episode, self._rows[episode]) for episode in sorted(scope) if episode in self._rows]
        return [Record(episode, plain(_Rows(rows))) for episode, rows in held]

    async def check(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                msgspec.convert(record.state, _Rows)
            except msgspec.ValidationError as error:
                raise InvalidCheckpointState(f"model rows of {record.episode.key}: {error}") from None

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:
            self._rows[record.episode] = msgspec.convert(record.state, _Rows).rows

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self._rows):
            del self._rows[episode]

    def committed(self, records: Sequence[Record]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Nothing is staged as long as no token store is configured."""
        return (), {record.episode.key: () for record in records}


@dataclass(slots=True)
class _Call:
    """A gated call on its way."""

    participant: ModelParticipant
    work: Pass
    episode: EpisodeId
    call_id: str

    async def start(self, row: Row | None) -> None:
        """Leave to deliver; waits while admission is closed."""
        if self.participant.admission.book.closed:
            self.participant.ports.tracer.emit("gate.held", episode=self.episode.key, call=self.call_id)
        await self.participant.ports.probe("gate.before_start")
        await self.work.begin()
        if row is not None:
            self.participant.add_row(self.episode, row)
        await self.participant.ports.probe("gate.row_written")


class _Delivery:
    """One answer, from a worker to the caller. `sent`: whether the caller has had anything of it."""

    def __init__(self, send: Send, gate: _Call | None) -> None:
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
        content_type = dict(upstream.headers).get("content-type", "application/json")
        headers = [(name, value) for name, value in upstream.headers if name in PASSED_HEADERS[1:]]
        if content_type.startswith("text/event-stream"):
            await self._stream(upstream, content_type, headers)
        else:
            await self._whole(upstream, content_type, headers)

    async def _whole(self, upstream: ReplyStream, content_type: str, headers: Headers) -> None:
        body = b"".join([chunk async for chunk in upstream.chunks()])
        if self._gate is not None:
            await self._gate.start(_row(self._gate.call_id, _usage_in(body)) if upstream.status < 400 else None)
        self.sent = True
        await respond(self._send, Answer(body, upstream.status, headers, content_type))

    async def _stream(self, upstream: ReplyStream, content_type: str, headers: Headers) -> None:
        detector, parser, row = StartDetector(), SseParser(), None
        async for chunk in upstream.chunks():
            if self._gate is not None and row is None and detector.starts(chunk):
                row = _row(self._gate.call_id, {})
                await self._gate.start(row)
            await self._part(upstream.status, content_type, headers, chunk)
            if row is not None and b'"usage"' in chunk:
                for data in parser.feed(chunk):
                    _count(row, _usage_in(data.encode()))
        self._streaming = False
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _part(self, status: int, content_type: str, headers: Headers, chunk: bytes) -> None:
        if not self.sent:
            self.sent = self._streaming = True
            lines = [("content-type", content_type), ("cache-control", "no-cache"), *headers]
            encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
            await self._send({"type": "http.response.start", "status": status, "headers": encoded})
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


def _usage_in(body: bytes) -> dict[str, int]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    match found:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}}:
            return {"prompt_tokens": prompt, "completion_tokens": completion}
    return {}


def _row(call_id: str, usage: dict[str, int]) -> Row:
    return Row(call_id, usage.get("prompt_tokens"), usage.get("completion_tokens"))


def _count(row: Row, usage: dict[str, int]) -> None:
    row.prompt_tokens = usage.get("prompt_tokens", row.prompt_tokens)
    row.completion_tokens = usage.get("completion_tokens", row.completion_tokens)
