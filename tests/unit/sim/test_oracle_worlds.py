"""The oracle before whole worlds: silent where all is well, though it looked, and not where the gym is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gym_ckpt.core.admission import AdmissionBook, State
from gym_ckpt.participants import resources
from gym_ckpt.ports import Ports
from gym_ckpt.storage import layout
from gym_ckpt.wire.messages import Status
from sim.cluster import RUN_DIR, Cluster, Options, until
from sim.determinism import park
from sim.oracle import Oracle
from sim.reference import reference
from sim.workload import CONTROLLER, SERVERS, workload
from sim.world import World

WORKLOAD = 3
ALWAYS = {1, 2, 3, 4, 5, 11, 14, 16, 17, 18, 30, 37, 38, 40, 41, 48, 49, 51, 52, 53, 90, 91, 94}
"""Looked at in any run with a checkpoint."""
AT_RESTORE = {6, 60, 61, 62, 63, 65, 66, 68}
AT_RETIRE = {31, 32, 33, 93}


def play(
    disturb: Callable[[World, Cluster], Any] | None = None, *, seed: int = 0, cluster_of: type[Cluster] = Cluster
) -> Oracle:
    """A run with a checkpoint every second, from start to rest."""
    expected = reference(WORKLOAD)
    world = World(seed)
    cluster = cluster_of(world, workload(WORKLOAD), Options(every_s=1.0, timeout_s=5.0, grace_s=2.0))
    ports: list[Ports] = []

    async def operator(given: Ports) -> None:
        ports.append(given)
        await park()

    async def script(_: World) -> None:
        world.nodes["operator"].start()
        cluster.start()
        if disturb is not None:
            await disturb(world, cluster)
        if await until(world, lambda: cluster.complete, 300):
            await oracle.finish(ports[0])

    world.add_node("operator", operator)
    oracle = Oracle(world, cluster, expected)
    oracle.attach()
    world.run(script, 1000).check()
    oracle.judge()
    return oracle


async def lose_everything(world: World, cluster: Cluster) -> None:
    await until(world, lambda: world.now > 1.9, 10)
    for name in (*SERVERS, CONTROLLER):
        world.nodes[name].crash()
    cluster.start()


async def lose_the_environment(world: World, cluster: Cluster) -> None:
    await until(world, lambda: world.now > 1.9, 10)
    world.nodes["environment"].crash()
    cluster.start()


def looked(oracle: Oracle) -> set[int]:
    return {int(name.removeprefix("INV-")) for name, count in oracle.checked.items() if count}


def test_a_calm_run_with_checkpoints_breaks_nothing_and_everything_was_looked_at() -> None:
    oracle = play()
    assert oracle.violations == []
    assert looked(oracle) >= ALWAYS
    assert oracle.acknowledged["collector.row"] == 8 and oracle.acknowledged["collector.published"] >= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_lost_everything_and_was_restored_breaks_nothing(seed: int) -> None:
    oracle = play(lose_everything, seed=seed)
    assert oracle.violations == []
    assert looked(oracle) >= ALWAYS | AT_RESTORE
    assert oracle.acknowledged["collector.restored"] == 1


def test_a_run_that_lost_a_server_breaks_nothing() -> None:
    oracle = play(lose_the_environment)
    assert oracle.violations == []
    assert looked(oracle) >= ALWAYS | AT_RETIRE


def test_looking_changes_nothing() -> None:
    def run(watched: bool) -> str:
        world = World(3)
        cluster = Cluster(world, workload(WORKLOAD), Options(every_s=1.0))
        if watched:
            Oracle(world, cluster, reference(WORKLOAD)).attach()

        async def script(_: World) -> None:
            cluster.start()
            await lose_everything(world, cluster)
            await until(world, lambda: cluster.complete, 300)

        return world.run(script, 1000).check().hash

    assert run(True) == run(False)


# ------------------------------------------------------------------------------------------------- broken gyms


def found(oracle: Oracle) -> set[str]:
    return {violation.invariant for violation in oracle.violations}


def test_a_gym_that_admits_while_closed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-14."""
    real = AdmissionBook.arrive

    def arrive(self: AdmissionBook, episode: Any) -> Any:
        closed, self.closed = self.closed, False
        ticket = real(self, episode)
        self.closed = closed
        assert ticket.state is State.PARKED
        return ticket

    monkeypatch.setattr(AdmissionBook, "arrive", arrive)
    assert found(play()) == {"INV-14"}


def test_a_gym_that_delivers_while_closed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-11."""
    real = AdmissionBook.begin

    def begin(self: AdmissionBook, ticket: Any) -> bool:
        closed, self.closed = self.closed, False
        begun = real(self, ticket)
        self.closed = closed
        return begun

    monkeypatch.setattr(AdmissionBook, "begin", begin)
    assert "INV-11" in found(play())


def test_a_gym_that_repeats_tool_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-3, seen at the effect and again in the rows, with the rewards that follow from it."""
    real = resources.ResourcesParticipant._effect

    async def twice(self: Any, *args: Any) -> Any:
        await real(self, *args)
        return await real(self, *args)

    monkeypatch.setattr(resources.ResourcesParticipant, "_effect", twice)
    broken = found(play())
    assert "INV-3" in broken and broken <= {"INV-1", "INV-3", "INV-4"}


def test_a_server_that_stays_closed_is_found() -> None:
    """INV-5."""

    async def at_the_end(world: World, cluster: Cluster) -> None:
        await until(world, lambda: cluster.complete, 300)
        world.emit("verifier", "admission.closed")

    assert found(play(at_the_end)) == {"INV-5"}


@pytest.mark.parametrize(
    ("fields", "broken"),
    [
        ({"lease_expires_at": 5.0, "phase": "prepared", "checkpoint_id": "c-9"}, {"INV-53"}),
        ({"live": ("r",)}, {"INV-5"}),
        ({"phase": "restored"}, {"INV-5"}),
    ],
)
def test_a_server_that_does_not_come_to_rest_is_found(fields: dict[str, Any], broken: set[str]) -> None:
    class Restless(Cluster):
        async def statuses(self, ports: Ports) -> dict[str, Status]:
            statuses = await super().statuses(ports)
            plain = {name: getattr(statuses["agent"], name) for name in Status.__struct_fields__}
            return statuses | {"agent": Status(**plain | fields)}

    assert found(play(cluster_of=Restless)) == broken


@pytest.mark.parametrize(
    "path",
    [
        f"{RUN_DIR}/LATEST.0123456789abcdef.tmp",
        f"{RUN_DIR}/checkpoints/c-9/gym/agent/agent/records-{'0' * 64}.jsonl",
    ],
)
def test_a_file_that_is_left_over_is_found(path: str) -> None:
    """INV-5: a temporary file, an orphaned record."""

    async def leave(world: World, cluster: Cluster) -> None:
        await until(world, lambda: cluster.complete, 300)
        world.disk.make_dirs(layout.parent_of(path))
        world.disk.view("operator").create(path).write(b"x")

    assert found(play(leave)) == {"INV-5"}


def test_a_run_that_did_nothing_is_no_pass() -> None:
    world = World(0)
    cluster = Cluster(world, workload(WORKLOAD), Options())
    oracle = Oracle(world, cluster, reference(WORKLOAD))
    oracle.attach()

    async def script(_: World) -> None:
        return

    world.run(script).check()
    oracle.judge()
    assert found(oracle) == {"RUN-idle"}
