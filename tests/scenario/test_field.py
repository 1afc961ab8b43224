"""Scenarios of rollout collection that need a test of their own: 10, 14, 22, 27, 28 and 61 of the field's list."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from faults.catalogue import Crash, CrashAtProbe, Lose, OnRow
from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.controller.published import newest_valid
from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.ports import Disk, File
from gym_ckpt.settings import ResourcesSettings
from sim.cluster import Cluster, Options, until
from sim.oracle import Oracle
from sim.reference import reference
from sim.workload import workload
from sim.world import World
from tests.scenario.plans import EVERYTHING, WHOLE, play, seen
from tests.unit.controller.bench import Bench, gym_of, slow_gym
from tests.unit.controller.fake_gym import thread_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# ------------------------------------------------------------------- 10: error and result in either order


@pytest.mark.parametrize("lost", ["neither", "the failure", "the result", "both"])
async def test_whichever_of_a_rows_failure_and_result_a_crash_takes_the_row_is_there_once(
    bench: Bench, lost: str
) -> None:
    """The two are in two files, and a crash may keep either without the other."""
    gym = gym_of()
    gym.failing = {"row-1": ["fail"]}
    await bench.run(gym)
    failures, output = bench.folder / "out_failures.jsonl", bench.output
    if lost in ("the failure", "both"):
        failures.write_bytes(b"")
    if lost in ("the result", "both"):
        kept = [line for line in output.read_bytes().splitlines(keepends=True) if b'"row-1"' not in line]
        output.write_bytes(b"".join(kept))
    again = gym_of()
    outcome = await bench.run(again, resume_from_cache=True)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert [episode.attempt for episode in again.runs] == ([2] if lost in ("the result", "both") else [])
    assert len(bench.failures()) == (lost in ("neither", "the result")), "and no failure is made up"


@pytest.mark.parametrize("k", [1, 4, 9])
@pytest.mark.parametrize("point", ["resources.before_effect", "resources.after_effect"])
def test_a_tools_effect_and_its_result_around_a_crash(point: str, k: int) -> None:
    """The tool dies with everything, between its effect and its reply or before both; INV-3 counts effects per row."""
    verdict = play(CrashAtProbe(point, k, WHOLE, everything=True))
    assert verdict.faults["crash_at_probe"] == 1 and verdict.checked["INV-3"] > 0
    assert seen(verdict, "collector.restored") or seen(verdict, "collector.retire")


@pytest.mark.parametrize("tool", ["add_item", "take_item"])
def test_tools_whose_results_are_lost_on_the_way_while_everything_dies_once(tool: str) -> None:
    verdict = play(Lose("inventory", tool, "after", 1, 6), Crash(EVERYTHING, OnRow("collector.published"), WHOLE))
    assert verdict.faults["lose.after"] >= 1 and verdict.checked["INV-3"] > 0


# ----------------------------------------------------- 14: a try that failed before the snapshot, and a restart


async def test_a_try_that_failed_before_the_snapshot_is_told_once_and_counted_once(bench: Bench) -> None:
    gym = await slow_gym(bench.rows + 2)
    gym.failing = {"row-1": ["http500"], "row-2": ["lose"]}

    async def two_lives() -> None:
        await bench.until(lambda: len(gym.done) == bench.rows)
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)

    await bench.crash(gym, two_lives)
    told = bench.failures()
    assert [(row["rollout_id"], row["attempt"], row["final"]) for row in told] == [("row-1", 0, False)]
    assert {(each["rollout_id"], each["attempt"]) for each in bench.collection()["continued"]} >= {
        ("row-1", 1), ("row-2", 1)
    }  # fmt: skip
    for _ in range(2):
        again = await slow_gym(bench.rows)
        await bench.crash(again, again.busy.wait, resume_from_cache=True)
        assert bench.failures() == told, "a restart reports nothing again"
        assert again.asked("retire") == [], "neither the failed try nor the lost one is retired once more"
    last = gym_of(steps=1)
    last.failing = {"row-1": ["http500"]}
    outcome = await bench.run(last, resume_from_cache=True, max_attempts=2)
    assert outcome.exit_code == 1, "the second failure is the last of two, not the third or the first"
    assert [row["final"] for row in bench.failures()] == [False, True]


# ----------------------------------------------------------------- 22: every file of the newest, cut at every byte


async def test_the_newest_checkpoint_cut_at_every_byte_of_each_file_is_passed_over(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, lambda: bench.two_checkpoints(gym.busy))
    older, newest = bench.checkpoints()
    assert bench.published() == newest
    run = json.loads((bench.directory / "run.json").read_text())["run_id"]
    said: list[str] = []

    async def chosen() -> str:
        source = await newest_valid(thread_disk(), str(bench.directory), run, start_over=False, say=said.append)
        assert source is not None and len(source.continued) == bench.rows
        return source.checkpoint_id

    folder = bench.directory / "checkpoints" / newest
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"manifest.json", "collection.json"} and len(files) == 3
    for path in [*files, bench.directory / "LATEST"]:
        whole = path.read_bytes()
        for cut in range(len(whole)):
            path.write_bytes(whole[:cut])
            said.clear()
            found = await chosen()
            if path.name == "LATEST":
                assert found == newest and (said or cut == len(whole) - 1), "what it named is found without it"
            elif cut < len(whole) - 1:
                assert found == older and any(newest in line and "cannot be used" in line for line in said)
        path.unlink()
        assert await chosen() == (newest if path.name == "LATEST" else older)
        path.write_bytes(whole)
    assert await chosen() == newest
    for path in folder.parent.rglob("manifest.json"):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InvalidCheckpointState, match="start_over"):
        await chosen()


# ------------------------------------------------------------------------ 27: a lock file swept under a waiter


def test_a_lock_file_that_is_swept_before_it_is_locked_makes_no_second_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the open and the lock of one process another sweeps the file, and a third locks the new one."""
    fs, path = PosixFileSystem(), str(tmp_path / "collector.pid")
    real = fcntl.flock
    third: list[Any] = []
    sweeps: list[Callable[[], object]] = [
        lambda: os.unlink(path),
        lambda: third.append(PosixFileSystem().try_lock(path, "3")),
    ]

    def flock(fd: int, how: int) -> None:
        if sweeps:
            todo, sweeps[:] = list(sweeps), []
            for sweep in todo:
                sweep()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert fs.try_lock(path, "1") is None, "the lock on the file that is gone is no lock"
    assert third[0] is not None and Path(path).read_text() == "3"
    third[0].release()
    again = fs.try_lock(path, "1")
    assert again is not None and Path(path).read_text() == "1"
    again.release()


