"""Restores into a shared ledger: clearing, import, retiring; crashes at every step; several servers; the cost."""

from __future__ import annotations

from collections import Counter

import pytest

from gym_ckpt.core.lineage import Poison
from gym_ckpt.errors import InvalidCheckpointState, InvalidRequest
from gym_ckpt.limits import LEDGER_ATTEMPTS_MAX
from gym_ckpt.storage.ledger import (
    Appended,
    Exported,
    append_poison,
    append_row,
    begin_restore,
    continue_restore,
    export,
    read_lineage,
    retire,
    start,
)
from gym_ckpt.storage.ledger.names import lock_number, lock_path
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from sim.disk import SimFileSystem
from tests.unit.ledger.given import DIR, R0, a_row, chain, ep, files, free, names, new_disk, restore
from tests.unit.storage.driver import PowerCut, calm, run, strike

LOOK_ALIKES = ("r-1", "r.b", "r-a2x", "R", "rr", "r-a", "r-a1-b", "r.lineage", "r.lineage.fence", "r-a2.lineage.jsonl")


def write(disk: SimFileSystem, episode: EpisodeId, *call_ids: str) -> None:
    for call_id in call_ids:
        assert free(disk.view("old"), append_row(DIR, episode, a_row(call_id, episode))) is Appended.WRITTEN


def record(episode: EpisodeId, *call_ids: str, poison: tuple[Poison, ...] = ()) -> Exported:
    return Exported(episode, tuple(a_row(call_id, episode) for call_id in call_ids), poison)


def everything_of(disk: SimFileSystem, episode: EpisodeId) -> None:
    """All four files of a capture key."""
    write(disk, episode, f"{episode.key}-old")
    free(disk.view("old"), append_poison(DIR, episode, Poison("x", "old")))
    free(disk.view("old"), start(DIR, episode))
    disk.view("old").create(f"{DIR}/{episode.key}.lineage.fence").close()


def test_dead_executions_leave_nothing_at_the_target_and_later_not_even_a_fence() -> None:
    """Scenario 85, and INV-62: for every episode in scope, whether or not the checkpoint has rows for it."""
    disk = new_disk()
    for attempt in range(5):
        everything_of(disk, EpisodeId("r", attempt))
        everything_of(disk, EpisodeId("empty", attempt))
    restore(disk.view("one"), DIR, [ep("r-a1"), ep("empty-a1")], [record(ep("r-a1"), "c0")])
    assert names(disk) == [
        "empty-a1.lineage.fence", "empty.lineage.fence",
        "r-a1.lineage.fence", "r-a2.lineage.jsonl", "r.lineage.fence",
    ]  # fmt: skip
    assert free(disk.view("one"), append_row(DIR, ep("r-a2"), a_row("fresh", ep("r-a2")))) is Appended.WRITTEN
    for key in ("r", "r-a1", "empty", "empty-a1"):
        assert free(disk.view("two"), append_row(DIR, ep(key), a_row("late", ep(key)))) is Appended.FENCED


def test_look_alike_ids_are_untouched() -> None:
    disk = new_disk()
    for rollout_id in LOOK_ALIKES:
        for attempt in (0, 2):
            everything_of(disk, EpisodeId(rollout_id, attempt))
    before = files(disk)
    everything_of(disk, ep("r-a3"))
    restore(disk.view("one"), DIR, [ep("r-a1")], [record(ep("r-a1"), "c0")])
    after = files(disk)
    ours = {"r.lineage.fence", "r-a1.lineage.fence", "r-a2.lineage.jsonl"}
    assert {name: data for name, data in after.items() if name not in ours} == before
    assert after.keys() - before.keys() == ours


