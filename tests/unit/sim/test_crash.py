"""A crash is a crash: no code of a dead process has an effect, whatever it does about it.

Long because each way of surviving one's own death is a program of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest
import trio

from gym_ckpt.errors import PeerLost
from gym_ckpt.ports import FileSystem, Ports
from sim import ports as ports_module
from sim import world as world_module
from sim.epoch import Epoch
from sim.fates import CalmFates, DiskFate, ProbeFate
from sim.world import RunResult, World, run_world

CRASH_AT_S = 5.0
Nasty = Callable[[Ports], Awaitable[None]]


def one_write(fs: FileSystem) -> Generator[str, None, None]:
    yield "write"
    fs.append("/effects").write(b"x")


async def strike_out(ports: Ports) -> None:
    """Every effect that a process can have, each tried whatever became of the one before."""
    try:
        ports.tracer.emit("effect")
        await ports.http.request("GET", "http://witness:1/effect")
    finally:
        try:
            await ports.disk.run(one_write)
        finally:
            try:
                await ports.probe("effect")
            finally:
                ports.tracer.emit("effect")


async def finally_that_awaits(ports: Ports) -> None:
    try:
        await anyio.sleep(1000)
    finally:
        await anyio.sleep(0)
        await strike_out(ports)


async def shielded_cleanup(ports: Ports) -> None:
    try:
        await anyio.sleep(1000)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)
            await strike_out(ports)


async def swallows_everything(ports: Ports) -> None:
    while True:
        try:
            await anyio.sleep(1)
            if anyio.current_time() >= CRASH_AT_S:
                await strike_out(ports)
        except BaseException:
            pass


async def swallows_in_handles(ports: Ports) -> None:
    await anyio.sleep(CRASH_AT_S - 0.5)
    while True:
        try:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)
                await strike_out(ports)
        except BaseException:
            pass


async def never_blocks(ports: Ports) -> None:
    await anyio.sleep(CRASH_AT_S)
    while True:
        try:
            await anyio.lowlevel.checkpoint()
            await strike_out(ports)
        except BaseException:
            pass


async def nested_groups(ports: Ports) -> None:
    async with anyio.create_task_group() as outer:
        for _ in range(3):
            outer.start_soon(finally_that_awaits, ports)
        async with anyio.create_task_group() as inner:
            inner.start_soon(shielded_cleanup, ports)
            inner.start_soon(swallows_everything, ports)
            await anyio.sleep(1000)


async def async_generator(ports: Ports) -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                await anyio.sleep(1000)
                yield 1
        finally:
            with anyio.CancelScope(shield=True):
                await strike_out(ports)

    async with aclosing(numbers()) as items:  # type: ignore[type-var]
        async for _ in items:
            pass


async def lock_queue(ports: Ports) -> None:
    lock = anyio.Lock()

    async def holder() -> None:
        async with lock:
            try:
                await anyio.sleep(1000)
            finally:
                await anyio.sleep(0)

    async def waiter() -> None:
        async with lock:
            await strike_out(ports)

    async with anyio.create_task_group() as group:
        group.start_soon(holder)
        await anyio.sleep(1)
        for _ in range(5):
            group.start_soon(waiter)


async def event_and_timeout(ports: Ports) -> None:
    event = anyio.Event()
    try:
        with anyio.move_on_after(1000, shield=True):
            await event.wait()
    finally:
        with anyio.move_on_after(5, shield=True):
            await strike_out(ports)
        await strike_out(ports)


async def context_managers(ports: Ports) -> None:
    @asynccontextmanager
    async def session() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await strike_out(ports)

    async with session(), session():
        await anyio.sleep(1000)


async def spawner(ports: Ports) -> None:
    """Starts its replacement whenever it is struck."""
    async with anyio.create_task_group() as group:

        async def hydra() -> None:
            try:
                await anyio.sleep(1000)
            except BaseException:
                group.start_soon(hydra)
                raise
            finally:
                await strike_out(ports)

        group.start_soon(hydra)
        await anyio.sleep(1000)


async def streams(ports: Ports) -> None:
    send, receive = anyio.create_memory_object_stream[int](0)

    async def producer() -> None:
        while True:
            try:
                await send.send(1)
            except BaseException:
                await strike_out(ports)
                raise

    async with anyio.create_task_group() as group, send, receive:
        group.start_soon(producer)
        await anyio.sleep(1000)


async def handlers(ports: Ports) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await shielded_cleanup(ports)

    await ports.server.serve(app, "http://victim:1", ready=lambda: ports.tracer.emit("ready"))


NASTY = [
    finally_that_awaits, shielded_cleanup, swallows_everything, swallows_in_handles, never_blocks, nested_groups,
    async_generator, lock_queue, event_and_timeout, context_managers, spawner, streams,
]  # fmt: skip


def crash_of(nasty: Nasty, seed: int, restart: bool = False) -> tuple[RunResult, World]:
    """Run `nasty` alone on a node, crash it at `CRASH_AT_S`, and watch for a while."""
    world = World(seed, keep_all_rows=True)
    world.disk.make_dirs("/")

    async def witness(ports: Ports) -> None:
        async def app(scope: object, receive: object, send: Callable[..., Awaitable[None]]) -> None:
            ports.tracer.emit("effect.seen")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        await ports.server.serve(app, "http://witness:1", ready=lambda: None)

    async def script(world: World) -> None:
        world.add_node("witness", witness, start=True)
        node = world.add_node("victim", nasty, start=True)
        await world.sleep(CRASH_AT_S)
        node.crash()
        task = node._task
        assert node.epoch is not None and not node.epoch.alive
        before = world.now
        while world.reaper.active:
            await trio.lowlevel.checkpoint()
        assert world.now == before, "dying takes no time"
        assert task is not None and task.parent_nursery is not None
        assert task not in task.parent_nursery.child_tasks, "every task is gone"
        if restart:
            node.start()
            await world.sleep(CRASH_AT_S - 1)
            assert node.alive
            return
        await world.sleep(100)

    return world.run(script, 10_000), world


def effects(result: RunResult, node: str = "victim") -> list[str]:
    """Effects after the crash: rows of the dead, requests of the dead that arrived."""
    crash = next(at for at, row in enumerate(result.rows_tail) if row.event == "node.crashed")
    sent_before = {row.fields["x"] for row in result.rows_tail[:crash] if row.event == "net.request"}
    return [
        row.text()
        for row in result.rows_tail[crash + 1 :]
        # that its sockets were closed is the system's doing
        if (row.node == node and not row.event.startswith("node.") and row.event != "net.left")
        or (row.event == "net.arrived" and row.fields["x"] not in sent_before)
    ]


@pytest.mark.parametrize("nasty", NASTY, ids=lambda nasty: nasty.__name__)
def test_nothing_of_a_dead_process_has_an_effect(nasty: Nasty) -> None:
    for seed in range(8):
        result, world = crash_of(nasty, seed)
        result.check()
        assert effects(result) == []
        assert world.disk.tree("/") in ({}, {"/effects": b""}, {"/effects": b"x"}) or nasty in (
            swallows_everything, swallows_in_handles, never_blocks
        )  # fmt: skip


@pytest.mark.parametrize("nasty", NASTY, ids=lambda nasty: nasty.__name__)
def test_a_crash_is_deterministic_and_a_restart_starts_afresh(nasty: Nasty) -> None:
    first, _ = crash_of(nasty, 3, restart=True)
    second, _ = crash_of(nasty, 3, restart=True)
    first.check()
    assert first.hash == second.hash
    starts = [row for row in first.rows_tail if row.event == "node.started" and row.node == "victim"]
    assert [row.fields["epoch"] for row in starts] == [1, 2]


def test_the_same_tasks_do_have_effects_when_nobody_crashes_them() -> None:
    """The ablation: without the crash the checks above would see something."""

    async def script(world: World) -> None:
        async def main(ports: Ports) -> None:
            with anyio.move_on_after(1):
                await shielded_cleanup(ports)

        node = world.add_node("victim", main, start=True)
        await world.sleep(100)
        assert isinstance(node.error, BaseException) or node.exited

    result = run_world(0, script, keep_all_rows=True)
    assert sum(row.event == "effect" for row in result.rows_tail) == 2
    assert {"net.request", "disk.step"} <= {row.event for row in result.rows_tail}
    assert result.probes
    assert [failure.kind for failure in result.errors] == ["died"]


@pytest.mark.parametrize("broken", ["fence", "tracer"])
def test_a_missing_fence_is_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_fence(epoch: Epoch) -> None:
        pass

    if broken == "fence":
        monkeypatch.setattr(Epoch, "fence", open_fence)
    else:

        def emit(self: Any, event: str, **fields: Any) -> None:
            self._emit(0.0, self._name, event, fields)

        monkeypatch.setattr(ports_module._Tracer, "emit", emit)
    assert any(effects(crash_of(nasty, 0)[0]) for nasty in (shielded_cleanup, context_managers, event_and_timeout))


def test_handlers_in_progress_die_with_their_node_and_clients_see_a_reset() -> None:
    async def script(world: World) -> None:
        node = world.add_node("victim", handlers, start=True)
        await world.sleep(1)
        failures: list[str] = []

        async def call() -> None:
            try:
                await world.client().request("GET", "http://victim:1/")
            except PeerLost as exc:
                failures.append(f"{world.now:.3f} {exc}")

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(call)
            await world.sleep(1)
            node.crash()
        assert failures == ["2.001 connection closed by the server"] * 3
        await world.sleep(100)

    result = run_world(0, script, keep_all_rows=True).check()
    assert not any(row.event in ("effect", "handler.error") for row in result.rows_tail)


def test_a_process_that_exits_takes_its_handlers_along() -> None:
    async def main(ports: Ports) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(handlers, ports)
            await anyio.sleep(2)
            raise ValueError("boom")

    async def script(world: World) -> None:
        node = world.add_node("victim", main, start=True)
        await world.sleep(1)
        with pytest.raises(PeerLost):
            await world.client().request("GET", "http://victim:1/")
        await world.sleep(100)
        assert not node.alive and not node.exited
        assert isinstance(node.error, ExceptionGroup)

    result = run_world(0, script, keep_all_rows=True)
    assert [failure.kind for failure in result.errors] == ["died"]
    assert any(row.event == "node.died" for row in result.rows_tail)


def test_main_that_returns_is_an_exit() -> None:
    async def main(ports: Ports) -> None:
        await anyio.sleep(2)

    async def script(world: World) -> None:
        node = world.add_node("victim", main, start=True)
        await world.sleep(3)
        assert node.exited and not node.alive and node.error is None

    assert any(row.event == "node.exited" for row in run_world(0, script).check().rows_tail)


class StrikeDisk(CalmFates):
    def __init__(self, fate: DiskFate, at: int) -> None:
        self.fate, self.at = fate, at

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        return self.fate if op_index == self.at else DiskFate()


@pytest.mark.parametrize(("when", "written"), [("before", b"a"), ("after", b"ab")])
def test_a_node_can_crash_in_its_own_disk_step(when: str, written: bytes) -> None:
    def job(fs: FileSystem) -> Generator[str, None, None]:
        try:
            for text in (b"a", b"b", b"c"):
                yield text.decode()
                file = fs.append("/f")
                file.write(text)
                file.fsync()
                fs.fsync_dir("/")
        finally:
            fs.append("/f").write(b"late")

    async def main(ports: Ports) -> None:
        try:
            await ports.disk.run(job)
        finally:
            await ports.disk.run(job)

    world = World(0, StrikeDisk(DiskFate(crash=when), 1), keep_all_rows=True)  # type: ignore[arg-type]

    async def script(world: World) -> None:
        node = world.add_node("victim", main, start=True)
        await world.sleep(10)
        assert not node.alive and node.error is None

    world.run(script).check()
    assert world.disk.tree("/") == {"/f": written}


def test_a_disk_job_is_not_interrupted_by_cancellation() -> None:
    def job(fs: FileSystem) -> Generator[str, None, None]:
        for at in range(5):
            yield str(at)
            fs.append("/f").write(b"x")

    async def main(ports: Ports) -> None:
        with anyio.move_on_after(0.00015):
            await ports.disk.run(job)
            await anyio.sleep(1)
        ports.tracer.emit("done")

    world = World(0)

    async def script(world: World) -> None:
        world.add_node("n", main, start=True)
        await world.sleep(10)

    world.run(script).check()
    assert world.disk.tree("/") == {"/f": b"xxxxx"}


def test_a_process_that_dies_in_a_disk_step_which_was_cancelled_before_dies_like_any_other() -> None:
    """It is not buried, and the step's end wakes nobody: trio would end the run with an internal error."""
    closed: list[str] = []

    def job(fs: FileSystem) -> Generator[str, None, None]:
        try:
            yield "slow"
            fs.append("/f").write(b"x")
        finally:
            closed.append("job")

    async def main(ports: Ports) -> None:
        with anyio.move_on_after(0.2):
            await ports.disk.run(job)

    world = World(0, StrikeDisk(DiskFate(latency_s=1.0), 0))

    async def script(world: World) -> None:
        node = world.add_node("n", main, start=True)
        await world.sleep(0.5)
        node.crash()
        await world.sleep(1)

    world.run(script).check()
    assert closed == ["job"] and world.disk.tree("/") == {} and not world.reaper.burials


