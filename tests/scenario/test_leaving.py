"""A caller that leaves while its call waits at closed admission: the call is out of the books, and was never there.

Scenario 40, INV-14, INV-61. Each way into a server that waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from gym_ckpt.errors import PeerLost
from gym_ckpt.gyms.answer import AnswerGym
from gym_ckpt.participants.agent import AgentParticipant
from gym_ckpt.participants.model import MODEL_CLAIM_PATH
from gym_ckpt.participants.resources import COOKIE, ResourcesParticipant
from gym_ckpt.ports import ASGIApp, Ports, Receive, Scope, Send
from gym_ckpt.runtime.admission import Admission
from gym_ckpt.runtime.asgi import Router, answer, episode_context, respond, tagged
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.install import admitting
from gym_ckpt.runtime.participant import Participant
from gym_ckpt.types import EpisodeId
from sim.world import World
from tests.scenario.gate import ANSWER, Stage, play, settle

R = EpisodeId("r")
NONE = {"waiting": 0, "parked": 0, "working": 0}


def waiting(admission: Admission) -> int:
    return admission.book.counts()["waiting"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", MODEL_CLAIM_PATH])
def test_a_call_of_the_model_leaves_the_books_with_its_caller(path: str) -> None:
    async def story(stage: Stage) -> None:
        admission = stage.gate.it.admission
        admission.close()
        for number in range(5):  # as a client does that gives up and tries again
            caller = await stage.call(path=path, call_id=f"c{number}")
            assert waiting(admission) == 1
            caller.leave()
            await settle()
            assert waiting(admission) == 0
        admission.open()
        await settle()
        assert admission.book.counts() == NONE
        assert not admission.book.served, "INV-61: nothing was served, so this server may still restore"
        assert stage.worker.calls == 0

    play(story)


def test_a_call_whose_caller_stays_is_served_beside_one_that_has_left() -> None:
    async def story(stage: Stage) -> None:
        admission = stage.gate.it.admission
        admission.close()
        gone, stays = await stage.call(call_id="gone"), await stage.call(call_id="stays")
        gone.leave()
        await settle()
        admission.open()
        stage.worker.say(ANSWER)
        stage.worker.end()
        await settle()
        assert stays.done and stage.worker.calls == 1
        assert await stage.gate.rows(R) == ["stays"]

    play(story)


def test_a_caller_that_leaves_after_opening_is_seen_as_ever() -> None:
    """The look-out for it while its call waited is over, and nothing of its connection was used up."""

    async def story(stage: Stage) -> None:
        admission = stage.gate.it.admission
        admission.close()
        caller = await stage.call()
        admission.open()
        await settle()
        assert stage.worker.calls == 1
        caller.leave()
        await settle()
        assert admission.book.counts() == NONE and stage.worker.lost == 1

    play(story)


Build = Callable[[Ports, Any], tuple[Participant, ASGIApp]]


def _resources(ports: Ports, tasks: Any) -> tuple[Participant, ASGIApp]:
    made = ResourcesParticipant("server", ports, tasks, AnswerGym())
    return made, Router(made.routes())


def _agent(ports: Ports, tasks: Any) -> tuple[Participant, ASGIApp]:
    made = AgentParticipant(
        "server", ports, tasks, model_urls=["http://m:80"], token=None, max_steps=1, stream=False, max_tokens=None
    )
    return made, Router(made.routes())


def _foreign(ports: Ports, tasks: Any) -> tuple[Participant, ASGIApp]:
    made = ResourcesParticipant("server", ports, tasks, AnswerGym())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message["body"])
            more = message["more_body"]
        await respond(send, answer({"size": len(b"".join(parts))}))

    return made, admitting(app, made)


def _streaming(ports: Ports, tasks: Any) -> tuple[Participant, ASGIApp]:
    made = ResourcesParticipant("server", ports, tasks, AnswerGym())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await anyio.sleep_forever()

    return made, admitting(app, made)


def serve(build: Build, story: Callable[[World, Participant], Awaitable[None]], *complaints: str) -> None:
    """`complaints`: all that the server says to itself."""
    made: list[Participant] = []
    world = World(1)

    async def main(ports: Ports) -> None:
        async with Tasks() as tasks:
            participant, app = build(ports, tasks)
            made.append(participant)
            await ports.server.serve(episode_context(app), "http://server:80", ready=lambda: None)

    async def script(world: World) -> None:
        world.nodes["server"].start()
        await settle()
        await story(world, made[0])

    world.add_node("server", main)
    assert [failure.detail for failure in world.run(script, horizon_s=1000).errors] == list(complaints)


OPEN = b'{"messages":[],"resources_url":"http://server:80","cookie":"a"}'


@pytest.mark.parametrize(
    "build, path, body",
    [
        (_resources, "/seed_session", b'{"task":{}}'),
        (_resources, "/verify", b'{"task":{}}'),
        (_agent, "/v1/agent_sessions", OPEN),
        (_agent, "/v1/agent_sessions/close", b""),
        (_agent, "/v1/agent_sessions/claim", b""),
        (_foreign, "/anything", b"x" * 200_000),
    ],
)
def test_whatever_waits_leaves_with_its_caller(build: Build, path: str, body: bytes) -> None:
    async def story(world: World, participant: Participant) -> None:
        admission = participant.admission
        admission.close()
        with anyio.move_on_after(3.0):
            await world.client().request("POST", tagged("http://server:80", R, path), body=body)
        await settle()
        assert waiting(admission) == 0
        admission.open()
        await settle()
        assert admission.book.counts() == NONE and not admission.book.served
        assert not list(participant.live()), "nothing of it was done"

    serve(build, story)


def test_a_tool_call_and_a_closing_leave_with_their_callers() -> None:
    async def story(world: World, participant: Participant) -> None:
        url = tagged("http://server:80", R, "")
        seeded = await world.client().request("POST", url + "/seed_session", body=b'{"task":{}}')
        cookie = ("cookie", f"{COOKIE}={seeded.body.decode().split(chr(34))[3]}")
        participant.admission.close()
        for path in ("/any_tool", "/close_session"):
            with anyio.move_on_after(3.0):
                await world.client().request("POST", url + path, headers=(cookie,), body=b"{}")
            await settle()
            assert waiting(participant.admission) == 0
        participant.admission.open()
        await settle()
        assert participant.admission.book.counts() == NONE
        assert list(participant.live()) == [R], "the session was not closed for a caller that had gone"

    serve(_resources, story)


def test_an_application_gets_the_whole_body_of_a_request_that_waited() -> None:
    async def story(world: World, participant: Participant) -> None:
        participant.admission.close()
        replies: list[bytes] = []

        async def ask() -> None:
            url = tagged("http://server:80", R, "/anything")
            replies.append((await world.client().request("POST", url, body=b"x" * 200_000)).body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await settle()
            assert waiting(participant.admission) == 1 and not replies
            participant.admission.open()
        assert replies == [b'{"size":200000}']

    serve(_foreign, story)


def test_an_answer_that_is_retired_on_its_way_is_broken_off_and_not_begun_again() -> None:
    """A server complains with a traceback about a second beginning, for each stream."""

    async def story(world: World, participant: Participant) -> None:
        url, read = tagged("http://server:80", R, "/anything"), list[bytes]()
        with pytest.raises(PeerLost):
            async with world.client().stream("POST", url, body=b"") as reply:
                assert reply.status == 200
                async for chunk in reply.chunks():
                    read.append(chunk)
                    assert participant.admission.book.blockers() == {"r"}, "a checkpoint waits for it"
                    participant.admission.stop([R])
        assert read == [b"half"]
        assert participant.admission.book.counts() == NONE

    serve(_streaming, story, "ASGI callable returned without completing response")
