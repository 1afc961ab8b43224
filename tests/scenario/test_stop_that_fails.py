"""The last checkpoint of a stop frees what sessions hold outside; should the run go on all the same, so do they."""

from __future__ import annotations

import anyio
import pytest

from gym_ckpt.participants.resources import COOKIE
from gym_ckpt.ports import Reply
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.world import World
from tests.scenario.asserting_gym import SANDBOXES
from tests.scenario.servers import FAR, Ask, R, ask_servers


class Servers:
    """The resources server as its callers see it."""

    def __init__(self, ask: Ask, world: World) -> None:
        self._ask = ask
        self.world = world
        self._cookie = ""

    async def call(self, episode: EpisodeId, path: str, body: object) -> Reply:
        url = f"http://inventory:80{tagged('', episode, path)}"
        headers = (("cookie", f"{COOKIE}={self._cookie}"),)
        reply = await self.world.client().request("POST", url, headers=headers, body=json.dumps(body))
        self._cookie = json.loads(reply.body).get("session_id", self._cookie)
        return reply

    async def control(self, operation: str, checkpoint_id: str, *, attempt: int = 0, stop: bool = True) -> None:
        body: dict[str, object] = {"checkpoint_id": checkpoint_id, "deadline_ts": FAR, "budget_s": 5.0}
        if operation in ("commit", "restore"):
            body |= {"checkpoint_dir": f"/run/{checkpoint_id.removeprefix('of-')}"}
            body |= {"episode_ids": [{"rollout_id": "r", "attempt": attempt}]}
        if operation == "commit":
            body |= {"stop": stop}
        reply = await self._ask("inventory", CONTROL_PREFIX + operation, json.dumps(body))
        assert reply.status == 200, reply.body

    async def stop(self, checkpoint_id: str) -> None:
        await self.control("prepare", checkpoint_id)
        await self.control("commit", checkpoint_id)


@pytest.mark.parametrize("waits", [False, True])
def test_sessions_that_a_failed_stop_has_freed_open_again_for_their_next_call(waits: bool) -> None:
    async def story(ask: Ask, world: World) -> None:
        on = Servers(ask, world)
        await on.call(R, "/seed_session", {"task": {}})
        await on.call(R, "/add_item", {"item": "apple", "amount": 2})
        await on.stop("one")
        if waits:
            await world.sleep(1.0)
            assert SANDBOXES == [], "the stop frees what is durable"
        await on.control("resume", "one")
        added = await on.call(R, "/add_item", {"item": "apple", "amount": 1})
        assert json.loads(added.body)["result"]["count"] == 3 and len(SANDBOXES) == 1
        await on.stop("two")
        await on.control("resume", "two")
        await on.stop("three")
        await on.control("resume", "three")
        judged = await on.call(R, "/verify", {"task": {}, "messages": []})
        assert json.loads(judged.body)["items"]["apple"] == 3, "a session that nobody has called is exported as it was"
        assert (await on.call(R, "/close_session", {})).status == 200 and SANDBOXES == []

    SANDBOXES.clear()
    ask_servers(story, gym="tests.scenario.asserting_gym:Sandboxed")


def test_what_is_judged_while_a_stop_frees_its_session_is_judged_again() -> None:
    """A verification that may be replayed runs on while the checkpoint is taken."""

    async def story(ask: Ask, world: World) -> None:
        on = Servers(ask, world)
        await on.call(R, "/seed_session", {"task": {}})
        replies: list[Reply] = []

        async def judge() -> None:
            replies.append(await on.call(R, "/verify", {"task": {"takes_s": 2.0}, "messages": []}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(judge)
            await world.sleep(0.5)
            await on.stop("one")
            await world.sleep(4.0)
            assert replies == [] and SANDBOXES == []
            await on.control("resume", "one")
        assert [reply.status for reply in replies] == [200] and len(SANDBOXES) == 1

    SANDBOXES.clear()
    ask_servers(story, gym="tests.scenario.asserting_gym:Sandboxed")


def test_a_session_that_waits_to_be_closed_is_freed_once() -> None:
    async def story(ask: Ask, world: World) -> None:
        on = Servers(ask, world)
        await on.call(R, "/seed_session", {"task": {}})
        await on.stop("one")
        await on.control("resume", "one")
        assert json.loads((await on.call(R, "/close_session", {})).body) == {"closed": True}
        await world.sleep(1.0)
        assert SANDBOXES == []
        assert (await on.call(R, "/count_items", {"item": "apple"})).status == 404

    SANDBOXES.clear()
    ask_servers(story, gym="tests.scenario.asserting_gym:Sandboxed")
