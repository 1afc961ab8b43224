"""Policy-model server: the gate in front of the inference workers.

* Closing never waits for a generation: a call is parked from its admission until its answer starts (INV-10).
* What starts and how it is delivered: `gym_ckpt.participants.gate` (INV-11, 12, 13, 16).
* Undelivered calls are in no checkpoint (INV-17): `gym_ckpt.participants.calls`, or `captured` with a ledger.
* Untagged calls (judges, probes) pass beside the gate and leave no trace in it (INV-22); so do questions for models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

import msgspec

from gym_ckpt.errors import CallIdTaken, InvalidRequest, StaleAttempt, TransportError, Unavailable
from gym_ckpt.limits import CALL_ID_MAX_CHARS
from gym_ckpt.participants.backends import Backends
from gym_ckpt.participants.calls import CallBook, MemoryBook
from gym_ckpt.participants.capture import asking
from gym_ckpt.participants.captured import LedgerBook
from gym_ckpt.participants.gate import Delivery, GatedCall
from gym_ckpt.ports import Ports, Send
from gym_ckpt.runtime.asgi import Answer, Refused, Request, Route, answer, header_value
from gym_ckpt.runtime.install import CONTROL_ROOT, HEALTH
from gym_ckpt.runtime.participant import Participant, Record
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire.messages import CALL_ID

STARTED_PATH = CONTROL_ROOT + "v1/model/started"
MODEL_CLAIM_PATH = "/v1/claim"
MODELS_PATH = "/v1/models"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
PASSED_ON = frozenset({b"content-type", b"accept", b"authorization", b"api-key", b"traceparent", b"tracestate"})
"""Headers of a call that reach the inference worker. Not `x-request-id`: engines name their request after it, and an
abort of attempt N would end N+1's, should an agent send the same."""


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
        self._backends = Backends(ports, workers)
        self.book: CallBook = MemoryBook(ports)
        self.gated = True
        """False, where nobody can take a checkpoint: tagged calls pass as untagged ones do, and nothing is kept."""

    def capture(self, ledger_dir: str, token_dir: str | None, peers: Sequence[str]) -> LedgerBook:
        """Capture tokens from now on, into the ledger of these model servers.

        Before `open`, and after `gated` is set.
        """
        made = LedgerBook(
            self.instance,
            self.ports,
            ledger_dir,
            token_dir or f"{ledger_dir}/tokens",
            peers,
            self.admission.book.marks.refuses,
            checkpointed=self.gated,
        )
        self.book = made
        return made

    @property
    def shared(self) -> bool:
        return self.book.shared

    async def open(self) -> None:
        await self.book.open()

    def close(self) -> None:
        self.book.close()

    def owns(self, episode: EpisodeId) -> bool:
        return self.book.owns(episode)

    def routes(self) -> tuple[Route, ...]:
        paths = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
        return (
            *(Route("POST", path, stream=self.generate) for path in paths),
            Route("POST", MODEL_CLAIM_PATH, self.claim),
            *(Route(how, MODELS_PATH + rest, stream=self.models) for how in ("GET", "HEAD") for rest in ("", "/{id*}")),
            HEALTH,
        )

    def control_routes(self) -> tuple[Route, ...]:
        """Beside the checkpoint operations: which of its calls an agent must still wait for."""
        return (Route("POST", STARTED_PATH, self.started),)

    async def started(self, request: Request) -> Answer:
        """Of the calls named, those whose answer has started. Final while admission is closed."""
        body = await request.typed(StartedRequest)
        return answer(StartedReply([call.model_call_id for call in body.calls if self._has(call)]))

    def _has(self, call: CallRef) -> bool:
        return self.book.has(EpisodeId.from_key(call.capture_key), call.model_call_id)

    async def claim(self, request: Request) -> Answer:
        """A restored attempt goes on, although it may never call: what is kept of it is somebody's (INV-42)."""
        episode = request.required_episode()
        async with self.admission.enter(episode, request.run, request.disconnected) as work:
            await work.begin()
            await self._start(episode)
        return answer({"claimed": True})

    async def models(self, request: Request, send: Send) -> None:
        """What a worker says of its models. Nothing is generated: no admission, whoever asks and whenever."""
        await request.while_connected(lambda: self._forward(request, b"", Delivery(send, None), None, "GET"))

    # One call.

    async def generate(self, request: Request, send: Send) -> None:
        body = await request.body()
        episode = request.episode
        if episode is None or not (self.gated or self.book.captures):
            await request.while_connected(lambda: self._forward(request, body, Delivery(send, None), None))
            return
        given = _given_id(request)
        delivery: Delivery | None = None
        try:
            async with self.admission.enter(episode, request.run, request.disconnected) as work:
                call_id = given or self.ports.entropy.token()
                self.ports.tracer.emit("gate.admitted", episode=episode.key, call=call_id)
                asked = asking(request.scope["path"], body) if self.book.captures else None
                wall = self.ports.clock.wall()
                gate = GatedCall(self.ports, self.admission, work, self.book, episode, call_id, wall, asked)
                delivery = answering = Delivery(send, gate)
                try:
                    await request.while_connected(lambda: self._admitted(request, body, answering, gate))
                finally:
                    self.ports.tracer.emit("gate.done", episode=episode.key, call=call_id)
        except (StaleAttempt, CallIdTaken, Unavailable) as error:
            if delivery is None or not delivery.sent:
                raise
            await delivery.break_off(error.detail)

    async def _admitted(self, request: Request, body: bytes, delivery: Delivery, gate: GatedCall) -> None:
        try:
            await self._start(gate.episode)
            await self._forward(request, body if gate.asking is None else gate.asking.body, delivery, gate)
        except (Refused, CallIdTaken, Unavailable):
            await gate.refuse()
            raise

    async def _start(self, episode: EpisodeId) -> None:
        """The attempt has begun, whatever becomes of its call (INV-43). Raises `StaleAttempt`, `Unavailable`."""
        try:
            await self.book.admit(episode)
        except (OSError, Unavailable, StaleAttempt) as error:
            self.ports.tracer.emit("gate.refused", episode=episode.key, why=str(error))
            if not isinstance(error, OSError):
                raise
            raise Unavailable(f"{episode}: the ledger cannot be written: {error}") from None

    async def _forward(
        self, request: Request, body: bytes, delivery: Delivery, gate: GatedCall | None, method: str = "POST"
    ) -> None:
        """Pass the call on; to another worker only while it has certainly reached none."""
        headers, path = _passed_on(request), _target(request)
        session = None if request.episode is None else request.episode.rollout_id
        call_id = _given_id(request) if gate is None else gate.call_id
        if call_id:
            headers.append((CALL_ID, call_id))
        try:
            async with self._backends.answer(session, path, headers, body, method) as upstream:
                await delivery.run(upstream)
        except TransportError as error:
            if not delivery.sent:
                raise Refused(502, f"no answer of an inference worker: {error}") from None
            self.ports.tracer.emit("gate.broken", call=call_id, why=str(error))
            if gate is not None:
                await gate.refuse()
            await delivery.break_off("the inference worker was lost in mid-answer")

    # The participant.

    def live(self) -> Iterable[EpisodeId]:
        return self.book.live()

    def counts(self) -> dict[str, int]:
        return {"delivered_calls": self.book.delivered()}

    async def settle(self) -> None:
        await self.book.settle()

    def unsettled(self) -> Iterable[EpisodeId]:
        return self.book.unsettled()

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return await self.book.export(scope)

    async def check(self, records: Sequence[Record]) -> None:
        for record in records:
            self.book.check(record)

    def saved(self, records: Sequence[Record]) -> dict[str, int]:
        return {"model_calls": sum(len(record.state["rows"]) for record in records)}

    async def install(self, records: Sequence[Record]) -> None:
        """As a restore of just these."""
        await self.restore([EpisodeId(each.episode.rollout_id, each.episode.attempt - 1) for each in records], records)

    async def restore(self, scope: Sequence[EpisodeId], records: Sequence[Record]) -> None:
        await self.book.restore(scope, records)

    async def committed(self, scope: frozenset[EpisodeId], stop: bool) -> None:
        await self.book.committed(scope)

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        self.book.free(episodes)

    def _forgotten_late(self, rollout_id: str) -> None:
        super()._forgotten_late(rollout_id)
        self.book.drop(rollout_id)

    async def release(self, episodes: Sequence[EpisodeId]) -> None:
        await self.book.release(episodes)

    async def release_forgotten(self, rollout_ids: Sequence[str], retired: Sequence[EpisodeId]) -> None:
        await self.book.forget(rollout_ids, retired)

    def staged(self, records: Sequence[Record]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        by_episode = {record.episode.key: self.book.staging_keys(record) for record in records}
        return tuple(key for keys in by_episode.values() for key in keys), by_episode


def _passed_on(request: Request) -> list[tuple[str, str]]:
    """Headers for the inference worker. Raises `InvalidRequest` for one that no client would send."""
    found = [(name.decode(), header_value(value)) for name, value in request.scope["headers"] if name in PASSED_ON]
    for name, value in found:
        if _CONTROL.search(value):
            raise InvalidRequest(f"{name}: holds a control character")
    return found


def _target(request: Request) -> str:
    """Path and query for the inference worker. Raises `InvalidRequest`, as above, or where that leads elsewhere."""
    query = request.scope["query_string"].decode("latin-1")
    if _CONTROL.search(query):
        raise InvalidRequest("the query holds a control character")
    if not {".", ".."}.isdisjoint(request.scope["path"].split("/")):
        raise InvalidRequest("a path with a . or .. in it leads nowhere here")
    return quote(request.scope["path"]) + (f"?{query}" if query else "")


def _given_id(request: Request) -> str | None:
    """The id that the caller gives its call. Raises `InvalidRequest`: it becomes a header and part of each row."""
    given = request.header(CALL_ID)
    if given and not (len(given) <= CALL_ID_MAX_CHARS and given.isascii() and given.isprintable()):
        raise InvalidRequest(f"{CALL_ID}: up to {CALL_ID_MAX_CHARS} printable ASCII characters")
    return given
