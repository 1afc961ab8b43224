"""An agent whose engine is full, starting, or gone: it makes its call again, at its boundary, for as long as makes
sense."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from gym_ckpt.core.patience import Patience, asked_s
from gym_ckpt.limits import (
    MODEL_REFUSED_BUDGET_S,
    MODEL_REFUSED_MAX_S,
    MODEL_RETRY_AFTER_MAX_S,
    PEER_RETRY_BUDGET_S,
    PEER_RETRY_MAX_S,
    REFUSAL_SAID_BYTES,
)
from gym_ckpt.participants.agent import AgentParticipant
from gym_ckpt.participants.model import STARTED_PATH
from gym_ckpt.ports import Ports, Send
from gym_ckpt.runtime.asgi import Answer, Request, Route, Router, episode_context, respond, tagged
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.install import install
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID, CONTROL_PREFIX
from sim.cluster import until
from sim.node import WALL_START_S
from sim.world import World

R = EpisodeId("r")
TOKEN = "told"
GOOD = json.dumps({
    "choices": [{"message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7},
})  # fmt: skip
FULL = b'{"error": {"message": "the queue is full", "type": "overloaded"}}'
TAKEN = b'{"error": {"code": "call_id_taken", "detail": "call r.c0.1 of r has a row already"}}'
OPENED = json.dumps({"messages": [], "resources_url": "http://nobody:80", "cookie": "c"})


@dataclass
class Engine:
    """Answers its calls in this order, the last one for ever. `calls`: when each came, and under which id."""

    answers: list[tuple[int, dict[str, str]]]
    calls: list[tuple[float, str]] = field(default_factory=list)

    async def main(self, ports: Ports) -> None:
        routes = (
            Route("POST", "/v1/chat/completions", stream=self._serve),
            Route("POST", STARTED_PATH, self._started),
        )
        await ports.server.serve(episode_context(Router(routes)), "http://policy:80", ready=lambda: None)

    async def _started(self, request: Request) -> Answer:
        return Answer(b'{"started":[]}')

    async def _serve(self, request: Request, send: Send) -> None:
        await request.body()
        self.calls.append((anyio.current_time(), str(request.header(CALL_ID))))
        status, headers = self.answers[min(len(self.calls), len(self.answers)) - 1]
        body = {200: GOOD, 409: TAKEN, 413: FULL + b" " * 10_000}.get(status, FULL)
        await respond(send, Answer(body, status, tuple(headers.items())))

    @property
    def waits(self) -> list[float]:
        times = [at for at, _ in self.calls]
        return [later - sooner for sooner, later in zip(times, times[1:], strict=False)]


async def agent(ports: Ports) -> None:
    async with Tasks() as tasks:
        it = AgentParticipant(
            "agent", ports, tasks, model_urls=["http://policy:80"], token=TOKEN, max_steps=5, stream=False,
            max_tokens=None,
        )  # fmt: skip
        app = install(Router(it.routes()), ControlPlane(it, tasks, grace_s=900.0), TOKEN, ())
        await ports.server.serve(app, "http://agent:80", ready=lambda: None)


@dataclass
class Stage:
    world: World
    engine: Engine
    result: dict[str, Any] = field(default_factory=dict)

    async def post(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        headers = (("authorization", f"Bearer {TOKEN}"),)
        reply = await self.world.client().request("POST", f"http://agent:80{path}", headers=headers, body=body)
        return reply.status, json.loads(reply.body)

    async def respond(self) -> None:
        self.result = (await self.post(tagged("", R, "/v1/responses"), b"{}"))[1]

    async def control(self, operation: str, checkpoint_id: str = "c", **more: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"checkpoint_id": checkpoint_id, "deadline_ts": 4e9, **more})
        return await self.post(CONTROL_PREFIX + operation, body)


def play(answers: list[tuple[int, dict[str, str]]], story: Callable[[Stage], Awaitable[None]]) -> None:
    """Tell it with the session at work from the start."""
    world, engine = World(1), Engine(answers)
    world.add_node("policy", engine.main)
    world.add_node("agent", agent)

    async def script(world: World) -> None:
        for node in ("policy", "agent"):
            world.nodes[node].start()
        await until(world, lambda: False, 0.1)
        stage = Stage(world, engine)
        assert (await stage.post(tagged("", R, "/v1/agent_sessions"), OPENED))[0] == 200
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.respond)
            await until(world, lambda: bool(engine.calls), 1.0)
            await story(stage)
            tasks.cancel_scope.cancel()

    world.run(script, horizon_s=3000).check()


async def ended(stage: Stage, within_s: float = 1500.0) -> dict[str, Any]:
    await until(stage.world, lambda: bool(stage.result), within_s)
    return stage.result


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("asks", [{"retry-after": "2"}, {"retry-after-ms": "2000", "retry-after": "9"}])
def test_a_refused_call_is_made_again_when_the_engine_asks_for_it(status: int, asks: dict[str, str]) -> None:
    async def story(stage: Stage) -> None:
        result = await ended(stage)
        assert result["status"] == "finished", result
        assert len(stage.engine.calls) == 4 and all(2.0 <= wait < 3.1 for wait in stage.engine.waits)
        assert len({call_id for _, call_id in stage.engine.calls}) == 4, "each try has an id of its own"

    play([(status, asks)] * 3 + [(200, {})], story)


def test_an_engine_that_does_not_say_for_how_long_is_asked_less_and_less_often() -> None:
    async def story(stage: Stage) -> None:
        result = await ended(stage)
        assert result["status"] == "failed" and "429" in result["reason"] and "the queue is full" in result["reason"]
        waits = stage.engine.waits
        assert waits[0] < 1.0 and all(wait <= MODEL_REFUSED_MAX_S + 1 for wait in waits)
        assert MODEL_REFUSED_BUDGET_S / 2 < sum(waits) <= MODEL_REFUSED_BUDGET_S + MODEL_REFUSED_MAX_S

    play([(429, {})], story)


def test_an_engine_that_asks_for_an_hour_is_asked_sooner() -> None:
    async def story(stage: Stage) -> None:
        assert (await ended(stage))["status"] == "finished"
        assert MODEL_RETRY_AFTER_MAX_S <= stage.engine.waits[0] <= MODEL_RETRY_AFTER_MAX_S * 1.5 + 1

    play([(503, {"retry-after": "3600"}), (200, {})], story)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_call_that_may_have_been_executed_is_not_tried_for_as_long(status: int) -> None:
    async def story(stage: Stage) -> None:
        result = await ended(stage)
        assert result["status"] == "failed" and str(status) in result["reason"]
        assert PEER_RETRY_BUDGET_S / 2 < sum(stage.engine.waits) <= PEER_RETRY_BUDGET_S + PEER_RETRY_MAX_S

    play([(status, {"retry-after": "3600"})], story)


def test_a_call_whose_copy_was_faster_is_made_again_under_another_id_and_the_taken_one_never() -> None:
    async def story(stage: Stage) -> None:
        assert (await ended(stage))["status"] == "finished"
        assert [call_id for _, call_id in stage.engine.calls] == ["r.c0.1", "r.c0.2"]

    play([(409, {}), (200, {})], story)


def test_a_gate_that_takes_every_id_for_another_calls_is_given_up() -> None:
    async def story(stage: Stage) -> None:
        result = await ended(stage)
        assert result["status"] == "failed" and "has a row already" in result["reason"]
        assert sum(stage.engine.waits) <= PEER_RETRY_BUDGET_S + PEER_RETRY_MAX_S
        assert len({call_id for _, call_id in stage.engine.calls}) == len(stage.engine.calls)

    play([(409, {})], story)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_call_that_is_wrong_fails_at_once_with_the_engines_own_words(status: int) -> None:
    async def story(stage: Stage) -> None:
        result = await ended(stage)
        assert result["status"] == "failed" and "the queue is full" in result["reason"]
        assert len(result["reason"]) < REFUSAL_SAID_BYTES + 100, "as much of them as says something"
        assert len(stage.engine.calls) == 1

    play([(status, {})], story)


def test_no_checkpoint_waits_for_a_full_engine_and_the_session_is_in_it() -> None:
    """Two checkpoints in one pause: a reopened admission does not make work of it."""

    async def story(stage: Stage) -> None:
        await until(stage.world, lambda: False, 1.0)
        for checkpoint_id in ("c1", "c2"):
            status, said = await stage.control("prepare", checkpoint_id, budget_s=2.0)
            assert (status, said["phase"]) == (200, "prepared"), said
            body = {"episode_ids": [{"rollout_id": "r", "attempt": 0}], "checkpoint_dir": f"/run/{checkpoint_id}"}
            status, said = await stage.control("commit", checkpoint_id, **body)
            assert status == 200, said
            status, said = await stage.control("resume", checkpoint_id)
            assert status == 200, said
        assert len(stage.engine.calls) == 1
        assert (await ended(stage))["status"] == "finished"

    play([(429, {"retry-after": "30"}), (200, {})], story)


def test_a_call_whose_pause_ends_in_a_checkpoint_is_made_when_that_is_over_and_has_not_paid_for_it() -> None:
    async def story(stage: Stage) -> None:
        assert (await stage.control("prepare", budget_s=2.0))[0] == 200
        await until(stage.world, lambda: False, MODEL_REFUSED_BUDGET_S + 10)
        assert len(stage.engine.calls) == 1
        assert (await stage.control("resume"))[0] == 200
        assert (await ended(stage))["status"] == "finished"

    play([(429, {"retry-after": "5"}), (429, {"retry-after": "5"}), (200, {})], story)


@pytest.mark.parametrize("how", ["retire", "close"])
def test_the_end_of_its_attempt_ends_the_pause_at_once(how: str) -> None:
    async def story(stage: Stage) -> None:
        if how == "close":
            assert (await stage.post(tagged("", R, "/v1/agent_sessions/close"), b"{}"))[0] == 200
        else:
            body = json.dumps({"episode_ids": [{"rollout_id": "r", "attempt": 0}], "deadline_ts": 4e9})
            assert (await stage.post(CONTROL_PREFIX + "retire", body))[0] == 200
        await ended(stage, 1.0)
        assert stage.result and len(stage.engine.calls) == 1

    play([(429, {"retry-after": "50"})], story)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:10 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Tue, 99 Nov 2023 99:13:10 GMT"}, None),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
    ],
)
def test_what_an_engine_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_s(headers, WALL_START_S) == seconds


def test_the_time_that_tries_take_counts_from_the_first_failure_on() -> None:
    """A generation may have taken hours when its engine breaks off."""
    patience = Patience()
    assert patience.pause_s(502, None, 100 * PEER_RETRY_BUDGET_S) is not None
    assert patience.pause_s(502, None, PEER_RETRY_BUDGET_S) is None


def test_a_lost_connection_after_long_refusals_is_tried_again_too() -> None:
    patience = Patience()
    for _ in range(5):
        assert patience.pause_s(429, 60.0, 0.0) == 60.0
    assert patience.pause_s(None, None, 0.0) is not None
    assert patience.pause_s(418, None, 0.0) is None