def test_probes_crash_fail_delay_and_are_counted() -> None:
    class Strike(CalmFates):
        def probe(self, node: str, point: str) -> ProbeFate:
            return {"slow": ProbeFate(delay_s=7), "bad": ProbeFate(fail=True), "end": ProbeFate(crash=True)}.get(
                point, ProbeFate()
            )

    async def main(ports: Ports) -> None:
        await ports.probe("calm")
        await ports.probe("slow")
        assert anyio.current_time() == 7
        with pytest.raises(Exception, match="bad"):
            await ports.probe("bad")
        try:
            await ports.probe("end")
        finally:
            await strike_out(ports)

    async def script(world: World) -> None:
        node = world.add_node("victim", main, start=True)
        await world.sleep(10)
        assert not node.alive and node.error is None

    result = run_world(0, script, fates=Strike(), keep_all_rows=True).check()
    assert result.probes == {"bad": 1, "calm": 1, "end": 1, "slow": 1}
    assert effects(result) == []


def test_signals_reach_listeners_and_kill_without_one() -> None:
    async def main(ports: Ports) -> None:
        async with ports.signals.listen() as signals:
            async for name in signals:
                ports.tracer.emit("got", signal=name)
                if name == "SIGTERM":
                    break
        await anyio.sleep(1000)

    async def script(world: World) -> None:
        node = world.add_node("n", main, start=True)
        await world.sleep(1)
        node.signal("SIGUSR1")
        node.signal("SIGTERM")
        await world.sleep(1)
        assert node.alive
        node.signal("SIGTERM")
        assert not node.alive

    rows = run_world(0, script, keep_all_rows=True).check().rows_tail
    assert [row.fields["signal"] for row in rows if row.event == "got"] == ["SIGUSR1", "SIGTERM"]


def test_an_error_that_breaks_trio_itself_says_what_it_was_and_where() -> None:
    def boom() -> None:
        raise KeyError("a task that had exited")

    error = trio.TrioInternalError("internal error in Trio")
    try:
        boom()
    except KeyError as cause:
        error.__cause__ = cause
    said = world_module._caused(error)
    assert said.startswith("; KeyError: 'a task that had exited' in test_crash.py:") and said.endswith(" boom")
    assert world_module._caused(KeyError("x")) == ""
