"""The ledger as a server uses it: waiting for locks, cancellation, books of restored attempts. Virtual time."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import anyio
import pytest
import trio
import trio.testing

from gym_ckpt.core.lineage import Poison
from gym_ckpt.errors import Unavailable
from gym_ckpt.limits import LEDGER_LOCK_BUDGET_S
from gym_ckpt.ports import FileSystem, Job, Ports
from gym_ckpt.runtime.ledger import CaptureLedger
from gym_ckpt.storage.ledger import Appended, Start
from gym_ckpt.storage.ledger.names import lock_number, lock_path
from gym_ckpt.types import EpisodeId
from sim.disk import SimFileSystem
from tests.unit.ledger.given import DIR, R0, a_row, ep, names, new_disk

T = TypeVar("T")


@dataclass
class SteppedDisk:
    """Runs a job step by step, with time between the steps."""

    files: FileSystem

    async def run(self, job: Job[T]) -> T:
        steps = job(self.files)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(T, end.value)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.001)


class Half:
    def token(self, nbytes: int = 8) -> str:
        return "0" * (2 * nbytes)

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


@dataclass
class FakePorts:
    disk: SteppedDisk
    entropy: Half = field(default_factory=Half)


@dataclass
class Servers:
    disk: SimFileSystem
    marked: set[EpisodeId] = field(default_factory=set)

    def server(self, name: str) -> CaptureLedger:
        ports = cast(Ports, FakePorts(SteppedDisk(self.disk.view(name))))
        return CaptureLedger(ports, DIR, self.marked.__contains__)


def play(body: Callable[[Servers], Awaitable[Any]]) -> Servers:
    servers = Servers(new_disk())
    trio.run(body, servers, clock=trio.testing.MockClock(autojump_threshold=0))
    return servers


def test_a_row_waits_for_the_lock_and_is_then_written() -> None:
    async def body(servers: Servers) -> None:
        held = servers.disk.view("other").try_lock(lock_path(DIR, lock_number("r")), "")
        assert held is not None
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.sleep(3)
                held.release()

            tasks.start_soon(later)
            assert await servers.server("one").append(R0, a_row()) is Appended.WRITTEN
            assert 3 <= anyio.current_time() - began < 3.2
        assert [row.model_call_id for row in (await servers.server("two").read(R0)).rows] == ["c0"]

    began = 0.0

    async def timed(servers: Servers) -> None:
        nonlocal began
        began = anyio.current_time()
        await body(servers)

    play(timed)


def test_a_lock_that_is_never_given_back_is_waited_for_so_long_and_no_longer() -> None:
    async def body(servers: Servers) -> None:
        servers.disk.view("other").try_lock(lock_path(DIR, lock_number("r")), "")
        one = servers.server("one")
        began = anyio.current_time()
        with pytest.raises(Unavailable):
            await one.append(R0, a_row())
        assert LEDGER_LOCK_BUDGET_S <= anyio.current_time() - began < LEDGER_LOCK_BUDGET_S + 1
        with pytest.raises(Unavailable):
            await one.retire([R0])
        done = await one.discard_out_of_scope([])
        assert done.busy == []

    assert names(play(body).disk) == []


def test_cancellation_does_not_cut_a_row_short() -> None:
    """INV-20, while the row waits for its lock and while it is written."""

    async def body(servers: Servers) -> None:
        held = servers.disk.view("other").try_lock(lock_path(DIR, lock_number("r")), "")
        assert held is not None
        for call_id, pause in (("c0", 0.5), ("c1", 0.004)):
            with anyio.move_on_after(pause) as scope:
                async with anyio.create_task_group() as tasks:

                    async def later() -> None:
                        with anyio.CancelScope(shield=True):
                            await anyio.sleep(1)
                            held.release()

                    tasks.start_soon(later)
                    await servers.server("one").append(R0, a_row(call_id))
            assert scope.cancel_called
        assert [row.model_call_id for row in (await servers.server("two").read(R0)).rows] == ["c0", "c1"]

    play(body)


def test_two_servers_that_write_to_one_rollout_lose_nothing() -> None:
    async def body(servers: Servers) -> None:
        async with anyio.create_task_group() as tasks:
            for name in ("one", "two", "three"):
                for at in range(8):
                    tasks.start_soon(servers.server(name).append, R0, a_row(f"{name}{at}"))
        assert len((await servers.server("x").read(R0)).rows) == 24

    play(body)


def test_a_restored_attempt_is_pending_until_somebody_starts_it() -> None:
    """INV-42 to INV-44, scenario 84, over two servers."""

    async def body(servers: Servers) -> None:
        one, two = servers.server("one"), servers.server("two")
        for key in ("a", "b", "c", "d"):
            await one.append(ep(key), a_row("c0", ep(key)))
        scope = [ep(key) for key in ("a", "b", "c", "d")]
        saved = await two.export(scope)
        for server in (one, two):
            await server.restore(scope, saved)
        assert await one.start(ep("a-a1")) is Start.STARTED
        assert await one.start(ep("a-a1")) is Start.AGAIN
        # d cannot be deleted now: it stays pending for the next commit.
        servers.disk.on_op = deny
        done = await two.discard_out_of_scope([ep("b-a1")])
        assert (done.started, done.deleted, list(done.failed)) == ([ep("a-a1")], [ep("c-a1")], [ep("d-a1")])
        servers.disk.on_op = None
        assert [each.episode for each in await two.export([ep("b-a1"), ep("c-a1")])] == [ep("b-a1")]
        assert (await two.discard_out_of_scope([ep("b-a1")])).deleted == [ep("d-a1")]
        assert len(two.pending) == 1
        servers.marked.add(ep("b-a1"))
        assert await two.start(ep("b-a1")) is Start.RETIRED
        await two.retire([ep("b-a1")])
        assert len(two.pending) == 0
        for server in (one, two):
            await server.forget([ep(f"{key}-a1") for key in "abcd"])
            assert len(server.pending) == 0

    assert names(play(body).disk) == []


def deny(_owner: str, op: str, path: str) -> None:
    if op == "unlink" and "/d-a1" in path:
        raise OSError(errno.EACCES, "denied", path)


def test_poison_delete_and_manifest() -> None:
    async def body(servers: Servers) -> None:
        one = servers.server("one")
        await one.open()
        await one.append(R0, a_row())
        assert await one.poison(R0, Poison("c0", "parent_unresolved")) is Appended.WRITTEN
        assert (await one.read(R0)).poison
        assert [listed.episode for listed in (await one.manifest())[0]] == [R0]
        await one.delete([R0])
        assert await one.manifest([R0]) == ([], False)

    play(body)
