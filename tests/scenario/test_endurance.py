"""Runs that are killed again and again, and episodes that hang again and again (scenarios 9 and 16)."""

from __future__ import annotations

import msgspec
import pytest

from faults.catalogue import Lose, Restart, SlowDisk
from faults.collector_patches import rows_not_awaited
from faults.inject import Injector
from faults.plan import Plan, Setup
from gym_ckpt.settings import EnvironmentSettings
from gym_ckpt.wire import json
from sim.cluster import OUTPUT, Cluster, Options, until
from sim.report import screen
from sim.run import run_seed
from sim.workload import CONTROLLER, workload
from sim.world import World


def test_a_run_killed_twenty_times_ends_with_every_row_the_long_ones_too() -> None:
    runs = restored = 0
    for seed in range(24):
        verdict = run_seed(seed, "endurance", keep_all_rows=True)
        assert verdict.ok, screen(verdict, "pytest tests/scenario/test_endurance.py")
        if verdict.faults["crash"] < 20:
            continue  # it had finished before
        assert verdict.checked["INV-1"] and verdict.checked["INV-38"]
        runs += 1
        restored += sum(row.event == "collector.restored" for row in verdict.rows)
        if runs == 4:
            break
    assert runs == 4
    assert restored >= 20, "many lives were to continue a checkpoint"


def test_episodes_that_hang_on_every_attempt_end_in_terminal_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the job is stopped and started again before a time-out has passed: time worked counts on."""
    monkeypatch.setattr("sim.cluster.MAX_ATTEMPTS", 2)
    work = workload(3)
    plan = Plan(faults=tuple(Lose(each, "completions", "hang", 1, 10**6) for each in work.workers))
    injector = Injector(1, plan, (*work.servers, CONTROLLER), CONTROLLER)
    world = World(1, injector)
    cluster = Cluster(world, work, Options(every_s=3.0))
    environment = cluster.gym.servers["environment"]
    assert isinstance(environment, EnvironmentSettings)
    cluster.gym.servers["environment"] = msgspec.structs.replace(environment, episode_timeout_s=10.0)
    injector.attach(world)

    async def script(world: World) -> None:
        for _ in range(12):  # each life is shorter than the time-out
            cluster.start()
            if await until(world, lambda: not world.nodes[CONTROLLER].alive, 7.0):
                return
            cluster.crash()

    world.run(script, 1000.0).check()
    assert cluster.outcome is not None and cluster.outcome.exit_code == 1, cluster.refusal
    assert "8 failed" in cluster.outcome.message
    failures = world.disk.tree(OUTPUT.replace(".jsonl", "_failures.jsonl"))
    rows = [json.loads(line) for data in failures.values() for line in data.splitlines()]
    assert len({row["rollout_id"] for row in rows if row["final"]}) == 8
    assert all("episode_timeout_s" in row["reason"] for row in rows)


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "as it must not be"])
def test_rows_on_a_slow_disk_are_awaited_by_the_checkpoint_that_leaves_them_out(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Scenario 11. Too rare a moment for the campaign to find the bug in reasonable time: so it is planted here."""
    for owner, name, value in rows_not_awaited() if broken else ():
        monkeypatch.setattr(owner, name, value)
    slow = SlowDisk("controller", 3.0, 3, 100, "log.write")
    plan = Plan(Setup(workload=3, every_s=0.5), 30.0, Restart("whole", 0.1), Restart(), (slow,))
    verdict = run_seed(1, "scenario", plan=plan, keep_all_rows=True)
    assert {violation.invariant for violation in verdict.violations} == ({"INV-91"} if broken else set())
    assert verdict.faults["slow_disk"] > 1
