"""A restore that its lease ends while a thread still installs: what comes of that is nobody's (INV-60, INV-66), and who
would go on with it is told so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from gym_ckpt.ports import Ports
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.runtime.participant import Record
from gym_ckpt.types import EpisodeId
from sim.fates import CalmFates, DiskFate
from sim.world import World
from tests.property.toys import URL, Toy, control, serve

R = EpisodeId("r")
GRACE_S, INSTALLS_S = 1.0, 5.0


class Slow(Toy):
    """Its last write of a restore cannot be cancelled, as nothing can that a thread does."""

    async def install(self, records: Sequence[Record]) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(INSTALLS_S)
        for record in records:
            self.numbers[record.episode] = record.state


def test_what_a_thread_installs_after_the_lease_has_ended_the_restore_is_discarded() -> None:
    toys: list[Slow] = []
    installed: list[Any] = []

    async def main(ports: Ports) -> None:
        toys.append(Slow("model", ports))
        await serve(toys[-1], URL, GRACE_S)

    async def script(world: World) -> None:
        node = world.nodes["model"]
        node.start()
        await anyio.sleep(0.1)
        await world.client().request("POST", tagged(URL, R, "/add"), body=b"{}")
        where = {"checkpoint_dir": "/run/c", "episode_ids": [{"rollout_id": "r", "attempt": 0}]}
        assert (await control(world, "prepare", "c"))[1]["report"]["ready"]
        assert (await control(world, "commit", "c", **where))[0] == 200
        node.crash()
        node.start()
        await anyio.sleep(0.1)
        status, late = await control(world, "restore", "again", **where)
        assert status == 409 and late["error"]["code"] == "deadline_exceeded"
        await anyio.sleep(1.0 + GRACE_S)
        assert (await control(world, "status"))[1]["phase"] == "idle", "its lease has ended it"
        await anyio.sleep(INSTALLS_S)
        status, now = await control(world, "status")
        assert now["phase"] == "idle" and now["live"] == [] and not toys[-1].numbers
        assert not installed, "it installed into an open server"
        reply = await world.client().request("POST", tagged(URL, R.next(), "/add"), body=b"{}")
        assert reply.status == 409, "and its attempt is retired"
        for operation, more in (("resume", {}), ("resume", {}), ("restore", where), ("renew", {})):
            status, reply = await control(world, operation, "again", **more)
            assert status == 409 and reply["error"]["code"] == "stale_checkpoint", "nobody may go on with it"

    world = World(1)
    world.disk.make_dirs("/run")
    world.add_node("model", main)
    world.trace.subscribe(installed.append, ("restore.installed",))
    result = world.run(script, 60.0)
    assert not result.errors


class SlowRead(CalmFates):
    """Records are read by a thread that hangs, so that nothing reaches it."""

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        return DiskFate(latency_s=INSTALLS_S) if step == "records.read" else super().disk(node, step, op_index)


def test_nothing_opens_beside_a_read_that_outlasts_its_restore_and_it_touches_nothing_that_came_since() -> None:
    toys: list[Toy] = []
    came_back: list[Any] = []

    async def main(ports: Ports) -> None:
        toys.append(Toy("model", ports))
        await serve(toys[-1], URL)

    async def script(world: World) -> None:
        node = world.nodes["model"]
        node.start()
        await anyio.sleep(0.1)
        await world.client().request("POST", tagged(URL, R, "/add"), body=b"{}")
        where = {"checkpoint_dir": "/run/c", "episode_ids": [{"rollout_id": "r", "attempt": 0}]}
        assert (await control(world, "prepare", "c"))[1]["report"]["ready"]
        assert (await control(world, "commit", "c", **where))[0] == 200
        node.crash()
        node.start()
        await anyio.sleep(0.1)
        assert (await control(world, "restore", "again", **where))[0] == 409, "the read outlasts it"
        status, late = await control(world, "resume", "again")
        assert status == 409 and late["error"]["code"] == "deadline_exceeded", "the read has not come back"
        assert (await control(world, "status"))[1]["phase"] == "idle"
        assert (await control(world, "retire", episode_ids=[{"rollout_id": "r", "attempt": 2}]))[0] == 200
        book, fourth, answers = toys[-1].admission.book, EpisodeId("r", 3), list[int]()

        async def add() -> None:
            reply = await world.client().request("POST", tagged(URL, fourth, "/add"), body=b"{}")
            answers.append(reply.status)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add)
            while not answers:
                assert book.marks.refuses(EpisodeId("r", 2)), "a retire that has answered stands"
                assert book.closed or came_back, "it opened beside the read"
                await anyio.sleep(0.01)
        assert answers == [200] and toys[-1].numbers == {fourth: 1}, "it is from its input"
        assert (await control(world, "resume", "again"))[0] == 200

    world = World(1, SlowRead())
    world.disk.make_dirs("/run")
    world.trace.subscribe(came_back.append, ("import.ended",))
    world.add_node("model", main)
    result = world.run(script, 60.0)
    assert not result.errors


@pytest.mark.parametrize(
    ("operation", "what"),
    [("retire", {"episode_ids": [{"rollout_id": "r", "attempt": 0}]}), ("forget", {"rollout_ids": ["r"]})],
)
def test_a_controller_may_name_a_checkpoint_in_a_retire_and_a_forget(operation: str, what: dict[str, Any]) -> None:
    """It is a common field of all operations, and others' controllers send it."""

    async def main(ports: Ports) -> None:
        await serve(Toy("model", ports), URL, GRACE_S)

    async def script(world: World) -> None:
        world.nodes["model"].start()
        await anyio.sleep(0.1)
        assert (await control(world, operation, "c", **what))[0] == 200
        status, refused = await control(world, operation, "../c", **what)
        assert (status, refused["error"]["code"]) == (400, "invalid_request")

    world = World(1)
    world.add_node("model", main)
    assert not world.run(script, 60.0).errors


def test_whoever_finds_another_checkpoint_open_is_told_how_it_ends_and_when() -> None:
    """Its collector may have died: nobody resumes it, and its lease is what there is to wait for."""

    async def main(ports: Ports) -> None:
        await serve(Toy("model", ports), URL, GRACE_S)

    async def script(world: World) -> None:
        world.nodes["model"].start()
        await anyio.sleep(0.1)
        assert (await control(world, "prepare", "old", budget_s=30.0))[0] == 200
        await anyio.sleep(11.0)
        status, refused = await control(world, "prepare", "new")
        assert (status, refused["error"]["code"]) == (409, "checkpoint_conflict")
        said = "checkpoint old is prepared here; resume it first, restart this server, or wait 20 s"
        assert refused["error"]["detail"] == said
        await anyio.sleep(20.0)
        assert (await control(world, "prepare", "new"))[0] == 200

    world = World(1)
    world.add_node("model", main)
    assert not world.run(script, 60.0).errors
