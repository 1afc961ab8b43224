"""The same seed is the same run; another seed is another; and the interpreter is left as it was found."""

from __future__ import annotations

import builtins
import gc
import io
import logging
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest
import trio
from trio._core import _run

from gym_ckpt.ports import Ports
from sim import determinism
from sim.clock import Deadlock, HorizonReached, Livelock, VirtualClock
from sim.determinism import check_private_names, run_deterministic
from sim.guard import StrayUse
from sim.trace import Row, Trace
from sim.world import World, run_world
from tests.unit.sim import chatter

ROOT = Path(__file__).parents[3]


def test_the_same_seed_twice_is_the_same_run_and_another_is_not() -> None:
    hashes = {seed: chatter.run(seed).check().hash for seed in range(10)}
    assert hashes == {seed: chatter.run(seed).check().hash for seed in range(10)}
    assert len(set(hashes.values())) == 10
    events = {row.event for row in chatter.run(0).rows_tail}
    assert {"served", "reply", "trouble", "node.crashed", "net.duplicate", "net.failed", "disk.step"} <= events


def test_another_process_with_another_hash_seed_runs_the_same() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.unit.sim.chatter", *map(str, range(6))],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split()
        for hash_seed in ("0", "1", "4242")
    ]  # fmt: skip
    assert outputs[0] == outputs[1] == outputs[2] == [chatter.run(seed).hash for seed in range(6)]


def test_several_orders_of_tasks_occur_over_seeds() -> None:
    def order(seed: int) -> tuple[int, ...]:
        seen: list[int] = []

        async def note(at: int) -> None:
            await anyio.sleep(1)
            seen.append(at)

        async def main() -> None:
            async with anyio.create_task_group() as group:
                for at in range(4):
                    group.start_soon(note, at)

        run_deterministic(main, seed, VirtualClock())
        return tuple(seen)

    orders = [order(seed) for seed in range(100)]
    assert orders == [order(seed) for seed in range(100)]
    assert len(set(orders)) >= 20, "of 24"


def test_a_policy_decides_the_order() -> None:
    class Oldest:
        def shuffle(self, batch: list[trio.lowlevel.Task]) -> None:
            batch.reverse()

    seen: list[int] = []

    async def note(at: int) -> None:
        seen.append(at)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for at in range(9):
                group.start_soon(note, at)

    run_deterministic(main, 0, VirtualClock(), policy=Oldest())
    assert seen == list(range(9))


def test_private_names_are_where_we_think() -> None:
    check_private_names()


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_moved_private_names_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = SimpleNamespace(**{key: value for key, value in vars(_run).items() if key != name})
    monkeypatch.setattr(determinism, "_run", moved)
    with pytest.raises(AssertionError, match=r"mend sim/determinism\.py"):
        check_private_names()


def test_everything_is_restored_afterwards() -> None:
    before = (
        _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING, gc.isenabled(), time.time, time.monotonic, random.random,
        uuid.uuid4, os.urandom, trio.to_thread.run_sync, random.Random.seed, open, io.open, subprocess.Popen.__init__,
    )  # fmt: skip

    async def fail() -> None:
        assert not gc.isenabled()
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_deterministic(fail, 0, VirtualClock())
    after = (
        _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING, gc.isenabled(), time.time, time.monotonic, random.random,
        uuid.uuid4, os.urandom, trio.to_thread.run_sync, random.Random.seed, open, io.open, subprocess.Popen.__init__,
    )  # fmt: skip
    assert before == after


@pytest.mark.parametrize(
    "use",
    [
        lambda: time.time(), lambda: time.monotonic(), lambda: time.sleep(0), lambda: random.random(),
        lambda: random.choice([1]), lambda: uuid.uuid4(), lambda: os.urandom(1), lambda: time.process_time(),
        lambda: random.Random(), lambda: random.Random(None), lambda: subprocess.run(["true"]),
        lambda: os.system("true"), lambda: Path("/dev/null").write_text("x"),
        lambda: Path("/dev/null").open("r+").close(), lambda: builtins.open("/dev/null", "w").close(),
    ],
)  # fmt: skip
def test_real_clocks_and_chance_are_refused(use: Callable[[], object]) -> None:
    async def main(ports: Ports) -> None:
        use()

    async def script(world: World) -> None:
        world.add_node("n", main, start=True)
        await world.sleep(1)

    failures = run_world(0, script).errors
    assert [type(failure.error) for failure in failures] == [StrayUse]


def test_seeded_chance_and_files_that_are_read_are_not_refused() -> None:
    async def main() -> tuple[float, str]:
        return random.Random(7).random(), readme()

    def readme() -> str:
        return Path(__file__).read_text(encoding="utf-8")

    assert run_deterministic(main, 0, VirtualClock()) == (random.Random(7).random(), readme())