def test_rows_come_back_as_they_were_under_the_next_attempt_over_any_number_of_restores() -> None:
    """INV-64: the capture key of the first staging stays."""
    disk = new_disk()
    rows, _, _ = chain(R0, 2)
    for row in rows:
        free(disk.view("one"), append_row(DIR, R0, row))
    at = R0
    for _ in range(4):
        saved = run(disk.view("one"), export(DIR, [at]))
        restore(disk.view("one"), DIR, [at], saved)
        at = at.next()
        assert run(disk.view("one"), read_lineage(DIR, at)).rows == tuple(rows)
        assert {row.capture_key for row in rows} == {"r"}
    assert names(disk) == [f"{EpisodeId('r', n).key}.lineage.fence" for n in (1, 2, 3)] + [
        "r-a4.lineage.jsonl", "r.lineage.fence",
    ]  # fmt: skip


def test_poison_of_carried_rows_is_carried() -> None:
    disk = new_disk()
    entry = Poison("c0", "parent_unresolved")
    restore(disk.view("one"), DIR, [R0], [record(R0, "c0", poison=(entry,))])
    assert run(disk.view("one"), read_lineage(DIR, ep("r-a1"))).poison == (entry,)


def test_the_same_checkpoint_again_gives_the_same_state_whatever_ran_in_between() -> None:
    """INV-65."""
    disk = new_disk()
    scope = [ep("r-a1"), ep("q")]
    records = [record(ep("r-a1"), "c0", "c1"), record(ep("q"), "d0")]
    restore(disk.view("one"), DIR, scope, records)
    first = files(disk)
    for key in ("r-a2", "r-a3", "q-a1", "q-a2"):
        free(disk.view("one"), start(DIR, ep(key)))
        free(disk.view("one"), append_row(DIR, ep(key), a_row("ran", ep(key))))
    run(disk.view("one"), retire(DIR, [ep("r-a4"), ep("q-a1")]))
    restore(disk.view("two"), DIR, scope, records)
    assert files(disk) == first


def test_two_servers_restore_into_one_directory_in_any_interleaving() -> None:
    """Scenario 80: each meets the other's files, at every step of the other's work."""
    scope = [ep("r-a1"), ep("q")]
    records = [record(ep("r-a1"), "c0"), record(ep("q"), "d0")]
    alone = new_disk()
    everything_of(alone, ep("r-a2"))
    restore(alone.view("one"), DIR, scope, records)
    met = 0
    for pause in range(12):
        disk = new_disk()
        everything_of(disk, ep("r-a2"))
        work = run(disk.view("one"), begin_restore(DIR, scope, records))
        steps = continue_restore(work)(disk.view("one"))
        for _ in range(pause):
            next(steps, None)
        other = run(disk.view("two"), begin_restore(DIR, scope, records))
        run(disk.view("two"), continue_restore(other))
        for _ in steps:
            pass
        met += bool(other.episodes)
        while work.episodes or other.episodes:
            run(disk.view("two"), continue_restore(other))
            run(disk.view("one"), continue_restore(work))
        assert files(disk) == files(alone)
    assert met > 3, "the other server met a held lock"


@pytest.mark.parametrize("journalled", [True, False])
def test_a_crash_at_every_call_of_a_restore_and_then_the_restore_again(journalled: bool) -> None:
    scope = [ep("r-a1"), ep("q")]
    records = [record(ep("r-a1"), "c0", "c1"), record(ep("q"), "d0")]

    def before(seed: int) -> SimFileSystem:
        disk = new_disk(seed, journalled=journalled)
        for key in ("r", "r-a1", "r-a2", "r-a3", "q-a1"):
            everything_of(disk, ep(key))
        return disk

    undisturbed = before(0)
    restore(undisturbed.view("one"), DIR, scope, records)
    crashes = 0
    for call in range(80):
        for after in (False, True):
            disk = before(call)
            hit = strike(disk, call, after=after, error=PowerCut)
            try:
                restore(disk.view("one"), DIR, scope, records)
            except PowerCut:
                pass
            calm(disk)
            crashes += hit()
            for owner in ("one", "old"):
                disk.crash(owner)
            restore(disk.view("one"), DIR, scope, records)
            assert files(disk) == files(undisturbed)
            disk.crash("one")
            # Rows need no sync, the checkpoint holds them; but no fence may be lost, and none may come back.
            fences = [name for name in names(undisturbed) if name.endswith("fence")]
            assert [name for name in names(disk) if name.endswith("fence")] == fences
    assert 40 < crashes < 120, "every call was struck, and the tries went past the last"


