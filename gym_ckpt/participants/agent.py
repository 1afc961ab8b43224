"""Agent server: sessions that loop between the policy model and tools, as a participant.

A session parks at a boundary of `gym_ckpt.core.agent_session`. In mid-call it works, until it is known that the answer
has not started: the model is closed before the agent, so the gate's word on that is final, and the session then stands
at the boundary before the call (INV-15). An answer that has started is on the wire and is waited for. Between two
tries of a call that failed it stands at that boundary too, so that no checkpoint waits for an engine that is full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import msgspec

from gym_ckpt.core.agent_session import Reply, SessionState, ToolCall, after_model, after_tool, flaw, next_tool
from gym_ckpt.core.patience import Patience
from gym_ckpt.core.spread import spread
from gym_ckpt.errors import (
    CallIdTaken,
    InvalidCheckpointState,
    InvalidRequest,
    StaleAttempt,
    TransportError,
    Unavailable,
)
from gym_ckpt.participants import asked
from gym_ckpt.participants.model import MODEL_CLAIM_PATH, CallRef
from gym_ckpt.participants.resources import COOKIE, REVISION_HEADER
from gym_ckpt.ports import Headers, Ports
from gym_ckpt.runtime.admission import Pass
from gym_ckpt.runtime.asgi import Answer, Refused, Request, Route, answer, is_cookie_value, of_run, tagged
from gym_ckpt.runtime.install import HEALTH
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.runtime.participant import Participant, Record, up_to
from gym_ckpt.runtime.peer import IDEMPOTENCY_KEY, JSON_HEADERS, PeerRefused, call, claim
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID, plain

CLAIM_PATH = "/v1/agent_sessions/claim"


class OpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cookie`: of the resources session that the tools belong to."""

    messages: list[dict[str, Any]]
    resources_url: str
    cookie: str
    tools: list[dict[str, Any]] = []


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stays the same while a session lasts."""

    resources_url: str
    cookie: str
    tools: list[dict[str, Any]]


class _Exported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One session in a checkpoint."""

    opened: Opened
    state: SessionState


class WorkReply(msgspec.Struct, frozen=True):
    """How a session ended. `status`: `finished` or `failed`, then with `reason`."""

    status: str
    messages: tuple[dict[str, Any], ...] = ()
    calls: tuple[Any, ...] = ()
    finish_reason: str | None = None
    reason: str | None = None


class Session:
    """One session: its last boundary, and the run that is taking it to the next one."""

    def __init__(self, episode: EpisodeId, opened: Opened, state: SessionState) -> None:
        self.episode = episode
        self.opened = opened
        self.state = state
        self.run: Outcome[WorkReply] | None = None
        self.scope = anyio.CancelScope()
        self.tries = 0
        self.calling: str | None = None
        """The model call under way."""
        self.resting = False
        """Between two tries of a model call."""
        self.work: Pass | None = None
        self.made_for: str | None = None
        """The run that its calls say they are made for, as the calls of its environment do."""


