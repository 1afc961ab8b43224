"""One live collector, one run (INV-95)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from gym_ckpt.errors import ConfigError, TryLater
from gym_ckpt.ports import Lock
from gym_ckpt.storage import RunName, layout, look
from gym_ckpt.storage.ownership import claim_directory, claim_run
from sim.disk import SimFileSystem
from tests.unit.storage.driver import RUN, PowerCut, Tokens, checkpoint, run, strike


@dataclass
class Taken:
    lock: Lock
    fresh: bool


def take(disk: SimFileSystem, owner: str, run_id: str = "evaluation-1", token: str = "00000001") -> Taken:
    """As a run begins: the directory's lock, then whose run it is; the lock is free again unless both succeed."""
    view, name = disk.view(owner), RunName(run_id, {"output": f"{run_id}.jsonl"})
    lock = run(view, claim_directory(RUN, f"pid 7 on {owner}"))
    try:
        return Taken(lock, run(view, claim_run(RUN, name, token)))
    except ConfigError:
        lock.release()
        raise


@pytest.fixture
def disk() -> SimFileSystem:
    made = SimFileSystem(random.Random(3), journalled=False)
    made.make_dirs("/shared")
    return made


def test_a_second_collector_is_refused_by_name(disk: SimFileSystem) -> None:
    assert take(disk, "a").fresh
    with pytest.raises(TryLater, match="pid 7 on a"):
        take(disk, "b")


@pytest.mark.parametrize("how", ["crash", "end", "release"])
def test_the_lock_of_a_collector_that_is_gone_is_taken_over(disk: SimFileSystem, how: str) -> None:
    mine = take(disk, "a")
    if how == "release":
        mine.lock.release()
    else:
        getattr(disk, how)("a")
    assert not take(disk, "b").fresh
    mine.lock.release()
    with pytest.raises(TryLater, match="pid 7 on b"):
        take(disk, "a")


def test_another_runs_directory_is_refused_and_its_lock_left_free(disk: SimFileSystem) -> None:
    take(disk, "a").lock.release()
    before = disk.tree(RUN)
    with pytest.raises(ConfigError, match=r"another run \(output was evaluation-1.jsonl and is evaluation-2.jsonl\)"):
        take(disk, "b", "evaluation-2")
    del before[layout.collector_pid(RUN)]
    assert {path: data for path, data in disk.tree(RUN).items() if path in before} == before
    assert not take(disk, "a").fresh
    assert not run(disk.view("x"), look(RUN, RunName("evaluation-1"))).new


def test_checkpoints_of_an_unknown_run_are_not_taken_over(disk: SimFileSystem) -> None:
    disk.make_dirs(RUN)
    checkpoint(disk, "c1", Tokens())
    with pytest.raises(ConfigError, match=r"run\.json is missing, and its checkpoints are not all of this run"):
        take(disk, "a")


@pytest.mark.parametrize("damage", [None, b"{", b"[]"], ids=["lost", "torn", "other"])
def test_a_run_file_is_written_anew_where_the_checkpoints_say_whose_they_are(
    disk: SimFileSystem, damage: bytes | None
) -> None:
    take(disk, "a").lock.release()
    whole = disk.tree(RUN)[layout.run_file(RUN)]
    checkpoint(disk, "c1", Tokens(), {"run": "evaluation-1"})
    disk.view("x").unlink(layout.run_file(RUN))
    if damage is not None:
        file = disk.view("x").create(layout.run_file(RUN))
        file.write(damage)
        file.close()
    with pytest.raises(ConfigError, match=r"run\.json .*, and its checkpoints are not all of this run"):
        take(disk, "b", "evaluation-2")
    assert not take(disk, "a").fresh
    assert disk.tree(RUN)[layout.run_file(RUN)] == whole


def test_without_a_checkpoint_nothing_says_whose_directory_it_was(disk: SimFileSystem) -> None:
    take(disk, "a").lock.release()
    disk.view("x").unlink(layout.run_file(RUN))
    with pytest.raises(ConfigError, match="no checkpoint in it says whose it is: put that file back"):
        take(disk, "a")


def test_a_power_cut_at_every_call_of_a_claim_leaves_a_directory_that_can_be_claimed() -> None:
    for call in range(1000):
        disk = SimFileSystem(random.Random(call), journalled=call % 2 == 0)
        disk.make_dirs("/shared")
        hit = strike(disk, call, after=False, error=PowerCut)
        try:
            take(disk, "a")
        except PowerCut:
            pass
        disk.on_op = None
        disk.crash("a")
        claimed = take(disk, "b", token="00000002")
        assert hit() or not claimed.fresh, "a claim that was made outlives the cut"
        disk.crash("b")
        assert not run(disk.view("x"), look(RUN, RunName("evaluation-1"))).new
        if not hit():
            assert call > 10
            return
    raise AssertionError("the claim never ended")
