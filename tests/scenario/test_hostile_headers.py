"""Headers of a stranger, as an ASGI server that checks little passes them, that become part of further calls."""

from __future__ import annotations

import pytest

from gym_ckpt.limits import RUN_MAX_CHARS
from gym_ckpt.ports import Ports, Reply
from gym_ckpt.runtime.asgi import Answer, Request, Route, Router, answer, episode_context, tagged
from gym_ckpt.runtime.install import admitting
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID, CONTROL_PREFIX, RUN_HEADER
from sim.cluster import TOKEN
from sim.world import World
from tests.property.toys import Toy
from tests.scenario.servers import Ask, R, ask_servers

CHAT = "/v1/chat/completions"
ASKED = b'{"messages":[{"role":"user","content":"count"}]}'
UNSENDABLE = ["a\x01b", "a\x7fb", "a\r\nx: b"]


async def say(world: World, server: str, path: str, body: bytes, *headers: tuple[str, str]) -> Reply:
    return await world.client().request("POST", f"http://{server}:80{path}", headers=headers, body=body)


@pytest.mark.parametrize("said", [*UNSENDABLE, "caf\xe9", "a" * (RUN_MAX_CHARS + 1)])
def test_a_run_that_further_calls_could_not_say_is_refused_by_every_server_and_kills_none(said: str) -> None:
    async def story(_: Ask, world: World) -> None:
        task = b'{"episode_id":{"rollout_id":"r"},"task":{}}'
        opened = b'{"messages":[],"resources_url":"http://inventory:80","cookie":"a"}'
        for server, path, body in (
            ("environment", "/run", task),
            ("agent", "/v1/agent_sessions", opened),
            ("agent", "/v1/agent_sessions/claim", b"{}"),
            ("policy", CHAT, ASKED),
            ("inventory", "/seed_session", b'{"task":{}}'),
        ):
            for _again in range(2):
                reply = await say(world, server, tagged("", R, path), body, (RUN_HEADER, said))
                assert reply.status == 400 and RUN_HEADER.encode() in reply.body, (server, path, reply)
        reply = await say(world, "environment", tagged("", R, "/run"), task, (RUN_HEADER, "abc"))
        assert json.loads(reply.body)["status"] == "finished", "what was refused has left nothing behind"

    ask_servers(story)


@pytest.mark.parametrize("said", ["abc ", "\tabc", " ", ""])
def test_blanks_around_a_header_are_no_part_of_it(said: str) -> None:
    """Not every ASGI server takes them off; passed on with them, no further call could be sent."""

    async def story(_: Ask, world: World) -> None:
        task = b'{"episode_id":{"rollout_id":"r"},"task":{}}'
        reply = await say(world, "environment", tagged("", R, "/run"), task, (RUN_HEADER, said))
        assert json.loads(reply.body)["status"] == "finished"
        status = f"http://inventory:80{CONTROL_PREFIX}status"
        reply = await world.client().request("GET", status, headers=(("authorization", f"Bearer {TOKEN} "),))
        assert reply.status == 200
        for path in (CHAT, tagged("", R, CHAT)):
            given = (("authorization", f"Bearer {said}"), (CALL_ID, said))
            reply = await say(world, "policy", path, ASKED, *given)
            assert reply.status == 200, reply

    ask_servers(story)


@pytest.mark.parametrize("said", UNSENDABLE)
@pytest.mark.parametrize("name", ["authorization", "accept", "traceparent", CALL_ID])
@pytest.mark.parametrize("path", [CHAT, tagged("", R, CHAT)])
def test_what_no_inference_worker_could_be_told_is_refused(path: str, name: str, said: str) -> None:
    async def story(_: Ask, world: World) -> None:
        reply = await say(world, "policy", path, ASKED, (name, said))
        assert reply.status == 400 and name.encode() in reply.body, reply
        assert (await say(world, "policy", path, ASKED)).status == 200

    ask_servers(story)


def test_blanks_around_the_run_that_an_application_of_ones_own_is_called_for() -> None:
    """`admitting` reads the header before anything else, and answers what is wrong with it."""

    async def done(_: Request) -> Answer:
        return answer({})

    async def main(ports: Ports) -> None:
        app = admitting(Router((Route("POST", "/work", done),)), Toy("own", ports))
        await ports.server.serve(episode_context(app), "http://own:80", ready=lambda: None)

    async def script(world: World) -> None:
        world.nodes["own"].start()
        await world.sleep(0.1)
        for said, status in (("abc ", 200), ("a\x01b", 400)):
            assert (await say(world, "own", tagged("", R, "/work"), b"{}", (RUN_HEADER, said))).status == status

    world = World(1)
    world.add_node("own", main)
    world.run(script, horizon_s=10).check()