class AgentParticipant(Participant):
    """Drives sessions against the policy-model servers: each rollout keeps to one of them."""

    kind = Kind.AGENT

    def __init__(
        self,
        instance: str,
        ports: Ports,
        tasks: anyio.abc.TaskGroup,
        *,
        model_urls: Sequence[str],
        token: str | None,
        max_steps: int,
        stream: bool,
        max_tokens: int | None,
    ) -> None:
        super().__init__(instance, ports)
        self._tasks = tasks
        assert model_urls, "an agent has at least one policy-model server"
        self._model_urls = tuple(model_urls)
        self._token = token
        self._max_steps = max_steps
        self._stream = stream
        self._max_tokens = max_tokens
        self._sessions: dict[EpisodeId, Session] = {}
        self.admission.on_change = self._unpark

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("POST", "/v1/agent_sessions", self.open_session),
            Route("POST", "/v1/agent_sessions/close", self.close_session),
            Route("POST", CLAIM_PATH, self.claim),
            Route("POST", "/v1/responses", self.respond),
            HEALTH,
        )

    # The data plane.

    async def open_session(self, request: Request) -> Answer:
        """Open the episode's session; repeated, it answers with the one that is open."""
        episode = request.required_episode()
        body = await request.typed(OpenRequest)
        if not is_cookie_value(body.cookie) or not _is_origin(body.resources_url):
            raise InvalidRequest("cookie must be a cookie's value, and resources_url http://host:port")
        async with self.admission.enter(episode, request.run, request.disconnected) as work:
            await work.begin()
            if episode not in self._sessions:
                opened = Opened(body.resources_url, body.cookie, body.tools)
                self._sessions[episode] = Session(episode, opened, SessionState(tuple(body.messages)))
        return answer({"session_id": episode.key})

    async def close_session(self, request: Request) -> Answer:
        """Close the episode's session; closed already, it stays closed. Work that goes on is stopped first."""
        episode = request.required_episode()
        async with self.admission.enter(episode, request.run, request.disconnected) as work:
            await work.begin()
            session = self._sessions.get(episode)
            if session is not None and session.run is not None:
                session.scope.cancel()
                await session.run.wait(math.inf, "the session")
            self._sessions.pop(episode, None)
        return answer({"closed": True})

    async def claim(self, request: Request) -> Answer:
        """A restored episode goes on without a model call: tell its model server that it does (INV-42)."""
        episode = request.required_episode()
        async with self.admission.enter(episode, request.run, request.disconnected) as work:
            await work.begin()
            try:
                await self._claim(episode, request.run)
            except (PeerRefused, TransportError) as error:
                raise Refused(502, f"no answer of the policy-model server: {error}") from None
        return answer({"claimed": True})

    async def _claim(self, episode: EpisodeId, run: str | None) -> None:
        await claim(self.ports, tagged(self._model(episode), episode, MODEL_CLAIM_PATH), of_run(run))

    async def respond(self, request: Request) -> Answer:
        """Let the session work to its end and answer how it ended; joins the work if it is going on already."""
        episode = request.required_episode()
        self.admission.book.check(episode)
        session = self._sessions.get(episode)
        if session is None:
            raise Refused(404, f"no session {episode.key}: open it first, or continue the attempt that was restored")
        if session.run is None:
            session.made_for = request.run
            session.run = Outcome()
            self._tasks.start_soon(self._run, session, session.run)
        run = session.run
        return answer(await request.result_of(run))

    # One session at work.

    async def _run(self, session: Session, outcome: Outcome[WorkReply]) -> None:
        try:
            async with self.admission.enter(session.episode, session.made_for) as work:
                session.work = work
                with session.scope:
                    await work.begin()
                    if session.state.finish_reason is not None:
                        await self._claim(session.episode, session.made_for)  # restored at its end: no model call will
                    while session.state.finish_reason is None:
                        await self._step(session, work)
                        await work.boundary()
        except StaleAttempt as error:
            outcome.fail(error)
        except AssertionError:
            raise
        except Exception as error:  # whatever a peer answered: it is this session that has failed, not the server
            outcome.succeed(WorkReply("failed", reason=str(error) or repr(error)))
        else:
            state = session.state
            if state.finish_reason is None:
                outcome.succeed(WorkReply("failed", reason="the session was closed while it was at work"))
                return
            outcome.succeed(WorkReply("finished", state.messages, state.calls, state.finish_reason))
        finally:
            session.work = None

    async def _step(self, session: Session, work: Pass) -> None:
        state = session.state
        tool = next_tool(state)
        if tool is None:
            reply = await self._call_model(session, work)
            await work.begin()  # an answer that found the session parked takes it on only once admission is open
            session.state = after_model(state, reply, self._max_steps)
        else:
            content, revision = await self._call_tool(session, tool)
            session.state = after_tool(state, content, revision)
        await self.ports.probe("agent.boundary")

    async def _call_model(self, session: Session, work: Pass) -> Reply:
        patience = Patience()
        while True:
            await work.boundary()  # a call repeated while admission is closed begins when it is open again
            began = anyio.current_time()
            try:
                return await self._try(session)
            except (TransportError, CallIdTaken, Unavailable, PeerRefused) as error:
                pause_s = asked.pause_s(self.ports, patience, error, anyio.current_time() - began)
                if pause_s is None:
                    raise
            await self._rest(session, work, pause_s)

    async def _rest(self, session: Session, work: Pass, pause_s: float) -> None:
        """Wait at the boundary before the call: a checkpoint finds the session parked (INV-15)."""
        work.park()
        session.resting = True
        self.ports.tracer.emit("agent.resting", episode=session.episode.key, for_s=pause_s)
        try:
            await anyio.sleep(pause_s)
        finally:
            session.resting = False

    async def _try(self, session: Session) -> Reply:
        """One try, under an id of its own: one that is taken, since a copy was faster, is never tried again."""
        session.tries += 1
        call_id = f"{session.episode.key}.c{len(session.state.calls)}.{session.tries}"
        session.calling = call_id
        try:
            return await self._exchange(session, call_id)
        finally:
            session.calling = None

    async def _exchange(self, session: Session, call_id: str) -> Reply:
        body: dict[str, Any] = {"messages": list(session.state.messages), "return_token_ids": True}
        if session.opened.tools:
            body["tools"] = session.opened.tools
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        url = tagged(self._model(session.episode), session.episode, "/v1/chat/completions")
        headers: Headers = (*JSON_HEADERS, (CALL_ID, call_id), *of_run(session.made_for))
        if not self._stream:
            return await asked.answered(self.ports, url, headers, json.dumps(body), call_id)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return await asked.streamed(self.ports, url, headers, json.dumps(body), call_id)

    def _model(self, episode: EpisodeId) -> str:
        return self._model_urls[spread(episode.rollout_id, len(self._model_urls))]

    async def _call_tool(self, session: Session, tool: ToolCall) -> tuple[str, int]:
        """The tool's answer for the conversation, and the resources session's revision after it."""
        refused = _refusal(tool, session.opened.tools)
        if refused is not None:
            return json.dumps({"error": refused}).decode(), session.state.revision
        headers = (
            ("cookie", f"{COOKIE}={session.opened.cookie}"),
            (IDEMPOTENCY_KEY, f"{session.episode.key}:tool{session.state.tool_steps}"),
            *of_run(session.made_for),
        )
        url = tagged(session.opened.resources_url, session.episode, f"/{tool.name}")
        reply = await call(self.ports, "POST", url, tool.arguments.encode(), headers=headers)
        return reply.body.decode(), int(reply.header(REVISION_HEADER) or session.state.revision)

    # The participant.

    async def settle(self) -> None:
        """Park the sessions whose model call has not started to be answered; those that have started will end."""
        calling = {
            session.calling: session
            for session in self._sessions.values()
            if session.calling is not None and session.work is not None
        }
        if not calling:
            return
        started = await self._started(calling)
        for call_id, session in calling.items():
            if session.calling == call_id and call_id not in started and session.work is not None:
                session.work.park()
                self.ports.tracer.emit("agent.parked", episode=session.episode.key, call=call_id)

    async def _started(self, calling: dict[str, Session]) -> frozenset[str]:
        by_model: dict[str, list[CallRef]] = {}
        for call_id, session in calling.items():
            by_model.setdefault(self._model(session.episode), []).append(CallRef(session.episode.key, call_id))
        found = [await asked.started(self.ports, model, self._token, refs) for model, refs in sorted(by_model.items())]
        return frozenset[str]().union(*found)

    def _unpark(self, closed: bool) -> None:
        """A call that was parked in mid-air is work again once admission is open: its answer may start from now on, and
        the next checkpoint must not take the session for parked while that is on the wire (INV-15)."""
        for session in self._sessions.values():
            if not closed and session.work is not None and not session.resting:
                session.work.go_on()

    def live(self) -> Iterable[EpisodeId]:
        return self._sessions

    def counts(self) -> dict[str, int]:
        return {"sessions": len(self._sessions)}

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        held = [self._sessions[episode] for episode in sorted(scope) if episode in self._sessions]
        return [Record(each.episode, plain(_Exported(each.opened, each.state))) for each in held]

    async def check(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                exported = msgspec.convert(record.state, _Exported)
            except msgspec.ValidationError as error:
                raise InvalidCheckpointState(f"agent session of {record.episode.key}: {error}") from None
            wrong = flaw(exported.state)
            if not is_cookie_value(exported.opened.cookie) or not _is_origin(exported.opened.resources_url):
                wrong = "its cookie or its resources server is none"
            if wrong is not None:
                raise InvalidCheckpointState(f"agent session of {record.episode.key}: {wrong}")

    def saved(self, records: Sequence[Record]) -> dict[str, int]:
        calls = [call for record in records for call in record.state["state"]["calls"]]
        return {"model_calls": len(calls), "tokens": sum(call["completion_tokens"] for call in calls)}

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:
            exported = msgspec.convert(record.state, _Exported)
            self._sessions[record.episode] = Session(record.episode, exported.opened, exported.state)

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self._sessions):
            del self._sessions[episode]


def _refusal(tool: ToolCall, offered: Sequence[dict[str, Any]]) -> str | None:
    """Why a tool call cannot be made, for the model to read.

    A name that the session does not offer is never called: it may be a route of the server that is no tool.
    """
    if not any(each.get("function", {}).get("name") == tool.name for each in offered):
        return f"there is no tool {tool.name!r}"
    try:
        arguments = json.loads(tool.arguments.encode())
    except ValueError as error:
        return f"arguments are not JSON: {error}"
    return None if isinstance(arguments, dict) else "arguments are not an object"


def _is_origin(url: str) -> bool:
    """Whether calls can be made below this url."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # such as a port beyond 65535
        return False
