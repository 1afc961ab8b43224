"""A wrong method on a path that there is looks like that, and not like a server without the path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.participants.ledger_routes import LEDGER_ROOT
from gym_ckpt.participants.model import STARTED_PATH
from gym_ckpt.ports import Receive, Reply, Scope, Send
from gym_ckpt.runtime.asgi import Answer, Request, Route, Router
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX, ROLLOUT_PREFIX
from sim.cluster import TOKEN, Cluster, Options, until
from sim.workload import workload
from sim.world import World
from tests.unit.adapters.loopback import Application, serving

PARTICIPANTS = ("environment", "agent", "inventory", "policy")
OPERATIONS = ("prepare", "renew", "commit", "restore", "resume", "retire", "forget")
LEDGERS = ("manifest", "verify", "retire", "delete", "sweep")
POST, GET = "POST", "GET, HEAD"
DATA = (
    ("environment", "/run", POST),
    ("agent", "/v1/agent_sessions", POST),
    ("agent", "/v1/responses", POST),
    ("inventory", "/seed_session", POST),
    ("inventory", "/count_items", POST),
    ("inventory", "/tools", "GET, HEAD, POST"),
    ("policy", "/v1/chat/completions", POST),
    ("policy", "/v1/claim", POST),
    ("worker", "/v1/chat/completions", POST),
    ("worker", "/health", GET),
)
Ask = Callable[..., Awaitable[Reply]]


def ask_servers(story: Callable[[Ask], Awaitable[None]]) -> None:
    world = World(1)
    servers = Cluster(world, workload(1), Options()).gym.servers

    async def script(world: World) -> None:
        for name in servers:
            world.nodes[name].start()
        await until(world, lambda: False, 0.5)

        async def ask(method: str, server: str, path: str, token: str = TOKEN) -> Reply:
            headers = (("authorization", f"Bearer {token}"),)
            return await world.client().request(method, f"http://{server}:80{path}", headers=headers)

        await story(ask)

    world.run(script, horizon_s=1000).check()


def refusal(reply: Reply) -> tuple[int, str, str | None]:
    return reply.status, json.loads(reply.body)["error"]["code"], reply.header("allow")


def wrong(allowed: str) -> tuple[int, str, str]:
    return 405, "method_not_allowed", allowed


NOT_FOUND = (404, "not_found", None)


def test_control_routes_say_which_method_they_take() -> None:
    """Discovery asks for the status and takes a 404 for a server that has no part in checkpoints."""

    async def story(ask: Ask) -> None:
        for server in PARTICIPANTS:
            for operation in OPERATIONS:
                for method in ("GET", "PUT", "DELETE", "OPTIONS"):
                    assert refusal(await ask(method, server, CONTROL_PREFIX + operation)) == wrong(POST)
                head = await ask("HEAD", server, CONTROL_PREFIX + operation)
                assert (head.status, head.header("allow")) == (405, POST)
            status = CONTROL_PREFIX + "status"
            assert refusal(await ask("POST", server, status)) == wrong(GET)
            assert (await ask("GET", server, status)).status == (await ask("HEAD", server, status)).status == 200
            assert refusal(await ask("GET", server, CONTROL_PREFIX + "elsewhere")) == NOT_FOUND
            assert (await ask("GET", server, CONTROL_PREFIX + "prepare", "guessed")).status == 401, "nor who may ask"

    ask_servers(story)


def test_routes_of_the_ledger_are_there_where_the_ledger_is() -> None:
    async def story(ask: Ask) -> None:
        for path in (STARTED_PATH, *(LEDGER_ROOT + name for name in LEDGERS)):
            for server in ("policy", "policy2"):
                assert refusal(await ask("GET", server, path)) == wrong(POST)
            assert refusal(await ask("GET", "agent", path)) == refusal(await ask("POST", "agent", path)) == NOT_FOUND

    ask_servers(story)


def test_routes_of_the_data_plane_say_it_below_a_rollouts_prefix_too() -> None:
    async def story(ask: Ask) -> None:
        for server, path, allowed in DATA:
            for prefix in ("", f"{ROLLOUT_PREFIX}r") if server != "worker" else ("",):
                assert refusal(await ask("DELETE", server, prefix + path)) == wrong(allowed), (server, path)
                assert refusal(await ask("GET", server, prefix + path + "/x/y")) == NOT_FOUND
        assert (await ask("HEAD", "policy", "/health")).status == 200

    ask_servers(story)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_answer_to_a_head_has_no_body_and_the_length_of_one() -> None:
    async def ready(_: Request) -> Answer:
        return Answer(b'{"status":"ok"}')

    class Routed(Application):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await Router([Route("GET", "/health", ready)])(scope, receive, send)

    async with serving(Routed()) as (url, _), HttpxClient() as client:
        head = await client.request("HEAD", url + "/health")
        assert (head.status, head.body, head.header("content-length")) == (200, b"", "15")
        got = await client.request("GET", url + "/health")
        assert got.body == b'{"status":"ok"}', "the connection goes on"
        assert refusal(await client.request("POST", url + "/health")) == wrong(GET)