async def test_a_lock_that_is_waited_for_is_never_the_old_file(tmp_path: Path) -> None:
    fs, path = PosixFileSystem(), str(tmp_path / "lock")
    held = fs.try_lock(path, "old")
    assert held is not None
    tried = [fs.try_lock(path, "waiting")]
    os.unlink(path)
    held.release()
    owners = [fs.try_lock(path, f"heir {number}") for number in range(3)]
    assert tried == [None] and [owner is not None for owner in owners] == [True, False, False]


# ------------------------------------------------------------- 28: calls per checkpoint and restart, not per rollout


class Counting(PosixFileSystem):
    """Counts what costs: syncs, directory listings, new files."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def fsync_dir(self, path: str) -> None:
        self.counts["fsync_dir"] += 1
        super().fsync_dir(path)

    def listdir(self, path: str) -> list[str]:
        self.counts["listdir"] += 1
        return super().listdir(path)

    def create(self, path: str) -> File:
        self.counts["create"] += 1
        return self._syncing(super().create(path))

    def append(self, path: str) -> File:
        return self._syncing(super().append(path))

    def _syncing(self, file: File) -> File:
        sync = file.fsync

        def fsync() -> None:
            self.counts["fsync"] += 1
            sync()

        vars(file)["fsync"] = fsync
        return file


class CountingBench(Bench):
    files: Counting

    def disk(self) -> Disk:
        return thread_disk(self.files)


async def cost(folder: Path, rows: int) -> tuple[Counter[str], Counter[str]]:
    """What one checkpoint of so many rows costs, and a restart until they all run again."""
    bench = CountingBench(folder, rows)
    bench.files = Counting()
    gym = await slow_gym(rows)
    gym.disk = thread_disk(bench.files)
    before: Counter[str] = Counter()

    async def one() -> None:
        await gym.busy.wait()
        before.update(bench.files.counts)
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)
        await bench.until(lambda: not gym.closed)

    await bench.crash(gym, one, concurrency=rows)
    checkpoint = bench.files.counts - before
    bench.files.counts.clear()
    gym = await slow_gym(rows)
    gym.disk = thread_disk(bench.files)
    await bench.crash(gym, gym.busy.wait, concurrency=rows, resume_from_cache=True)
    assert len(gym.asked("restore")[0]) == rows
    return checkpoint, bench.files.counts


async def test_a_checkpoint_and_a_restart_cost_as_many_syncs_and_scans_for_many_rows_as_for_few(tmp_path: Path) -> None:
    for name in ("few", "many"):
        (tmp_path / name).mkdir()
    few, many = await cost(tmp_path / "few", 5), await cost(tmp_path / "many", 500)
    assert many == few, "nothing is synced, scanned or made per rollout"
    assert few[0]["fsync"] >= 3 and few[1]["fsync"] >= 2, "and something was counted"


# ------------------------------------------------------------------------------- 61: state that holds a handle


def test_a_lock_in_the_state_fails_its_checkpoints_by_its_path_and_nothing_else() -> None:
    world = World(6, keep_all_rows=True)
    cluster = Cluster(world, workload(8), Options(every_s=0.3))
    inventory = cluster.gym.servers["inventory"]
    assert isinstance(inventory, ResourcesSettings)
    locked = msgspec.structs.replace(inventory, gym="tests.scenario.locked_gym:LockedGym")
    cluster.gym.servers["inventory"] = locked
    oracle = Oracle(world, cluster, reference(8))
    oracle.attach()

    async def script(world: World) -> None:
        cluster.start()
        assert await until(world, lambda: cluster.complete, 300.0)

    world.run(script, horizon_s=1000.0).check()
    oracle.judge()
    events = list(world.trace.rows)
    failed = [row.fields["reason"] for row in events if row.event == "collector.checkpoint_failed"]
    published = [row for row in events if row.event == "collector.published"]
    assert failed and all("export_failed" in why and "state.items.guard['held by']" in why for why in failed), failed
    assert published, "a checkpoint in which no state holds a handle is taken"
    assert not oracle.violations, "and every row is there, equal to the undisturbed run's"
