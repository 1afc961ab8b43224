"""A step that fails, fails in the disk: with a part of the write, with what an fsync lost, or after its effect. And
what a death leaves of what was not synced."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from random import Random

import anyio
import pytest

from gym_ckpt.ports import FileSystem, Ports
from sim.disk import SimFileSystem
from sim.fates import CALM_DISK, CalmFates, DiskFailure, DiskFate
from sim.node import Node
from sim.world import World, run_world


class Strike(CalmFates):
    def __init__(self, fate: DiskFate, at: int) -> None:
        self.fate, self.at = fate, at

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        return self.fate if op_index == self.at else CALM_DISK


def written_with(failure: DiskFailure, at: int, seed: int = 0) -> tuple[str, bytes, bytes]:
    """A file of two synced parts of which a step fails: what the job was told, and what the file holds then, as it
    reads and as a power cut leaves it."""

    def job(fs: FileSystem) -> Generator[str, None, str]:
        file = fs.append("/f")
        fs.fsync_dir("/")
        said = "nothing"
        for part in (b"a" * 64, b"b" * 64):
            try:
                yield "write"
                file.write(part)
                yield "fsync"
                file.fsync()
            except OSError as exc:
                said = f"{errno.errorcode[exc.errno or 0]} {exc.filename}"
        file.fsync()
        return said

    said: list[str] = []

    async def main(ports: Ports) -> None:
        said.append(await ports.disk.run(job))
        await anyio.sleep(5)

    world = World(seed, Strike(DiskFate(failure=failure), at))
    held: list[bytes] = []

    async def script(world: World) -> None:
        node = world.add_node("n", main, start=True)
        await world.sleep(1)
        held.append(world.disk.tree("/")["/f"])
        node.crash()

    world.run(script).check()
    return said[0], held[0], world.disk.durable_tree("/")["/f"]


def test_a_disk_error_is_the_disks_own() -> None:
    a, b = b"a" * 64, b"b" * 64
    full = DiskFailure(errno.ENOSPC)
    said, held, kept = written_with(full, 0)
    assert said == "ENOSPC /f" and held == kept
    assert a > held.removesuffix(b) >= b"", "a part of what did not fit is there"
    assert written_with(full, 2)[1].startswith(a) and len(written_with(full, 2)[1]) < 128

    lost = [written_with(DiskFailure(errno.EIO), 1, seed) for seed in range(8)]
    assert {said for said, _, _ in lost} == {"EIO /f"} and {held for _, held, _ in lost} == {a + b}
    assert {kept for _, _, kept in lost} == {a + b, bytes(64) + b}, "read for now, and no later fsync saves it"

    late = DiskFailure(errno.EIO, after=True)
    assert [written_with(late, at) for at in range(4)] == [("EIO /f", a + b, a + b)] * 4
    assert written_with(DiskFailure(errno.EIO, call=2), 0) == ("nothing", a + b, a + b), "there is no second call"


def left_by(kill: Callable[[Node], None], seed: int) -> bytes:
    """What reads of ten writes, none of them synced, once their process is dead."""

    def job(fs: FileSystem) -> Generator[str, None, None]:
        yield "write"
        file = fs.append("/f")
        fs.fsync_dir("/")
        for nth in range(10):
            file.write(b"%d" % nth)

    async def main(ports: Ports) -> None:
        await ports.disk.run(job)
        await anyio.sleep(5)

    async def script(world: World) -> None:
        node = world.add_node("n", main, start=True)
        await world.sleep(1)
        kill(node)
        assert not node.alive

    world = World(seed)
    world.run(script).check()
    return world.disk.tree("/")["/f"]


def test_a_killed_process_loses_nothing_and_a_host_does() -> None:
    whole = b"0123456789"
    seeds = range(20)
    assert {left_by(lambda node: node.signal("SIGKILL"), seed) for seed in seeds} == {whole}
    assert whole not in {left_by(lambda node: node.crash(silent=True), seed) for seed in seeds}
    deaths = [left_by(Node.crash, seed) == whole for seed in seeds]
    assert len(seeds) / 2 <= sum(deaths) < len(seeds), "most processes die alone, and some with their host"


def test_what_a_failed_fsync_dropped_is_gone_for_the_next_process() -> None:
    disk = SimFileSystem(Random(1))
    file = disk.view("n").append("/f")
    for nth in range(8):
        file.write(b"%d" % nth)
    disk.on_op = lambda _owner, op, path: fail_fsync(op, path)
    with pytest.raises(OSError):
        file.fsync()
    disk.on_op = None
    assert disk.tree("/")["/f"] == b"01234567"
    disk.end("n")
    left = disk.tree("/")["/f"]
    assert left != b"01234567"
    disk.view("heir").append("/f").fsync()
    assert disk.durable_tree("/") == {}, "nor is the name safe without its directory"
    disk.view("heir").fsync_dir("/")
    assert disk.durable_tree("/")["/f"] == left


def fail_fsync(op: str, path: str) -> None:
    if op == "fsync":
        raise OSError(errno.EIO, "lost", path)


def test_a_node_dies_after_a_step_that_failed() -> None:
    def job(fs: FileSystem) -> Generator[str, None, None]:
        yield "read"
        fs.size("/nothing")

    async def main(ports: Ports) -> None:
        await ports.disk.run(job)

    async def script(world: World) -> None:
        node = world.add_node("n", main, start=True)
        await world.sleep(1)
        assert not node.alive and node.error is None

    run_world(0, script, fates=Strike(DiskFate(crash="after"), 0)).check()
