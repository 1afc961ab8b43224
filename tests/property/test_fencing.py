"""What a call of a checkpoint that is over is told, whatever else stands in its way: `stale_checkpoint`, and at once.

A controller that came late must learn that it is late. Any other refusal tells it to do something about a checkpoint
that nobody can do anything about: to leave a row out of its scope, to wait for another one, to try again in time.
"""

from __future__ import annotations

from typing import Any, Literal

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ckpt.ports import Ports
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.types import EpisodeId
from sim.world import World
from tests.property.toys import URL, Toy, control, serve

R, S, T = EpisodeId("r"), EpisodeId("s"), EpisodeId("t")
OPERATIONS = ("prepare", "commit", "restore", "renew")
HELD_S = 30.0
Beside = Literal["", "prepare", "restore"]


class Restarting(Toy):
    """Its episodes are restarts; giving one of them up takes long, during which the transition lock is held."""

    def restarts(self) -> set[str]:
        return {R.key}

    async def release(self, episodes: Any) -> None:
        await anyio.sleep(HELD_S if S in episodes else 0)


def target(operation: str, directory: str) -> dict[str, Any]:
    if operation not in ("commit", "restore"):
        return {}
    return {"checkpoint_dir": directory, "episode_ids": [{"rollout_id": "r", "attempt": 0}]}


@settings(max_examples=60, deadline=None)
@given(
    operation=st.sampled_from(OPERATIONS),
    was=st.sampled_from(["prepare", "restore", "nothing"]),
    served=st.booleans(),
    beside=st.sampled_from(["", "prepare", "restore"]),
    held=st.booleans(),
    late=st.booleans(),
    directory=st.sampled_from(["/run/c", "/run/other", "not absolute"]),
)
def test_a_late_call_is_told_that_it_is_stale_before_anything_else(
    operation: str, was: str, served: bool, beside: Beside, held: bool, late: bool, directory: str
) -> None:
    async def script(world: World) -> None:
        node = world.nodes["model"]
        node.start()
        await anyio.sleep(0.1)
        if was != "nothing":
            await control(world, was, "old", **target(was, "/run/nowhere"))
        assert (await control(world, "resume", "old"))[0] == 200
        if served:
            assert (await world.client().request("POST", tagged(URL, T, "/add"), body=b"{}")).status == 200
        async with anyio.create_task_group() as tasks:
            if held:
                retired = [{"rollout_id": S.rollout_id, "attempt": 0}]
                tasks.start_soon(lambda: control(world, "retire", budget_s=HELD_S, episode_ids=retired))
                await anyio.sleep(0.1)
            elif beside:
                await control(world, beside, "another", budget_s=5.0, **target(beside, "/run/nowhere"))
            began = world.now
            told = {"budget_s": -1.0 if late else 1.0, **target(operation, directory)}
            status, reply = await control(world, operation, "old", **told)
            assert (status, reply["error"]["code"]) == (409, "stale_checkpoint"), reply
            assert world.now - began < 0.1, "it need not wait to know"
            tasks.cancel_scope.cancel()

    async def main(ports: Ports) -> None:
        await serve(Restarting("model", ports), URL, 60.0)

    world = World(1)
    world.disk.make_dirs("/run")
    world.add_node("model", main)
    assert not world.run(script, 120.0).errors
