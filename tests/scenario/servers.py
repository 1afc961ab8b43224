"""The words of scenarios that call a gym's servers one by one, without a controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from gym_ckpt.ports import Reply
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.settings import ResourcesSettings
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from sim.cluster import TOKEN, Cluster, Options, until
from sim.workload import workload
from sim.world import World

R = EpisodeId("r")
FAR = 4_000_000_000.0
Ask = Callable[[str, str, bytes], Awaitable[Reply]]
Header = tuple[str, str]


def ask_servers(
    story: Callable[[Ask, World], Awaitable[None]],
    *,
    number: int = 0,
    gym: str = "inventory",
    logged: type[Exception] | None = None,
) -> None:
    """Servers of a calm gym, without a controller; anything that a server cannot bear fails the test.

    `logged`: what authors' code raises, and servers log; nothing else, and it at least once.
    """
    world = World(1)
    settings = Cluster(world, workload(number), Options()).gym.servers
    inventory = settings["inventory"]
    assert isinstance(inventory, ResourcesSettings)
    settings["inventory"] = msgspec.structs.replace(inventory, gym=gym)

    async def script(world: World) -> None:
        for name in settings:
            world.nodes[name].start()
        await until(world, lambda: False, 0.5)

        async def ask(server: str, path: str, body: bytes) -> Reply:
            return await world.client().request(
                "POST", f"http://{server}:80{path}", headers=(("authorization", f"Bearer {TOKEN}"),), body=body
            )

        await story(ask, world)
        assert all(world.nodes[name].alive for name in settings)

    result = world.run(script, horizon_s=1000)
    if logged is None:
        result.check()
    else:
        assert {type(failure.error) for failure in result.errors} == {logged}, result.errors


async def say(
    world: World, episode: EpisodeId, path: str, body: object, *headers: Header, timeout_s: float | None = None
) -> Reply:
    """A call of the resources server for an episode."""
    url = f"http://inventory:80{tagged('', episode, path)}"
    return await world.client().request("POST", url, headers=headers, body=json.dumps(body), timeout_s=timeout_s)


async def seeded(world: World, task: object = None, episode: EpisodeId = R) -> Header:
    """The cookie of a session that is opened with this task."""
    opened = await say(world, episode, "/seed_session", {"task": task or {}})
    assert opened.status == 200, opened
    return ("cookie", (opened.header("set-cookie") or "").partition(";")[0])
