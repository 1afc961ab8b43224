"""Collections that are stopped, killed and continued, on real processes, against an undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from e2e.cluster import ROLLOUTS, Cluster, command
from gym_ckpt.cli.demo_figures import compare, effects, lost_calls, read_saved
from gym_ckpt.cli.demo_gym import COLLECTOR, SERVERS
from gym_ckpt.limits import ONE_SIGTERM_S
from gym_ckpt.wire import json

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
async def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Rows of a run that nothing happened to."""
    async with Cluster(tmp_path_factory.mktemp("undisturbed"), "reference") as cluster:
        await cluster.start()
        await cluster.collect(resume=False)
        assert await cluster.collected() == 0
        assert cluster.gym.summary()["counts"]["finished"] == ROLLOUTS
        return cluster.gym.rows()


def assert_same(rows: Rows, expected: Rows) -> None:
    """Every row once, and equal."""
    compared = compare(expected, rows)
    assert (compared.duplicated, compared.missing, compared.differing) == (0, [], [])
    assert effects(rows) == effects(expected) > 0


async def test_a_stop_by_sigterm_is_continued(tmp_path: Path, undisturbed: Rows) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.collect(resume=False)
        await cluster.until_delivered(ROLLOUTS)
        status, said, _ = await command("stop", str(cluster.gym.run_dir))
        assert (status, "takes a checkpoint if rows are in flight, and stops" in said) == (0, True)
        assert await cluster.collected() == 0
        assert "--resume" in cluster.gym.summary()["message"]
        saved = read_saved(str(cluster.gym.run_dir))
        assert len(saved.continued) >= ROLLOUTS // 2

        status, said, complaint = await command("stop", str(cluster.gym.run_dir))
        assert (status, said) == (1, "") and "has ended" in complaint
        status, said, _ = await command("inspect", str(cluster.gym.run_dir), "--verify", "--json")
        assert status == 0 and json.loads(said.encode())["latest"] == saved.checkpoint_id

        assert await cluster.servers.kill_all() == len(SERVERS)
        await cluster.start()
        await cluster.collect(resume=True)
        assert await cluster.collected() == 0
        assert cluster.gym.summary()["continued"] == len(saved.continued)
        assert_same(cluster.gym.rows(), undisturbed)
        assert lost_calls(saved, cluster.gym.rows()) == []


async def test_everything_killed_after_a_checkpoint_is_continued(tmp_path: Path, undisturbed: Rows) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.collect(resume=False)
        await cluster.until_delivered(ROLLOUTS)
        assert (await command("checkpoint", str(cluster.gym.run_dir)))[0] == 0
        await cluster.until_traced("collector.published")
        await anyio.sleep(0.3)
        assert await cluster.servers.kill_all() == len(SERVERS) + 1
        saved = read_saved(str(cluster.gym.run_dir))

        await cluster.start()
        await cluster.collect(resume=True)
        assert await cluster.collected() == 0
        assert_same(cluster.gym.rows(), undisturbed)
        assert lost_calls(saved, cluster.gym.rows()) == []


async def test_a_killed_collector_with_surviving_servers_repeats_from_input(tmp_path: Path, undisturbed: Rows) -> None:
    """The servers still run the dead collector's episodes: none of them may reach the output."""
    async with Cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.collect(resume=False)
        await cluster.until_delivered(ROLLOUTS // 2)
        cluster.gym.ask_for_checkpoint(cluster.servers)
        await cluster.until_traced("collector.published")
        await cluster.until_idle()
        await cluster.kill(COLLECTOR)
        await cluster.collect(resume=True)
        assert await cluster.collected() == 0
        rows = cluster.gym.rows()
        assert_same(rows, undisturbed)
        assert any("stayed up" in line for line in cluster.gym.lines), cluster.gym.last_words()
        assert all(row["attempt"] >= 1 for row in rows)


async def test_a_second_sigterm_stops_at_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.collect(resume=False)
        await cluster.until_delivered(1)
        cluster.servers.signal("agent", signal.SIGSTOP)  # so that the stop's checkpoint cannot end
        cluster.servers.signal(COLLECTOR, signal.SIGTERM)
        await cluster.until_traced("collector.signal")
        await anyio.sleep(2 * ONE_SIGTERM_S)  # two within that time are one
        cluster.servers.signal(COLLECTOR, signal.SIGTERM)
        assert await cluster.collected() == 143
        cluster.servers.signal("agent", signal.SIGCONT)


async def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.collect(resume=False)
        await cluster.until_delivered(ROLLOUTS // 2)
        cluster.servers.signal(COLLECTOR, signal.SIGTERM)
        assert await cluster.collected() == 0
        episode = sorted(read_saved(str(cluster.gym.run_dir)).continued)[0]
        status, said, _ = await command("inspect", str(cluster.gym.run_dir), "--episode", episode, "--json")
        kinds = {each["kind"] for each in json.loads(said.encode())}
        assert status == 0 and {"environment", "agent", "model"} <= kinds
        records = sorted(cluster.gym.run_dir.glob("checkpoints/*/gym/agent/*/records-*.jsonl"))[0]
        damaged = bytearray(records.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        records.write_bytes(damaged)
        status, said, _ = await command("inspect", str(cluster.gym.run_dir), "--verify")
        assert status == 1 and records.name in said
