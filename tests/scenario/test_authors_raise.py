"""What an author's code raises in a call, and answers that nobody can use, are told where they fail an episode."""

from __future__ import annotations

import pytest

from gym_ckpt.errors import NotLossless
from gym_ckpt.limits import JSON_DEPTH_MAX, TASK_DEPTH_MAX
from gym_ckpt.participants.agent import CLAIM_PATH
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.wire import json
from sim.cluster import until
from sim.world import World
from tests.scenario.asserting_gym import Oops
from tests.scenario.servers import Ask, R, ask_servers, say, seeded


def run_of(task: object) -> bytes:
    return json.dumps({"episode_id": {"rollout_id": "r"}, "task": task})


@pytest.mark.parametrize("hook", ["seed", "verify", "close"])
def test_the_row_of_an_episode_whose_gym_raises_says_what_it_raised(hook: str) -> None:
    async def story(ask: Ask, _: World) -> None:
        reply = json.loads((await ask("environment", tagged("", R, "/run"), run_of({"raises": hook}))).body)
        assert reply["status"] == "failed"
        assert f"{hook} raised Oops('{hook} of r')" in reply["reason"]

    ask_servers(story, gym="tests.scenario.asserting_gym:Raises", logged=Oops)


def test_a_tool_that_raises_says_what_and_is_not_done_again() -> None:
    async def story(_: Ask, world: World) -> None:
        cookie = await seeded(world, {"raises": "tool"})
        reply = await say(world, R, "/count_items", {"item": "apple"}, cookie)
        assert reply.status == 500 and b"tool count_items raised Oops" in reply.body
        reply = await say(world, R, "/count_items", {"item": "apple"}, cookie)
        assert reply.status == 500 and b"an earlier call of this session broke off" in reply.body

    ask_servers(story, gym="tests.scenario.asserting_gym:Raises", logged=Oops)


@pytest.mark.parametrize("calls", ["5", '"text"', '{"a": 1}', "[5]", "null"])
def test_messages_of_any_form_are_judged(calls: str) -> None:
    async def story(_: Ask, world: World) -> None:
        cookie = await seeded(world)
        messages = [{"role": "assistant", "tool_calls": json.loads(calls.encode())}]
        reply = await say(world, R, "/verify", {"task": {}, "messages": messages}, cookie)
        assert reply.status == 200 and "reward" in json.loads(reply.body)

    ask_servers(story)


def test_messages_nested_too_deeply_to_be_judged_are_refused() -> None:
    async def story(_: Ask, world: World) -> None:
        cookie, deep = await seeded(world), b"[" * 300 + b"]" * 300
        body = b'{"task":{},"messages":[{"role":"assistant","tool_calls":[{"function":' + deep + b"}]}]}"
        reply = await world.client().request(
            "POST", f"http://inventory:80{tagged('', R, '/verify')}", headers=(cookie,), body=body
        )
        assert reply.status == 400 and b"invalid_request" in reply.body

    ask_servers(story)


@pytest.mark.parametrize("depth", [TASK_DEPTH_MAX, *range(TASK_DEPTH_MAX + 1, JSON_DEPTH_MAX + 2, 4), JSON_DEPTH_MAX])
def test_a_verdict_that_no_row_can_hold_fails_its_episode_and_no_checkpoint(depth: int) -> None:
    """A row, and a record, hold it a little deeper than the verifier's answer did."""

    async def story(ask: Ask, _: World) -> None:
        reply = await ask("environment", tagged("", R, "/run"), run_of({"depth": depth}))
        said = json.loads(reply.body)
        assert reply.status == 200 and said["status"] == ("finished" if depth <= TASK_DEPTH_MAX else "failed")
        assert said["status"] == "finished" or "nested" in said["reason"] or "raised NotLossless" in said["reason"]

    logged = NotLossless if depth > JSON_DEPTH_MAX else None
    ask_servers(story, gym="tests.scenario.asserting_gym:Deep", logged=logged)


def test_a_claim_that_reaches_no_model_server_is_answered_so() -> None:
    async def story(ask: Ask, world: World) -> None:
        path = tagged("", R, CLAIM_PATH)
        assert (await ask("agent", path, b"{}")).status == 200
        world.nodes["policy"].crash()
        reply = await ask("agent", path, b"{}")
        assert reply.status == 502 and b"no answer of the policy-model server" in reply.body
        world.nodes["policy"].start()
        await until(world, lambda: False, 0.5)
        assert (await ask("agent", path, b"{}")).status == 200

    ask_servers(story)
