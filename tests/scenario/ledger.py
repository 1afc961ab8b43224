"""The words of the ledger's scenarios: two policy-model servers that share a ledger, driven over their own routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from gym_ckpt.participants.ledger_routes import LEDGER_ROOT
from gym_ckpt.participants.model import MODEL_CLAIM_PATH, STARTED_PATH
from gym_ckpt.ports import Ports, Reply
from gym_ckpt.runtime.asgi import Answer as Response
from gym_ckpt.runtime.asgi import Request, Route, Router, respond, tagged
from gym_ckpt.runtime.serve import run_server
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID, CONTROL_PREFIX
from sim.cluster import LEDGER, TOKEN, Options, settings_of
from sim.fates import Fates
from sim.node import Main
from sim.oracle.ledger import FENCE, ROWS, STARTED, Shelf
from sim.workload import SECOND_POLICY, workload
from sim.world import World

CAPTURED = 1
POLICIES = ("policy", SECOND_POLICY)
USER = {"role": "user", "content": "hello [[turns=0 tokens=20]]"}
BUDGET_S = 20.0


class Shop:
    """The servers, and what can be asked of them. `answer`: what the worker says instead of a model, when set."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gym = settings_of(workload(CAPTURED), Options())
        self.shelf = Shelf(world.disk, LEDGER)
        self.answer: bytes | None = None
        self.leave_at: str | None = None
        """A call's caller goes away at this event of the trace."""
        self._calls: dict[str, anyio.CancelScope] = {}

    def server(self, name: str) -> Main:
        async def main(ports: Ports) -> None:
            if name == "worker" and self.answer is not None:
                app = Router((Route("POST", "/v1/chat/completions", stream=self._canned),))
                await ports.server.serve(app, self.gym.url(name), ready=lambda: None)
            await run_server(self.gym, name, ports, ready=lambda: None)

        return main

    async def _canned(self, request: Request, send: Any) -> None:
        await request.body()
        assert self.answer is not None
        await respond(send, Response(self.answer))

    # The data plane.

    async def call(self, server: str, episode: EpisodeId, call_id: str, *messages: dict[str, Any]) -> Reply | None:
        """One model call; None when its caller went away."""
        body = json.dumps({"messages": list(messages or (USER,))})
        url = tagged(self.gym.url(server), episode, "/v1/chat/completions")
        with anyio.CancelScope() as self._calls[call_id]:
            return await self.world.client().request("POST", url, headers=((CALL_ID, call_id),), body=body)
        return None

    def leave(self, call_id: str) -> None:
        self._calls[call_id].cancel()

    async def claim(self, server: str, episode: EpisodeId) -> Reply:
        return await self.world.client().request("POST", tagged(self.gym.url(server), episode, MODEL_CLAIM_PATH))

    # Control.

    async def ask(self, server: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        headers = (("authorization", f"Bearer {TOKEN}"),)
        url = self.gym.url(server) + path
        reply = await self.world.client().request("POST", url, headers=headers, body=json.dumps(body))
        return reply.status, json.loads(reply.body)

    async def control(self, operation: str, checkpoint_id: str = "c", **more: Any) -> list[tuple[int, Any]]:
        """The same operation on both servers."""
        body = {"checkpoint_id": checkpoint_id, **_times(), **more}
        return [await self.ask(server, CONTROL_PREFIX + operation, body) for server in POLICIES]

    async def checkpoint(self, checkpoint_id: str, *scope: EpisodeId, where: str = "/run/a") -> list[Any]:
        """Prepare, commit, resume; the commit's replies."""
        await self.control("prepare", checkpoint_id)
        done = await self.control("commit", checkpoint_id, checkpoint_dir=where, episode_ids=_refs(scope))
        await self.control("resume", checkpoint_id)
        assert all(status == 200 for status, _ in done), done
        return [body for _, body in done]

    async def restore(self, restore_id: str, *scope: EpisodeId, where: str = "/run/a") -> None:
        """Kill both servers, start them, restore, resume."""
        await self.restart()
        done = await self.control("restore", restore_id, checkpoint_dir=where, episode_ids=_refs(scope))
        assert all(status == 200 for status, _ in done), done
        await self.control("resume", restore_id)

    async def restart(self) -> None:
        for name in POLICIES:
            self.world.nodes[name].crash()
            self.world.nodes[name].start()
        await settle()

    async def retire(self, *episodes: EpisodeId) -> None:
        done = [
            await self.ask(s, CONTROL_PREFIX + "retire", {"episode_ids": _refs(episodes), **_times()}) for s in POLICIES
        ]
        assert all(status == 200 for status, _ in done), done

    async def forget(self, *rollouts: str) -> None:
        done = [
            await self.ask(s, CONTROL_PREFIX + "forget", {"rollout_ids": list(rollouts), **_times()}) for s in POLICIES
        ]
        assert all(status == 200 for status, _ in done), done

    async def started(self, server: str, episode: EpisodeId, call_id: str) -> bool:
        calls = [{"capture_key": episode.key, "model_call_id": call_id}]
        _, reply = await self.ask(server, STARTED_PATH, {"calls": calls})
        return bool(reply["started"] == [call_id])

    async def ledger(self, server: str, operation: str, *episodes: EpisodeId, keep: Any = ()) -> tuple[int, Any]:
        """`keep`: staging keys that a sweep must not remove."""
        times = _times() if operation in ("retire", "delete", "sweep") else {}
        what = {"staging_keys": list(keep)} if operation == "sweep" else {"episode_ids": _refs(episodes)}
        return await self.ask(server, LEDGER_ROOT + operation, {**what, **times})

    # The files.

    def rows(self, episode: EpisodeId) -> list[str]:
        return [row["model_call_id"] for row in self.shelf.rows(episode.key)]

    def poison(self, episode: EpisodeId) -> list[str]:
        return [entry["reason"] for entry in self.shelf.lines(f"{episode.key}.lineage.poison")]

    def fenced(self, episode: EpisodeId) -> bool:
        return self.shelf.has(episode.key + FENCE)

    def marked(self, episode: EpisodeId) -> bool:
        return self.shelf.has(episode.key + STARTED)

    def there(self, episode: EpisodeId) -> bool:
        return self.shelf.has(episode.key + ROWS)


def said(reply: Reply | None) -> dict[str, Any]:
    """The assistant's message in an answer."""
    assert reply is not None and reply.status == 200, reply
    message: dict[str, Any] = json.loads(reply.body)["choices"][0]["message"]
    return message


async def settle(seconds: float = 1.0) -> None:
    await anyio.sleep(seconds)


Story = Callable[[Shop], Awaitable[None]]


def play(story: Story, *, answer: bytes | None = None, fates: Fates | None = None) -> None:
    """Tell one story, in a calm world if nothing else is said. Anything that goes wrong in a server fails it."""
    world = World(1, fates)
    shop = Shop(world)
    shop.answer = answer
    for path in (LEDGER, "/run"):
        world.disk.make_dirs(path)
    for name in (*POLICIES, "worker"):
        world.add_node(name, shop.server(name))

    def saw(row: Any) -> None:
        if shop.leave_at == row.event:
            world.clock.call_after(0.0, shop.leave, row.fields["call"])

    world.trace.subscribe(saw, ("gate.started", "gate.held", "gate.row"))

    async def script(world: World) -> None:
        for node in world.nodes.values():
            node.start()
        await settle()
        await story(shop)

    world.run(script, horizon_s=1000).check()


def _times() -> dict[str, Any]:
    return {"deadline_ts": 4e9, "budget_s": BUDGET_S}


def _refs(episodes: Any) -> list[dict[str, Any]]:
    return [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in episodes]
