"""Resources server: sessions of one gym, their tools and verification, as a participant.

A tool call carries only its cookie; the session was bound to its episode at seed. A call with an idempotency key whose
reply was lost is answered from the session, not done again (INV-3). Callers work one step at a time, so the last reply
is all that has to be kept; an older call that arrives once more has nobody who waits for it and is refused.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from typing import Any

import anyio
import msgspec

from gym_ckpt.core.admission import stale
from gym_ckpt.errors import InvalidCheckpointState, InvalidRequest, ProtocolError, StaleAttempt
from gym_ckpt.gyms.base import Gym, StateMode, ToolError, VerifyMode
from gym_ckpt.limits import VERIFICATIONS_KEPT
from gym_ckpt.participants.sessions import Session, Verification
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.admission import Pass
from gym_ckpt.runtime.asgi import Answer, Raised, Refused, Request, Route, answer, is_cookie_value
from gym_ckpt.runtime.install import HEALTH
from gym_ckpt.runtime.participant import Participant, Record, up_to
from gym_ckpt.runtime.peer import IDEMPOTENCY_KEY
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import encode

COOKIE = "ng_session"
VERIFY_HEADER = "x-ng-checkpoint-verify"
RESTART_HEADER = "x-ng-checkpoint-restart"
REVISION_HEADER = "x-ng-session-revision"


class SeedRequest(msgspec.Struct, frozen=True):
    task: dict[str, Any]


class VerifyRequest(msgspec.Struct, frozen=True):
    task: dict[str, Any]
    messages: list[dict[str, Any]] = []


class _Exported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One session in a checkpoint. `state`: None of a gym that keeps none; its agents come back with their cookies."""

    session_id: str
    revision: int
    state: Any


