"""A failed episode frees what it holds elsewhere, whichever of its servers cannot be reached."""

from __future__ import annotations

import pytest

from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.wire import json
from sim.fates import CalmFates, ExchangeFate
from sim.world import World
from tests.scenario.asserting_gym import CLOSED
from tests.scenario.servers import Ask, R, ask_servers


class Lost(CalmFates):
    """Some calls take effect, and nobody hears of it; others never arrive, and nobody hears of that."""

    def __init__(self, path: str, *, hangs: bool = False) -> None:
        self._path = path
        self._hangs = hangs

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        if not path.endswith(self._path):
            return super().exchange(src, dst, method, path)
        return ExchangeFate(lose="before" if self._hangs else "after", hang=self._hangs)


@pytest.mark.parametrize("trouble", ["agent is down", "agent is silent", "reply to the seeding is lost"])
def test_a_failed_episode_leaves_no_session_behind(trouble: str) -> None:
    async def story(ask: Ask, world: World) -> None:
        match trouble:
            case "agent is down":
                world.nodes["agent"].crash()
            case "agent is silent":
                world.network.fates = Lost("/v1/agent_sessions/close", hangs=True)
            case _:
                world.network.fates = Lost("/seed_session")
        body = b'{"episode_id":{"rollout_id":"r"},"task":{}}'
        reply = json.loads((await ask("environment", tagged("", R, "/run"), body)).body)
        assert reply["status"] == "failed", reply
        assert len(CLOSED) == 1, "what its session holds outside is freed"
        if trouble == "agent is down":
            world.nodes["agent"].start()

    CLOSED.clear()
    ask_servers(story, gym="tests.scenario.asserting_gym:Frees")
