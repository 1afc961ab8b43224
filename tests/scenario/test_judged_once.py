"""A verification that waits has effects: however often its call is repeated, they happen once (INV-3)."""

from __future__ import annotations

import anyio
import pytest

from gym_ckpt.errors import PeerTimeout
from gym_ckpt.participants import resources
from gym_ckpt.ports import Reply
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.runtime.peer import IDEMPOTENCY_KEY
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.cluster import until
from sim.world import World
from tests.scenario.asserting_gym import JUDGED
from tests.scenario.servers import FAR, Ask, R, ask_servers, say, seeded


@pytest.mark.parametrize("gym", ["Judges", "JudgesAnswers"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_verification_is_done_once_however_often_it_is_asked_for(gym: str, fails: bool) -> None:
    async def story(_: Ask, world: World) -> None:
        cookie, key = await seeded(world), (IDEMPOTENCY_KEY, "r:verify")
        body = {"task": {"fails": fails}}
        with pytest.raises(PeerTimeout):
            await say(world, R, "/verify", body, cookie, key, timeout_s=0.1)
        replies: list[Reply] = []

        async def again() -> None:
            replies.append(await say(world, R, "/verify", body, cookie, key))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(again)
            tasks.start_soon(again)
        await again()
        assert len(JUDGED) == 1 and len({reply.body for reply in replies}) == 1, replies
        assert {reply.status for reply in replies} == {500 if fails else 200}
        for other in ((IDEMPOTENCY_KEY, "r:judge"), ("x-none", "1")):
            assert (await say(world, R, "/verify", {"task": {}}, cookie, other)).status == 200
        assert len(JUDGED) == 3, "another step, and a call without a key, are others"

    JUDGED.clear()
    ask_servers(story, gym=f"tests.scenario.asserting_gym:{gym}", logged=RuntimeError if fails else None)


@pytest.mark.parametrize(("gym", "waits"), [("Judges", True), ("JudgesAnew", False)])
def test_a_checkpoint_waits_for_a_verification_that_may_not_be_replayed_and_for_no_other(gym: str, waits: bool) -> None:
    async def story(ask: Ask, world: World) -> None:
        rows: list[Reply] = []

        async def run() -> None:
            task = {"episode_id": {"rollout_id": "r"}, "task": {}}
            rows.append(await ask("environment", tagged("", R, "/run"), json.dumps(task)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            assert await until(world, lambda: bool(JUDGED), 60.0, 0.01)
            asked = {"checkpoint_id": "c", "deadline_ts": FAR, "budget_s": 0.3}
            reply = json.loads((await ask("environment", CONTROL_PREFIX + "prepare", json.dumps(asked))).body)
            assert (reply["report"]["ready"], reply["report"]["blockers"]) == (not waits, ["r"] * waits)
            assert (await ask("environment", CONTROL_PREFIX + "resume", json.dumps(asked))).status == 200
        assert json.loads(rows[0].body)["status"] == "finished" and len(JUDGED) == 1

    JUDGED.clear()
    ask_servers(story, gym=f"tests.scenario.asserting_gym:{gym}")


def test_what_is_kept_of_verifications_is_bounded_and_goes_with_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "VERIFICATIONS_KEPT", 3)

    async def story(ask: Ask, world: World) -> None:
        async def judged(name: str) -> int:
            key = (IDEMPOTENCY_KEY, f"{name}:verify")
            return int(json.loads((await say(world, EpisodeId(name), "/verify", {"task": {}}, key)).body)["times"])

        assert [await judged(name) for name in ("a", "b", "a")] == [1, 2, 1]
        body = {"rollout_ids": ["a"], "deadline_ts": FAR, "budget_s": 5.0}
        assert (await ask("inventory", CONTROL_PREFIX + "forget", json.dumps(body))).status == 200
        assert [await judged(name) for name in ("a", "b")] == [3, 2], "forgotten, and known"
        assert [await judged(name) for name in ("c", "d", "e", "e")] == [4, 5, 6, 6]
        assert await judged("b") == 7, "the oldest goes first"

    JUDGED.clear()
    ask_servers(story, gym="tests.scenario.asserting_gym:JudgesAnswers")
