"""What an environment keeps of episodes that are over is bounded where nobody forgets them (INV-39)."""

from __future__ import annotations

import pytest

from gym_ckpt.participants import environment
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from sim.world import World
from tests.scenario.asserting_gym import Oops
from tests.scenario.servers import Ask, ask_servers


def test_an_environment_knows_the_newest_of_the_episodes_that_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "OVER_KEPT", 3)

    async def story(ask: Ask, _: World) -> None:
        async def run(name: str, attempt: int = 0) -> int:
            body = {"episode_id": {"rollout_id": name, "attempt": attempt}, "task": {"raises": "seed"}}
            reply = await ask("environment", tagged("", EpisodeId(name, attempt), "/run"), json.dumps(body))
            return reply.status

        assert [await run(name) for name in "abc"] == [200, 200, 200]
        assert [await run(name) for name in "abc"] == [409, 409, 409], "each has run"
        assert await run("a", 1) == 200, "which makes it the newest"
        assert await run("d") == 200
        assert [await run(name) for name in "acd"] == [409, 409, 409]
        assert await run("b") == 200, "the oldest is not known any more"

    ask_servers(story, gym="tests.scenario.asserting_gym:Raises", logged=Oops)
