"""The same plan files in the simulator and on real processes: the same faults strike, and the rows are the same.

That keeps the simulator honest: what it says of a crash, a stopped process, a cut link or a full disk is what happens.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from e2e.nursery import Nursery
from e2e.plans import NotHere, RealRun
from e2e.proxy import Links
from faults import catalogue as faults
from faults.catalogue import EVERYTHING, At, OnPhase, OnRow, Restart
from faults.plan import App, Plan, Setup, dump, load
from faults.schedule import OneByOne
from gym_ckpt.adapters.host import free_ports
from sim.reference import reference
from sim.report import screen
from sim.run import run_seed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PUBLISHED = OnRow("collector.published")
ALONE, WHOLE = Restart("alone", 0.2), Restart("whole", 0.1)


def plan(*struck: faults.Fault, number: int = 1, every_s: float | None = 0.5, apps: tuple[App, ...] = ()) -> Plan:
    setup = Setup(workload=number, every_s=every_s, timeout_s=8.0, grace_s=6.0, apps=apps)
    return Plan(setup, chaos_s=8.0, requeue=WHOLE, faults=struck)


PLANS: dict[str, Plan] = {
    "everything dies after a checkpoint": plan(faults.Crash((EVERYTHING,), PUBLISHED, WHOLE)),
    "everything dies twice": plan(
        faults.Crash((EVERYTHING,), PUBLISHED, WHOLE), faults.Crash((EVERYTHING,), OnRow("collector.restored"), WHOLE)
    ),
    "the agent dies alone": plan(faults.Crash(("agent",), At(0.5), ALONE), number=5),
    "the collector dies alone": plan(faults.Crash(("controller",), PUBLISHED, ALONE), number=2),
    "a host dies": plan(faults.CrashHost("gpu", At(0.6), WHOLE), number=2),
    "the policy model is stopped for a while": plan(faults.Pause("policy", At(0.4), 0.8), number=3),
    "the collector is stopped for a while, and then all dies": plan(
        faults.Pause("controller", PUBLISHED, 0.6), faults.Crash((EVERYTHING,), OnRow("collector.published", 2), WHOLE)
    ),
    "a stop is asked for": plan(faults.Signal("SIGTERM", At(0.6)), number=9),
    "a checkpoint is asked for, and all dies": plan(
        faults.Signal("SIGUSR1", At(0.5)), faults.Crash((EVERYTHING,), PUBLISHED, WHOLE), every_s=None
    ),
    "an agent's disk is full once": plan(faults.DiskError("agent", "ENOSPC", 2, step="records.write"), number=7),
    "the dispatch log fails once": plan(faults.DiskError("controller", "EIO", 4, step="log.write"), number=3),
    "the policy model cannot be reached for a while": plan(
        faults.Partition("agent", "policy", 0.3, 0.7, silent=False), number=3
    ),
    "an author's own server dies with everything after a checkpoint": plan(
        faults.Crash((EVERYTHING,), PUBLISHED, WHOLE),
        number=2,
        apps=(App("inventory", "examples.letters:build"),),
    ),
    "links of agent and tools are half-open": plan(faults.HalfOpen("environment", "agent", At(0.4), 0.0), number=6),
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short name: those of Unix sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="plan", dir="/tmp") as made:
        yield Path(made)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_gives_the_same_rows_in_the_simulator_and_on_real_processes(
    name: str, nursery: Nursery, folder: Path
) -> None:
    file = folder / "plan.json"
    file.write_bytes(dump(PLANS[name]))
    simulated = run_seed(1, "kept", plan=load(file.read_bytes()))
    assert simulated.ok, screen(simulated, "this test")
    with Links() as links:
        real = RealRun(nursery, links, folder / "g", load(file.read_bytes())).play()
    assert real.complete, f"{real.statuses}\n{real.said[-3000:]}"
    expected = reference(PLANS[name].setup.workload, PLANS[name].setup.apps).output
    assert Counter(real.output.rows) == Counter(expected.rows)
    assert dict(real.output.effects) == dict(expected.effects)
    assert dict(real.output.tokens) == dict(expected.tokens)
    assert set(real.struck) == set(simulated.faults) == {faults.kind_of(each) for each in PLANS[name].faults}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (plan(faults.ClockDrift("agent", 0.1)), "not on real processes"),
        (plan(faults.Crash(("agent",), OnPhase("prepared"))), "know no such moment"),
        (plan(faults.Crash(("agent",), At(0.1), silent=True)), "is heard of"),
        (plan(faults.Crash(("nobody",), At(0.1))), "is heard of"),
        (plan(faults.Signal("SIGTERM", At(0.1), group=True)), "only the collector"),
        (plan(faults.HalfOpen("environment", "agent", At(0.1), 1.0)), "given up"),
        (plan(faults.Partition("*", "policy", 0.1, 1.0)), "no such process"),
        (plan(faults.Pause("policy2", At(0.1), 1.0), number=0), "no such process"),
        (plan(faults.DiskError("agent", "EIO", 1, 2, "records.write")), "one call"),
        (plan(faults.DiskError("agent", "EIO", 1, step="records.write", call=2)), "one call"),
        (plan(faults.DiskError("policy", "EIO", 1, step="ledger.write")), "one call"),
        (plan(faults.DiskError("agent", "EIO", 1, step="records.hash")), "one call"),
        (plan(*(faults.DiskError("agent", "EIO", k, step="records.write") for k in (1, 2))), "one for each process"),
        (replace(plan(), schedule=OneByOne()), "the simulator's"),
        (replace(plan(), heal=Restart("whole")), "the simulator's"),
        (replace(plan(), setup=Setup(journalled=False)), "the simulator's"),
    ],
)
def test_what_real_processes_do_not_have_is_refused(asked: Plan, why: str, nursery: Nursery, folder: Path) -> None:
    with Links() as links, pytest.raises(NotHere, match=why):
        RealRun(nursery, links, folder / "g", asked)
    assert not nursery.alive, "before any process starts"


@pytest.mark.parametrize("unix", [False, True])
def test_a_link_refuses_falls_silent_and_goes_on(unix: bool, folder: Path) -> None:
    port, proxy_port = free_ports(2)
    at, to = (folder / "a.sock", folder / "b.sock") if unix else (proxy_port, port)

    async def connect() -> anyio.abc.SocketStream:
        return await (anyio.connect_unix(at) if isinstance(at, Path) else anyio.connect_tcp("127.0.0.1", at))

    async def echo(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data.upper())

    async def lost(stream: anyio.abc.SocketStream) -> bool:
        with anyio.fail_after(10):
            try:
                await stream.send(b"lost")
                await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                return True
        return False

    async def refused() -> bool:
        try:
            async with await connect() as stream:
                return await lost(stream)
        except OSError:  # so soon that there never was a connection
            return True

    async def main(links: Links) -> None:
        listener = (
            await anyio.create_unix_listener(to)
            if isinstance(to, Path)
            else await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=to)
        )
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            await anyio.to_thread.run_sync(links.add, "a", "b", at, to)
            async with await connect() as stream:
                await stream.send(b"hello")
                assert await stream.receive() == b"HELLO"
                await anyio.to_thread.run_sync(links.set, "a", "b", "silent")
                await stream.send(b"unheard")
                with anyio.move_on_after(0.1) as silence:
                    await stream.receive()
                assert silence.cancelled_caught
                await anyio.to_thread.run_sync(links.set, "a", "b", "open")
                assert await lost(stream), "what a silence has swallowed is reset at its end"
            await anyio.to_thread.run_sync(links.set, "a", "b", "refusing")
            assert await refused()
            await anyio.to_thread.run_sync(links.set, "a", "b", "open")
            async with await connect() as stream:
                await stream.send(b"again")
                assert await stream.receive() == b"AGAIN"
            tasks.cancel_scope.cancel()

    with Links() as links:
        anyio.run(main, links)