class ResourcesParticipant(Participant):
    """Serves one gym."""

    kind = Kind.RESOURCES

    def __init__(self, instance: str, ports: Ports, tasks: anyio.abc.TaskGroup, gym: Gym) -> None:
        super().__init__(instance, ports)
        self._tasks = tasks
        self._gym = gym
        self._sessions: dict[str, Session] = {}
        self._of_episode: dict[EpisodeId, str] = {}
        self._verified: dict[EpisodeId, Verification] = {}
        """The last verification of each episode, where it waits, until its session is over; oldest first."""

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("POST", "/seed_session", self.seed_session),
            Route("POST", "/verify", self.verify),
            Route("POST", "/close_session", self.close_session),
            Route("GET", "/tools", self.list_tools),
            HEALTH,
            Route("POST", "/{tool}", self.call_tool),
        )

    # The data plane.

    async def list_tools(self, _: Request) -> Answer:
        """Tool definitions, in the form of OpenAI's chat completions."""
        return answer(list(self._gym.tools))

    async def seed_session(self, request: Request) -> Answer:
        """Open the episode's session; repeated, it answers with the one that is open."""
        episode = request.required_episode()
        body = await request.typed(SeedRequest)
        async with self.admission.enter(episode, request.run, request.disconnected) as work:
            await work.begin()
            session_id = self._of_episode.get(episode)
            if session_id is None:
                with _told("seed"):
                    state = await self._gym.seed(body.task)
                made = Session(self.ports.entropy.token(16), episode, state)
                session_id = self._of_episode.setdefault(episode, made.session_id)
                if session_id == made.session_id:
                    self._sessions[session_id] = made
                else:  # a copy of this call was quicker
                    self._end(made)
        headers = [("set-cookie", f"{COOKIE}={session_id}; Path=/; HttpOnly"), *self._declared()]
        return answer({"session_id": session_id, "tools": list(self._gym.tools)}, headers=headers)

    def _declared(self) -> list[tuple[str, str]]:
        """Headers that tell the environment how this gym takes part in checkpoints."""
        declared = [(VERIFY_HEADER, "replay")] if self._gym.verify_mode is VerifyMode.REPLAY else []
        if self._gym.state_mode is StateMode.RESTART_ONLY:
            declared.append((RESTART_HEADER, "1"))
        return declared

    async def call_tool(self, request: Request) -> Answer:
        """One tool call of the session that the cookie names."""
        session, tool = self._session(request), request.params["tool"]
        key = request.header(IDEMPOTENCY_KEY)
        arguments = await request.json()
        if not isinstance(arguments, dict):
            raise InvalidRequest("a tool call's body is an object of arguments")
        async with self.admission.enter(session.episode, request.run, request.disconnected) as work:
            await work.begin()
            async with self._held(session):
                if key is not None and key == session.last_key and session.last_reply is not None:
                    return session.last_reply
                if key in session.done:
                    raise Refused(409, f"the call with the key {key} was done already, and others after it")
                if session.unsound:
                    raise Refused(500, "an earlier call of this session broke off: its state is not to be relied on")
                await self.ports.probe("resources.before_effect")
                try:
                    reply = await self._effect(session, tool, arguments, key)
                    session.keep(key, reply)
                except BaseException:
                    session.unsound = True  # neither done again nor restored: its effect would be there twice (INV-3)
                    raise
        return reply

    async def _effect(self, session: Session, tool: str, arguments: dict[str, Any], key: str | None) -> Answer:
        with _told(f"tool {tool}"):
            try:
                result = await self._gym.call(session.state, tool, arguments)
            except ToolError as error:
                result = {"error": str(error)}
            said = encode({"result": result})
        session.revision += 1
        self.ports.tracer.emit(
            "tool.effect",
            episode=session.episode.key,
            session=session.session_id,
            revision=session.revision,
            tool=tool,
            key=key,
        )
        await self.ports.probe("resources.after_effect")
        return Answer(said, headers=[(REVISION_HEADER, str(session.revision))])

    async def verify(self, request: Request) -> Answer:
        """The reward. A replayable verification runs parked: a checkpoint does not wait for it."""
        body = await request.typed(VerifyRequest)
        session = None if self._gym.state_mode is StateMode.STATELESS else self._session(request)
        episode = request.required_episode() if session is None else session.episode
        async with self.admission.enter(episode, request.run, request.disconnected) as work:
            if self._gym.verify_mode is VerifyMode.REPLAY:
                return await self._judged_parked(session, body, work)
            await work.begin()
            state = None if session is None else await self._opened(session)
            return await self._judged_once(episode, request.header(IDEMPOTENCY_KEY), state, body)

    async def _judged_parked(self, session: Session | None, body: VerifyRequest, work: Pass) -> Answer:
        """What was judged while a checkpoint of a stop freed the session is judged again, should the run go on."""
        while session is not None:
            if session.closed:
                await work.begin()
                await self._opened(session)
                work.park()
            state = session.state
            try:
                reply = await self._judged(state, body)
            except Raised:
                if session.state is state and not session.closed:
                    raise
            else:
                if session.state is state and not session.closed:
                    return reply
        return await self._judged(None, body)

    async def _judged(self, state: Any, body: VerifyRequest) -> Answer:
        with _told("verify"):
            return answer(await self._gym.verify(state, body.task, body.messages), headers=self._declared())

    async def _judged_once(self, episode: EpisodeId, key: str | None, state: Any, body: VerifyRequest) -> Answer:
        """What waits has effects: a call that is repeated, as after a lost reply, joins the one under way or gets its
        reply (INV-3)."""
        known = self._verified.get(episode)
        if key is not None and known is not None and known.key == key:
            return await known.outcome.get(math.inf, "the verification")
        self._drop_verified(list(islice(self._verified, max(0, len(self._verified) - VERIFICATIONS_KEPT))))
        made = self._verified[episode] = Verification(key)
        self.ports.tracer.emit("verify.effect", episode=episode.key, key=key)
        try:
            judged = await self._judged(state, body)
        except BaseException as error:
            made.outcome.fail(error if isinstance(error, Exception) else stale(episode))
            raise
        made.outcome.succeed(judged)
        return judged

    async def close_session(self, request: Request) -> Answer:
        """Close the cookie's session, or without a cookie the episode's: who never got the reply to a seeding has none.

        A session that is closed already stays closed.
        """
        session = self._named(request)
        if session is None and request.episode in self._of_episode and request.cookie(COOKIE) is None:
            session = self._sessions[self._of_episode[request.episode]]
        if session is not None:
            async with self.admission.enter(session.episode, request.run, request.disconnected) as work:
                await self._close(session, work, request.episode or session.episode)
        return answer({"closed": session is not None})

    async def _close(self, session: Session, work: Pass, by: EpisodeId) -> None:
        await work.begin()
        async with session.busy:
            if self._sessions.get(session.session_id) is session:
                self._remove(session)
                self.ports.tracer.emit("session.closed", episode=by.key, session=session.session_id)
                if not session.closed:
                    session.closed = True
                    with _told("close"):
                        await self._gym.close(session.state)

    def _session(self, request: Request) -> Session:
        session = self._named(request)
        if session is None:
            raise Refused(404, f"no session of this cookie: seed one, and send the cookie {COOKIE}")
        return session

    def _named(self, request: Request) -> Session | None:
        """The session that the cookie names. A restore continues a session under its cookie: who still calls for an
        attempt before has none (INV-38). Raises `StaleAttempt`."""
        session = self._sessions.get(request.cookie(COOKIE) or "")
        if session is not None and request.episode is not None and request.episode != session.episode:
            raise StaleAttempt(f"the session belongs to {session.episode.key}, not to {request.episode.key}")
        return session

    @asynccontextmanager
    async def _held(self, session: Session) -> AsyncIterator[None]:
        """The session for one call alone, open. One that the last checkpoint of a stop has closed opens again from what
        that holds of it: a server elsewhere could not write its part, and the run goes on.

        Raises `Refused`: it was closed while the call waited. What the author's hook raises, as `_told`.
        """
        async with session.busy:
            if self._sessions.get(session.session_id) is not session:
                raise Refused(404, "the session of this cookie was closed")
            if session.closed:
                await session.freed.wait()
                with _told("restore_session_state"):
                    session.state = await self._gym.restore_session_state(session.kept)
                session.closed, session.freed = False, anyio.Event()
            yield

    async def _opened(self, session: Session) -> Any:
        async with self._held(session):
            return session.state

    def _add(self, session: Session) -> None:
        self._sessions[session.session_id] = session
        self._of_episode[session.episode] = session.session_id

    def _remove(self, session: Session) -> None:
        del self._sessions[session.session_id]
        del self._of_episode[session.episode]
        self._drop_verified([session.episode])

    # The participant.

    def forget(self, rollout_ids: Iterable[str]) -> None:
        super().forget(rollout_ids)
        gone = set(rollout_ids)
        self._drop_verified(episode for episode in list(self._verified) if episode.rollout_id in gone)

    def _forgotten_late(self, rollout_id: str) -> None:
        super()._forgotten_late(rollout_id)
        self._drop_verified(episode for episode in list(self._verified) if episode.rollout_id == rollout_id)

    def _drop_verified(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in episodes:
            if (known := self._verified.get(episode)) is not None and known.outcome.done:
                del self._verified[episode]

    def live(self) -> Iterable[EpisodeId]:
        return self._of_episode

    def counts(self) -> dict[str, int]:
        return {"sessions": len(self._sessions)}

    def restarts(self) -> set[str]:
        every = self._gym.state_mode is StateMode.RESTART_ONLY
        return {session.episode.key for session in self._sessions.values() if every or session.unsound}

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        held = [self._sessions[self._of_episode[episode]] for episode in sorted(scope) if episode in self._of_episode]
        records = [Record(session.episode, await self._exported(session)) for session in held]
        if stop:
            for session, record in zip(held, records, strict=True):
                session.kept = record.state["state"]
        return records

    async def _exported(self, session: Session) -> dict[str, Any]:
        """The fields of `_Exported`, with the author's state as it is: what JSON cannot carry of it is refused later.

        Not by msgspec, which would make lists of sets and text of dates, silently.
        """
        state = session.kept
        if not (session.closed or self._gym.state_mode is StateMode.STATELESS):
            with _by_author(session.episode, "export_session_state"):
                state = await self._gym.export_session_state(session.state)
        return {"session_id": session.session_id, "revision": session.revision, "state": state}

    async def check(self, records: Sequence[Record]) -> None:
        owners: dict[str, EpisodeId] = {}
        for record in records:
            try:
                exported = msgspec.convert(record.state, _Exported)
                if not is_cookie_value(exported.session_id) or exported.revision < 0:
                    raise ValueError("its session_id is no cookie's value, or its revision below 0")
                owner = owners.setdefault(exported.session_id, record.episode)
                if owner != record.episode:  # one cookie would open the other's session
                    raise ValueError(f"its session_id is that of {owner.key}")
                if self._gym.state_mode is not StateMode.STATELESS:
                    with _by_author(record.episode, "check_session_state"):
                        await self._gym.check_session_state(exported.state)
            except (ValueError, msgspec.ValidationError) as error:
                raise InvalidCheckpointState(f"session of {record.episode.key}: {error}") from None

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:
            exported, state = msgspec.convert(record.state, _Exported), None
            if self._gym.state_mode is not StateMode.STATELESS:
                with _by_author(record.episode, "restore_session_state"):
                    state = await self._gym.restore_session_state(exported.state)
            self._add(Session(exported.session_id, record.episode, state, exported.revision))

    async def committed(self, scope: frozenset[EpisodeId], stop: bool) -> None:
        """After the last checkpoint of a stop nobody goes on here: what these sessions hold outside is freed now."""
        if stop and self._gym.state_mode is not StateMode.STATELESS:
            for episode in sorted(scope & self._of_episode.keys()):
                session = self._sessions[self._of_episode[episode]]
                session.kept = json.loads(json.dumps(session.kept))  # a part of the state itself would be freed with it
                self._end(session)

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self._of_episode):
            session = self._sessions[self._of_episode[episode]]
            self._remove(session)
            self._end(session)
        self._drop_verified(up_to(episodes, self._verified))

    def _end(self, session: Session) -> None:
        """Have what a session holds outside the process freed, whoever waits for what meanwhile."""
        if not session.closed:
            session.closed = True
            self._tasks.start_soon(self._free_outside, session)

    async def _free_outside(self, session: Session) -> None:
        try:
            await self._gym.close(session.state)
        except Exception as error:  # the author's: the session is over whether or not something of it is left
            self.ports.tracer.emit("session.close_failed", episode=session.episode.key, why=repr(error))
        finally:
            session.freed.set()


@contextmanager
def _told(hook: str) -> Iterator[None]:
    """What an author's hook raises, what JSON cannot carry included, is told to the caller: there it fails an episode,
    whose row says why. What the hook refuses by an error of the protocol stays that."""
    try:
        yield
    except ProtocolError:
        raise
    except Exception as error:
        raise Raised(hook, error) from error


@contextmanager
def _by_author(episode: EpisodeId, hook: str) -> Iterator[None]:
    """An `assert` of a gym's author fails what was being done, like any error of theirs; ours stop the process."""
    try:
        yield
    except AssertionError as error:
        raise RuntimeError(f"session of {episode.key}: {hook} raised {error!r}") from error