def test_logging_and_threads_work_inside(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        logging.getLogger("app").warning("hello")
        return await anyio.to_thread.run_sync(lambda: 7)

    assert run_deterministic(main, 0, VirtualClock()) == 7
    assert "hello" in caplog.text


def test_a_deadlock_names_who_waits_where() -> None:
    async def stuck_here(ports: Ports) -> None:
        await anyio.Event().wait()

    async def script(world: World) -> None:
        world.add_node("n", stuck_here, start=True)
        await world.sleep(1)
        await anyio.Event().wait()

    started = time.perf_counter()
    (failure,) = run_world(0, script).errors
    assert time.perf_counter() - started < 5
    assert isinstance(failure.error, Deadlock)
    assert failure.kind == "stuck"
    assert "n (test_determinism.py" in failure.detail and "stuck_here" in failure.detail


def test_a_horizon_ends_the_run_even_if_all_is_shielded() -> None:
    ends: list[str] = []

    async def script(world: World) -> None:
        try:
            with anyio.CancelScope(shield=True):
                while True:
                    await anyio.sleep(3)
        finally:
            ends.append("finally")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            ends.append("never")

    result = run_world(0, script, horizon_s=100)
    assert isinstance(result.errors[0].error, HorizonReached)
    assert result.virtual_s == 100
    assert ends == ["finally"]


def test_a_livelock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "BATCHES_MAX", 2_000)

    async def script(world: World) -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    assert isinstance(run_world(0, script).errors[0].error, Livelock)


def test_a_script_that_fails_is_an_error_of_the_run() -> None:
    async def script(world: World) -> None:
        raise ValueError("boom")

    result = run_world(0, script)
    assert [(failure.kind, failure.detail) for failure in result.errors] == [("script", "ValueError: boom")]
    with pytest.raises(AssertionError, match=r"seed 0, 0\.000000 s, world script: ValueError: boom"):
        result.check()


def test_timers_of_one_instant_run_in_the_order_made_and_can_be_cancelled() -> None:
    clock = VirtualClock()
    calls: list[tuple[float, int]] = []

    async def main() -> None:
        timers = [clock.call_at(5, lambda at=at: calls.append((clock.current_time(), at))) for at in range(1000)]
        for timer in timers[10:]:
            timer.cancel()
            timer.cancel()
        late = clock.call_at(7, calls.append, (7.0, -1))
        await anyio.sleep(5)
        await anyio.sleep(1)
        late.cancel()
        assert anyio.current_time() == 6

    run_deterministic(main, 0, clock)
    assert calls == [(5.0, at) for at in range(10)]
    assert clock.current_time() == 6, "a cancelled timer does not move time"


def test_the_clocks_of_hosts_are_skewed_drift_and_jump() -> None:
    async def script(world: World) -> None:
        a, b = world.host("a"), world.host("b")
        start = a.wall()
        a.drift(0.5)
        await world.sleep(10)
        a.jump(-100)
        assert a.wall() == start + 15 - 100
        assert b.wall() == start + 10

    run_world(0, script).check()


def test_a_trace_refuses_addresses_and_is_not_changed_later() -> None:
    first, second = Trace(), Trace()
    rows = [1, {"b": {3, 1, 2}, "a": object()}]
    first.emit(1.0, "n", "e", {"rows": rows})
    rows.append(5)
    second.emit(1.0, "n", "e", {"rows": [1, {"a": object(), "b": {2, 1, 3}}]})
    assert first.hexdigest() == second.hexdigest()
    first.emit(2.0, "n", "e", {"text": repr(object())})
    with pytest.raises(AssertionError, match="an address"):
        first.hexdigest()


def test_listeners_see_every_row_and_can_stop_the_run() -> None:
    world = World(0)
    seen: list[str] = []
    world.trace.subscribe(lambda row: seen.append(row.event))

    async def script(world: World) -> None:
        world.emit("", "a")
        world.emit("", "b")

    world.run(script).check()
    assert seen == ["a", "b"]


def test_a_listener_that_raises_stops_the_run_whoever_emitted() -> None:
    world = World(0)

    def listen(row: Row) -> None:
        if row.event == "bad":
            raise AssertionError("violated")

    async def main(ports: Ports) -> None:
        try:
            ports.tracer.emit("bad")
        except BaseException:
            pass
        await anyio.sleep(1000)

    async def script(world: World) -> None:
        world.add_node("n", main, start=True)
        await world.sleep(1000)

    world.trace.subscribe(listen)
    result = world.run(script)
    assert [failure.detail for failure in result.errors] == ["AssertionError: violated"]
    assert result.virtual_s == 0
