"""Environment server: one episode per `/run`, step by step, as a participant.

The episode runs in a task of the server, so a lost connection neither ends it nor runs it twice; the reply goes to
whoever asked. A `/run` for attempt N+1 whose record was restored goes on after its last completed step; without one it
starts from its input. Time parked for a checkpoint is not charged to the episode's time-out (INV-24).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.abc
import msgspec

from gym_ckpt.core import episode as machine
from gym_ckpt.core.episode import EpisodeState, Seeded, Step, Worked, next_step
from gym_ckpt.errors import GymCkptError, InvalidCheckpointState, InvalidRequest, NotLossless, StaleAttempt
from gym_ckpt.limits import OVER_KEPT, RELEASE_BUDGET_S, TASK_DEPTH_MAX
from gym_ckpt.participants.agent import CLAIM_PATH
from gym_ckpt.participants.resources import COOKIE, RESTART_HEADER, VERIFY_HEADER
from gym_ckpt.ports import Ports, Reply
from gym_ckpt.runtime.admission import Pass
from gym_ckpt.runtime.asgi import Answer, Refused, Request, Route, answer, cookie_in, is_cookie_value, of_run, tagged
from gym_ckpt.runtime.install import HEALTH
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.runtime.participant import Participant, Record, up_to
from gym_ckpt.runtime.peer import IDEMPOTENCY_KEY, call, claim
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTINUED_HEADER, EpisodeRef, plain

T = TypeVar("T")


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`task`: whatever the gym's verifier and prompt need; `prompt` or `messages` opens the conversation."""

    episode_id: EpisodeRef
    task: dict[str, Any]


class RunReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status`: `finished`, with `result`, or `failed`, with `reason`. Either way the episode is over."""

    status: str
    result: dict[str, Any] | None = None
    reason: str | None = None


class EpisodeFailed(GymCkptError):
    """The episode cannot go on; the text says why."""


class _Episode:
    """A live episode: its last boundary, and the time that it has left to work.

    Time worked before a checkpoint counts on after it: else an episode that hangs would hang anew after every restart.
    """

    def __init__(self, state: EpisodeState, timeout_s: float) -> None:
        self.state = state
        self.unclaimed = False
        """Continued from a checkpoint, with nothing left for its agent to do."""
        self.made_for: str | None = None
        """The run that its `/run` said it was made for, which further calls say in turn."""
        self.limit = anyio.CancelScope()
        self._timeout_s = timeout_s
        self._left_s = max(0.0, timeout_s - state.worked_s)

    def exported(self) -> EpisodeState:
        """The boundary, with the time worked until the clock was stopped."""
        if self._timeout_s == math.inf:
            return self.state
        return msgspec.structs.replace(self.state, worked_s=round(self._timeout_s - self._left_s, 3))

    def pause(self) -> None:
        """Stop the clock of the time-out."""
        if self.limit.deadline != math.inf:
            self._left_s = self.limit.deadline - anyio.current_time()
            self.limit.deadline = math.inf

    def go_on(self) -> None:
        """Let the clock run."""
        self.limit.deadline = anyio.current_time() + self._left_s


class EnvironmentParticipant(Participant):
    """Runs episodes against one agent server and one or two resources servers."""

    kind = Kind.ENVIRONMENT

    def __init__(
        self,
        instance: str,
        ports: Ports,
        tasks: anyio.abc.TaskGroup,
        *,
        agent_url: str,
        resources_url: str,
        verifier_url: str | None,
        episode_timeout_s: float | None,
    ) -> None:
        super().__init__(instance, ports)
        self.admission.on_change = self._pause_clocks
        self._tasks = tasks
        self._agent_url = agent_url
        self._resources_url = resources_url
        self._verifier_url = verifier_url
        self._timeout_s = math.inf if episode_timeout_s is None else episode_timeout_s
        self._judge_replays = False
        """What the verifier's last reply declared; until then a checkpoint waits for it."""
        self._asked: set[EpisodeId] = set()
        """Attempts whose `/run` has come, admitted or still waiting."""
        self._episodes: dict[EpisodeId, _Episode] = {}
        self._over: dict[str, int] = {}
        """Highest attempt of each rollout that has replied, until the rollout is forgotten; oldest first."""

    def routes(self) -> tuple[Route, ...]:
        return (Route("POST", "/run", self.run), HEALTH)

    # The data plane.

    async def run(self, request: Request) -> Answer:
        """Run one episode and reply when it is over. A second `/run` of the same attempt is refused."""
        episode, made_for = request.required_episode(), request.run
        body = await request.typed(RunRequest)
        if body.episode_id.checked() != episode:
            raise InvalidRequest(f"episode_id is not the {episode.key} of the path")
        self.admission.book.check(episode)
        if episode in self._asked or self._over.get(episode.rollout_id, -1) >= episode.attempt:
            raise Refused(409, f"attempt {episode.key} runs or has run already")
        try:
            digest = machine.task_digest(body.task)
        except NotLossless as error:
            raise InvalidRequest(f"task: {error}") from None
        held = self._episodes.get(episode)
        if held is None and request.header(CONTINUED_HEADER) is not None:
            raise Refused(409, f"attempt {episode.key} is to be continued, and nothing of it is here")
        if held is not None and held.state.task_digest != digest:
            raise InvalidRequest(f"the task of {episode.key} is not the one that its checkpoint was taken of")
        outcome: Outcome[RunReply] = Outcome()
        self._asked.add(episode)
        self._tasks.start_soon(self._drive, episode, body.task, made_for, outcome)
        return answer(await request.result_of(outcome))

    async def _drive(
        self, episode: EpisodeId, task: dict[str, Any], run: str | None, outcome: Outcome[RunReply]
    ) -> None:
        try:
            async with self.admission.enter(episode, run) as work:
                held = self._episodes.get(episode)
                continued = held is not None
                if held is None:
                    state = machine.begin(task, judge=self._verifier_url is not None)
                    held = self._episodes[episode] = _Episode(state, self._timeout_s)
                self.ports.tracer.emit("episode.started", episode=episode.key, continued=continued)
                held.made_for = run
                held.unclaimed = continued and held.state.worked is not None
                reply = await self._to_the_end(episode, held, task, work)
                del self._episodes[episode]
                self._has_run(episode)
        except StaleAttempt as error:
            outcome.fail(error)
        else:
            self.ports.tracer.emit("episode.over", episode=episode.key, status=reply.status)
            outcome.succeed(reply)
        finally:
            self._asked.discard(episode)

    def _has_run(self, episode: EpisodeId) -> None:
        last = self._over.pop(episode.rollout_id, -1)
        self._over[episode.rollout_id] = max(episode.attempt, last)
        if len(self._over) > OVER_KEPT:  # nobody forgets here, as where no checkpoints are taken
            del self._over[next(iter(self._over))]

    async def _to_the_end(self, episode: EpisodeId, held: _Episode, task: dict[str, Any], work: Pass) -> RunReply:
        try:
            with held.limit:
                await self._steps(episode, held, task, work)
            if held.limit.cancelled_caught:
                raise EpisodeFailed(f"it was not over within {self._timeout_s:g} s of work, its episode_timeout_s")
        except StaleAttempt:
            raise
        except Exception as error:  # whatever a peer answered: it is this episode that has failed, not the server
            if self.broken(error):
                raise
            await self._release(episode, held.state, work)
            return RunReply("failed", reason=str(error) or repr(error))
        return RunReply("finished", result=machine.row(held.state))

    async def _steps(self, episode: EpisodeId, held: _Episode, task: dict[str, Any], work: Pass) -> None:
        await work.begin()
        held.go_on()
        if held.unclaimed:
            await self._claim(episode)
        while (step := next_step(held.state)) is not None:
            if machine.may_replay(held.state, step, judge_replays=self._judge_replays):
                work.park()
            result = await self._do(episode, held.state, step, task)
            await work.begin()  # a replayed step that ended while admission is closed counts only from resume on
            held.state = machine.completed(held.state, result)
            self.ports.tracer.emit("episode.step", episode=episode.key, step=str(step))
            await self.ports.probe("environment.boundary")
            await work.boundary()

    async def _claim(self, episode: EpisodeId) -> None:
        """Say that a continued episode is at work, whose agent has nothing left to do: nobody else would, and what the
        model servers keep of it would count as abandoned (INV-42)."""
        url = tagged(self._agent_url, episode, CLAIM_PATH)
        await claim(self.ports, url, of_run(self._episodes[episode].made_for))

    def _pause_clocks(self, closed: bool) -> None:
        """Time parked for a checkpoint is not charged (INV-24)."""
        for episode in self._asked & self._episodes.keys():
            held = self._episodes[episode]
            if closed:
                held.pause()
            else:
                held.go_on()

    async def _do(
        self, episode: EpisodeId, state: EpisodeState, step: Step, task: dict[str, Any]
    ) -> Seeded | Worked | dict[str, Any] | None:
        match step:
            case Step.SEED:
                return _seeded(await self._call(episode, step, self._resources_url, "/seed_session", {"task": task}))
            case Step.OPEN:
                await self._call(episode, step, self._agent_url, "/v1/agent_sessions", self._opening(state, task))
            case Step.WORK:
                return _worked(await self._call(episode, step, self._agent_url, "/v1/responses", {}))
            case Step.CLOSE_AGENT:
                await self._call(episode, step, self._agent_url, "/v1/agent_sessions/close", {})
            case Step.VERIFY:
                return await self._verify(episode, state, step, task, self._resources_url)
            case Step.JUDGE:
                assert self._verifier_url is not None, "an episode is judged by a configured verifier"
                return await self._verify(episode, state, step, task, self._verifier_url)
            case Step.CLOSE_SESSION:
                await self._call(episode, step, self._resources_url, "/close_session", {}, _cookie(state))
        return None

    def _opening(self, state: EpisodeState, task: dict[str, Any]) -> dict[str, Any]:
        assert state.seeded is not None, "an agent session opens on a seeded resources session"
        messages = task.get("messages") or [{"role": "user", "content": str(task.get("prompt", ""))}]
        return {
            "messages": messages,
            "resources_url": self._resources_url,
            "cookie": state.seeded.cookie,
            "tools": list(state.seeded.tools),
        }

    async def _verify(
        self, episode: EpisodeId, state: EpisodeState, step: Step, task: dict[str, Any], url: str
    ) -> dict[str, Any]:
        assert state.worked is not None, "verification follows the work"
        body = {"task": task, "messages": list(state.worked.messages)}
        reply = await self._call(episode, step, url, "/verify", body, _cookie(state))
        if step is Step.JUDGE:
            self._judge_replays = reply.header(VERIFY_HEADER) == "replay"
        result = json.loads(reply.body)
        if not isinstance(result, dict):
            raise EpisodeFailed(f"{url}/verify answered no object")
        return _bounded(result, f"{url}/verify answered what no row can hold")

    async def _call(
        self, episode: EpisodeId, step: Step, url: str, path: str, body: dict[str, Any], cookie: str | None = None
    ) -> Reply:
        headers = [(IDEMPOTENCY_KEY, f"{episode.key}:{step}"), *of_run(self._episodes[episode].made_for)]
        if cookie is not None:
            headers.append(("cookie", f"{COOKIE}={cookie}"))
        return await call(self.ports, "POST", tagged(url, episode, path), json.dumps(body), headers=headers)

    async def _release(self, episode: EpisodeId, state: EpisodeState, work: Pass) -> None:
        """Free what a failed episode holds elsewhere; what cannot be reached has lost it already."""
        await work.begin()
        cookie = None
        if state.seeded is not None:
            cookie = state.seeded.cookie
            await self._let_go(episode, Step.CLOSE_AGENT, self._agent_url, "/v1/agent_sessions/close", None)
        # Without a cookie, too: of a seeding whose reply was lost the server knows the episode.
        await self._let_go(episode, Step.CLOSE_SESSION, self._resources_url, "/close_session", cookie)

    async def _let_go(self, episode: EpisodeId, step: Step, url: str, path: str, cookie: str | None) -> None:
        why = ""
        with anyio.move_on_after(RELEASE_BUDGET_S) as limit:
            try:
                await self._call(episode, step, url, path, {}, cookie)
            except Exception as error:  # as above: of a peer that answers nonsense, too
                if self.broken(error):
                    raise
                why = str(error) or repr(error)
        if why or limit.cancelled_caught:
            self.ports.tracer.emit(
                "episode.release_failed", episode=episode.key, step=str(step), why=why or "no answer in time"
            )

    # The participant.

    def live(self) -> Iterable[EpisodeId]:
        return self._episodes

    def counts(self) -> dict[str, int]:
        return {"episodes": len(self._episodes)}

    def restarts(self) -> set[str]:
        return {
            episode.key
            for episode, held in self._episodes.items()
            if held.state.seeded is not None and held.state.seeded.restart
        }

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        held = [(episode, self._episodes[episode]) for episode in sorted(scope) if episode in self._episodes]
        return [Record(episode, plain(each.exported())) for episode, each in held]

    async def check(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                state = msgspec.convert(record.state, EpisodeState)
            except msgspec.ValidationError as error:
                raise InvalidCheckpointState(f"episode {record.episode.key}: {error}") from None
            wrong = machine.flaw(state, judge=self._verifier_url is not None)
            if state.seeded is not None and not is_cookie_value(state.seeded.cookie):
                wrong = "its session's cookie is none"
            if wrong is not None:
                raise InvalidCheckpointState(f"episode {record.episode.key}: {wrong}")

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:
            state = msgspec.convert(record.state, EpisodeState)
            self._episodes[record.episode] = _Episode(state, self._timeout_s)

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self._episodes):
            del self._episodes[episode]

    def _forgotten_late(self, rollout_id: str) -> None:
        super()._forgotten_late(rollout_id)
        self._over.pop(rollout_id, None)

    def forget(self, rollout_ids: Iterable[str]) -> None:
        super().forget(rollout_ids)
        for rollout_id in rollout_ids:
            self._over.pop(rollout_id, None)


def _seeded(reply: Reply) -> Seeded:
    cookie = cookie_in(reply.header("set-cookie") or "", COOKIE)
    if cookie is None or not is_cookie_value(cookie):
        raise EpisodeFailed(f"the resources server seeded no session: its reply sets no usable cookie {COOKIE}")
    return Seeded(
        cookie=cookie,
        tools=tuple(json.loads(reply.body).get("tools", ())),
        replay_verify=reply.header(VERIFY_HEADER) == "replay",
        restart=reply.header(RESTART_HEADER) == "1",
    )


class _AgentReply(msgspec.Struct):
    status: str
    messages: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    reason: str | None = None


def _worked(reply: Reply) -> Worked:
    body = msgspec.convert(json.loads(reply.body), _AgentReply)
    if body.status != "finished":
        raise EpisodeFailed(f"the agent failed: {body.reason or 'it gave no reason'}")
    _bounded([body.messages, body.calls], "the agent answered what no row can hold")
    return Worked(tuple(body.messages), tuple(body.calls), body.finish_reason)


def _bounded(value: T, otherwise: str) -> T:
    """What becomes part of records, messages and rows, none of which may be nested deeper than a task. Raises
    `EpisodeFailed`: found later, it would fail whole checkpoints."""
    try:
        json.dumps(value, depth_max=TASK_DEPTH_MAX)
    except NotLossless as error:
        raise EpisodeFailed(f"{otherwise}: {error}") from None
    return value


def _cookie(state: EpisodeState) -> str:
    assert state.seeded is not None, "the session was seeded before this step"
    return state.seeded.cookie