def test_a_held_lock_delays_its_rollouts_alone() -> None:
    disk = new_disk()
    scope = [EpisodeId(f"r{n}", 0) for n in range(20)]
    held = disk.view("two").try_lock(lock_path(DIR, lock_number("r7")), "")
    assert held is not None
    work = run(disk.view("one"), begin_restore(DIR, scope, [record(each, "c") for each in scope]))
    run(disk.view("one"), continue_restore(work))
    assert ep("r7") in work.episodes and len(work.episodes) < 5
    held.release()
    run(disk.view("one"), continue_restore(work))
    assert work.episodes == []
    assert len(names(disk)) == 40


def test_one_listing_no_file_synced_and_work_that_grows_with_the_scope_alone() -> None:
    """Scenario 28."""
    counts: dict[int, Counter[str]] = {}
    for foreign in (0, 500):
        disk = new_disk()
        for n in range(foreign):
            disk.view("old").create(f"{DIR}/foreign{n}.lineage.jsonl").close()
        scope = [EpisodeId(f"r{n}", 1) for n in range(30)]
        for episode in scope:
            write(disk, episode, "c0")
        ops: Counter[str] = Counter()
        disk.on_op = lambda _owner, op, _path, ops=ops: ops.update([op])
        restore(disk.view("one"), DIR, scope, [record(episode, "c0") for episode in scope])
        counts[foreign] = ops
    assert counts[0] == counts[500]
    assert counts[0]["listdir"] == 1
    assert counts[0]["fsync"] == 0
    assert counts[0]["fsync_dir"] == 1
    assert counts[0].total() <= 12 * 30


def test_an_exported_state_is_parsed_back_or_refused_before_anything_is_installed() -> None:
    saved = record(ep("r-a1"), "c0", "c1", poison=(Poison("c0", "x", "why"),))
    state = json.loads(json.dumps(saved.state()))
    assert Exported.parse(ep("r-a1"), state) == saved
    assert Exported.parse(ep("r-a7"), state).rows == saved.rows
    for episode, wrong in [
        (ep("r-a1"), {"rows": state["rows"]}),
        (ep("r-a1"), state | {"more": 1}),
        (ep("r-a1"), state | {"rows": [*state["rows"], state["rows"][0]]}),
        (ep("r-a1"), state | {"rows": [state["rows"][0] | {"cum_len": "4"}]}),
        (ep("r"), state),
        (ep("r-1"), state),
        (ep("r-a1"), None),
    ]:
        with pytest.raises(InvalidCheckpointState):
            Exported.parse(episode, wrong)


@pytest.mark.parametrize("left", ["same", "longer", "other", "torn", "none"])
def test_whatever_the_dead_execution_left_the_rows_are_the_checkpoints(left: str) -> None:
    """Its file is taken over when it begins with them, and only then."""
    disk = new_disk()
    saved = record(R0, "c0", "c1")
    rows = b"".join(row.encode() + b"\n" for row in saved.rows)
    there = {"same": rows, "longer": rows + rows, "other": rows.replace(b"c1", b"c2"), "torn": rows[:-9], "none": None}
    if there[left] is not None:
        disk.view("old").create(f"{DIR}/r.lineage.jsonl").write(there[left] or b"")
    made: list[str] = []
    disk.on_op = lambda _owner, op, path: made.append(path) if op == "create" else None
    restore(disk.view("one"), DIR, [R0], [saved])
    assert files(disk) == {"r.lineage.fence": b"", "r-a1.lineage.jsonl": rows}
    assert len(made) == (0 if left in ("same", "longer") else 1)


def test_what_cannot_be_retired_is_not_restored() -> None:
    with pytest.raises(InvalidRequest):
        begin_restore(DIR, [EpisodeId("r", LEDGER_ATTEMPTS_MAX)], [])
