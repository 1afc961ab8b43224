"""A checkpoint's disk hangs for hours, and every checkpoint on it: the rest of the server goes on."""

from __future__ import annotations

from collections import Counter

import anyio

from gym_ckpt.limits import DISK_THREADS
from gym_ckpt.ports import Ports
from sim.fates import CalmFates, DiskFate
from sim.world import World
from tests.property.toys import URL, Toy, control, serve

HANGS_S = 1000.0


class Hung(CalmFates):
    """The first step of every write to a checkpoint hangs, while `on`."""

    on = True

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        self.asked[step] += 1
        return (
            DiskFate(latency_s=HANGS_S) if self.on and step == "records.create" else super().disk(node, step, op_index)
        )


def test_a_disk_that_hangs_is_waited_for_once_and_not_by_every_checkpoint() -> None:
    fates = Hung()

    async def main(ports: Ports) -> None:
        await serve(Toy("model", ports), URL)

    async def script(world: World) -> None:
        node = world.nodes["model"]
        node.start()
        await anyio.sleep(0.1)
        where = {"checkpoint_dir": "/run/c", "episode_ids": []}
        assert (await control(world, "prepare", "c0"))[0] == 200
        assert (await control(world, "commit", "c0", **where))[1]["error"]["code"] == "deadline_exceeded"
        assert (await control(world, "resume", "c0"))[0] == 200
        for number in range(1, DISK_THREADS + 1):
            status, refused = await control(world, "prepare", f"c{number}")
            assert (status, refused["error"]["code"]) == (503, "unavailable"), "again, when it may have ended"
            assert "checkpoint c0 into /run/c was told to stop" in refused["error"]["detail"]
            assert (await control(world, "status"))[1]["phase"] == "idle", "and nothing was closed for it"
            assert (await control(world, "resume", f"c{number}"))[0] == 200
        assert fates.asked["records.create"] == 1
        fates.on = False
        await anyio.sleep(HANGS_S)
        assert (await control(world, "prepare", "last"))[0] == 200
        assert (await control(world, "commit", "last", **where))[0] == 200

    world = World(1, fates)
    world.disk.make_dirs("/run")
    world.add_node("model", main)
    assert not world.run(script, 2 * HANGS_S).errors
