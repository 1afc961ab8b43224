"""The ledger's files: append, poison, fence, retire, forget, start, discard. Simulated disk, one rule a test."""

from __future__ import annotations

import errno

import pytest

from gym_ckpt.core.lineage import Poison, Reason, RowConflict
from gym_ckpt.errors import InvalidCheckpointState, InvalidRequest
from gym_ckpt.limits import LEDGER_ATTEMPTS_MAX, LEDGER_LOCKS
from gym_ckpt.storage.ledger import (
    BUSY,
    Appended,
    Start,
    append_poison,
    append_row,
    delete,
    discard_unstarted,
    export,
    forget,
    manifest,
    open_ledger,
    read_lineage,
    retire,
    start,
)
from gym_ckpt.storage.ledger.names import lock_number, lock_path
from sim.disk import SimFileSystem
from tests.unit.ledger.given import DIR, R0, a_row, chain, changed, ep, files, free, names, new_disk
from tests.unit.storage.driver import calm, run, strike


def put(disk: SimFileSystem, key: str, *call_ids: str, owner: str = "one") -> None:
    for call_id in call_ids:
        made = free(disk.view(owner), append_row(DIR, ep(key), a_row(call_id, ep(key))))
        assert made is Appended.WRITTEN


def calls(disk: SimFileSystem, key: str) -> list[str]:
    return [row.model_call_id for row in run(disk.view("reader"), read_lineage(DIR, ep(key))).rows]


def test_a_row_is_one_line_of_sorted_compact_json_with_exactly_these_columns() -> None:
    disk = new_disk()
    put(disk, "r", "c0")
    assert files(disk)["r.lineage.jsonl"] == (
        b'{"admitted_at":12.5,"capture_key":"r",'
        b'"chain_hash":"%(chain_hash)s",'
        b'"conversation_fingerprint":"%(conversation)s","cum_len":4,"cumulative_hash":"%(cumulative)s","delta_len":4,'
        b'"mode":"text","model_call_id":"c0","parent_call_id":null,"prev_len":0,'
        b'"request_fingerprint":"%(request)s","response_id":null,"staging_chain":[],"staging_digest":"%(digest)s",'
        b'"staging_key":"%(digest)s","weight_version":7}\n'
        % {
            b"chain_hash": a_row().chain_hash.encode(),
            b"conversation": b"f" * 64,
            b"cumulative": a_row().cumulative_hash.encode(),
            b"request": a_row().request_fingerprint.encode(),
            b"digest": a_row().staging_digest.encode(),
        }
    )


def test_written_once_identical_again_is_no_change_and_different_is_refused() -> None:
    disk = new_disk()
    put(disk, "r", "c0", "c1")
    before = files(disk)
    assert free(disk.view("two"), append_row(DIR, R0, a_row("c0"))) is Appended.REPEATED
    with pytest.raises(RowConflict):
        run(disk.view("two"), append_row(DIR, R0, changed(a_row("c0"), response_id="other")))
    assert files(disk) == before


@pytest.mark.parametrize("journalled", [True, False])
def test_an_acknowledged_row_outlives_any_crash(journalled: bool) -> None:
    for seed in range(30):
        disk = new_disk(seed, journalled=journalled)
        put(disk, "r", "c0")
        put(disk, "r", "c1", owner="two")
        disk.crash("one")
        disk.crash("two")
        assert calls(disk, "r") == ["c0", "c1"]


@pytest.mark.parametrize("after", [False, True])
def test_a_row_whose_write_failed_is_not_there_and_harms_no_other(after: bool) -> None:
    """INV-19, as far as the ledger goes."""
    struck = 0
    for seed in range(5):
        for call in range(12):
            disk = new_disk(seed)
            put(disk, "r", "c0")
            hit = strike(disk, call, after=after, error=lambda: OSError(errno.EIO, "I/O"))
            row = a_row("c1")
            try:
                made = run(disk.view("one"), append_row(DIR, R0, row))
                written = made is Appended.WRITTEN
            except OSError:
                written = False
            calm(disk)
            struck += hit()
            if not written:
                free(disk.view("one"), append_poison(DIR, R0, Poison("c1", Reason.ROW_WRITE_FAILED)))
                assert free(disk.view("one"), append_row(DIR, R0, row)) is Appended.POISONED
            put(disk, "r", "c2")
            disk.crash("one")
            assert calls(disk, "r") == (["c0", "c1", "c2"] if written else ["c0", "c2"])
    assert struck >= 15, "opened, written and synced, or more, for each seed"


def test_poison_hides_a_row_that_could_not_be_taken_back() -> None:
    disk = new_disk()
    put(disk, "r", "c0", "c1")
    free(disk.view("one"), append_poison(DIR, R0, Poison("c1", Reason.ROW_WRITE_FAILED)))
    lineage = run(disk.view("one"), read_lineage(DIR, R0))
    assert ([row.model_call_id for row in lineage.rows], len(lineage.poison)) == (["c0"], 1)
    assert [row.model_call_id for row in run(disk.view("one"), export(DIR, [R0]))[0].rows] == ["c0"]


def test_poison_of_another_reason_keeps_the_row_and_travels_with_it() -> None:
    disk = new_disk()
    put(disk, "r", "c0")
    entries = [Poison("c0", Reason.PARENT_UNRESOLVED), Poison("gone", Reason.ROW_WRITE_FAILED)]
    for entry in [*entries, entries[0]]:
        free(disk.view("one"), append_poison(DIR, R0, entry))
    assert files(disk)["r.lineage.poison"].count(b"\n") == 2
    assert run(disk.view("one"), export(DIR, [R0]))[0].poison == (entries[0],)


def test_a_file_cut_at_every_byte_keeps_its_whole_rows_and_takes_new_ones() -> None:
    whole = new_disk()
    put(whole, "r", "c0", "c1")
    content = files(whole)["r.lineage.jsonl"]
    for cut in [*range(0, len(content), 7), *range(len(content) - 3, len(content) + 1)]:
        for junk in (b"", b"\0" * 5, b"\0\0}\n"):
            disk = new_disk()
            file = disk.view("x").create(f"{DIR}/r.lineage.jsonl")
            file.write(content[:cut] + junk)
            kept = ["c0", "c1"][: content[:cut].count(b"\n")]
            assert calls(disk, "r") == kept
            put(disk, "r", "c9")
            assert calls(disk, "r") == [*kept, "c9"]
            assert files(disk)["r.lineage.jsonl"].count(b"\n") == len(kept) + 1


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"model_call_id":"c0"}', b"nonsense"])
def test_damage_that_no_crash_makes_is_refused(line: bytes) -> None:
    disk = new_disk()
    put(disk, "r", "c0")
    disk.view("x").append(f"{DIR}/r.lineage.jsonl").write(line + b"\n")
    for job in (read_lineage(DIR, R0), append_row(DIR, R0, a_row("c1"))):
        with pytest.raises(InvalidCheckpointState, match="line 2"):
            run(disk.view("x"), job)


@pytest.mark.parametrize("ending", ["jsonl", "poison"])
def test_a_damaged_lineage_is_the_trouble_of_its_rollout_alone(ending: str) -> None:
    """INV-19: it is in a checkpoint as poison, a manifest shows the others, and more poison changes nothing."""
    disk = new_disk()
    put(disk, "r", "c0")
    put(disk, "s", "c0")
    disk.view("x").append(f"{DIR}/r.lineage.{ending}").write(b"nonsense\n")
    for found in (run(disk.view("x"), export(DIR, [R0, ep("s")])), run(disk.view("x"), manifest(DIR))[0]):
        assert [(each.episode.key, len(each.rows), [p.reason for p in each.poison]) for each in found] == [
            ("r", 0, [Reason.DAMAGED]),
            ("s", 1, []),
        ]
    if ending == "poison":
        again = append_poison(DIR, R0, Poison("c1", Reason.CAPTURE_FAILED))
        assert free(disk.view("x"), again) is Appended.REPEATED


def test_a_line_that_can_be_read_behind_one_of_zeros_is_no_crashs() -> None:
    """Every line is durable before the next: cutting at the zeros would lose rows whose answers were sent (INV-16)."""
    disk = new_disk()
    put(disk, "r", "c0")
    line = files(disk)["r.lineage.jsonl"]
    disk.view("x").append(f"{DIR}/r.lineage.jsonl").write(b"\0" * 9 + b"\n" + line.replace(b"c0", b"c1"))
    with pytest.raises(InvalidCheckpointState, match="before line 3"):
        run(disk.view("x"), read_lineage(DIR, R0))


def test_a_retire_fences_all_attempts_up_to_n_and_no_late_row_comes_back() -> None:
    """INV-36, INV-31."""
    disk = new_disk()
    for key in ("r", "r-a1", "r-a2", "r-a3"):
        put(disk, key, "c0")
        assert free(disk.view("one"), start(DIR, ep(key))) is Start.STARTED
    assert run(disk.view("one"), retire(DIR, [ep("r-a2")])) == []
    disk.crash("one")
    assert names(disk) == [
        "r-a1.lineage.fence", "r-a2.lineage.fence", "r-a3.lineage.jsonl", "r-a3.lineage.started", "r.lineage.fence",
    ]  # fmt: skip
    for key in ("r", "r-a1", "r-a2"):
        row = a_row("late", ep(key))
        assert free(disk.view("two"), append_row(DIR, ep(key), row)) is Appended.FENCED
        assert free(disk.view("two"), append_poison(DIR, ep(key), Poison("late", "x"))) is Appended.FENCED
        assert free(disk.view("two"), start(DIR, ep(key))) is Start.RETIRED
    assert len(names(disk)) == 5
    put(disk, "r-a3", "more")


def test_a_retire_again_changes_nothing_and_a_forget_leaves_nothing() -> None:
    disk = new_disk()
    put(disk, "r-a1", "c0")
    for _ in range(2):
        run(disk.view("one"), retire(DIR, [ep("r-a1")]))
    assert names(disk) == ["r-a1.lineage.fence", "r.lineage.fence"]
    put(disk, "r-a2", "c0")
    run(disk.view("one"), forget(DIR, [ep("r-a1")]))
    assert names(disk) == ["r-a2.lineage.jsonl"]
    run(disk.view("one"), forget(DIR, [ep("r-a2")]))
    disk.crash("one")
    assert names(disk) == []


def test_fences_need_no_links_and_outlive_the_end_of_links() -> None:
    disk = new_disk()
    disk.links = False
    run(disk.view("one"), retire(DIR, [ep("r-a1")]))
    disk.links = True
    run(disk.view("one"), retire(DIR, [ep("r-a2")]))
    disk.on_op = lambda _owner, op, path: no_more_links(op, path)
    run(disk.view("one"), retire(DIR, [ep("r-a3")]))
    assert names(disk) == ["r-a1.lineage.fence", "r-a2.lineage.fence", "r-a3.lineage.fence", "r.lineage.fence"]


def no_more_links(op: str, path: str) -> None:
    if op == "link" and "-a3" in path:
        raise OSError(errno.EMLINK, "too many links", path)


def test_an_attempt_beyond_all_reason_is_refused_before_a_million_files_are_made() -> None:
    disk = new_disk()
    with pytest.raises(InvalidRequest):
        run(disk.view("one"), retire(DIR, [ep(f"r-a{LEDGER_ATTEMPTS_MAX + 1}")]))
    with pytest.raises(InvalidRequest):
        run(disk.view("one"), forget(DIR, [ep(f"r-a{LEDGER_ATTEMPTS_MAX + 1}")]))
    assert names(disk) == []


def test_a_delete_removes_exactly_these_attempts_and_no_fence() -> None:
    disk = new_disk()
    for key in ("r", "r-a1", "r-a1x", "r-1"):
        put(disk, key, "c0")
    run(disk.view("one"), retire(DIR, [R0]))
    run(disk.view("one"), delete(DIR, [ep("r-a1"), R0]))
    assert names(disk) == ["r-1.lineage.jsonl", "r-a1x.lineage.jsonl", "r.lineage.fence"]


def test_a_marked_attempt_writes_nothing_and_starts_nothing() -> None:
    disk = new_disk()
    fs = disk.view("one")
    assert free(fs, append_row(DIR, R0, a_row(), lambda: True)) is Appended.MARKED
    assert free(fs, append_poison(DIR, R0, Poison("c", "x"), lambda: True)) is Appended.MARKED
    assert free(fs, start(DIR, R0, lambda: True)) is Start.RETIRED
    assert names(disk) == []


def test_the_marker_is_one_for_all_servers() -> None:
    """INV-43."""
    disk = new_disk()
    assert free(disk.view("one"), start(DIR, ep("r-a1"))) is Start.STARTED
    assert free(disk.view("two"), start(DIR, ep("r-a1"))) is Start.AGAIN


def test_a_commit_elsewhere_deletes_no_attempt_that_somebody_has_started() -> None:
    """Scenario 84, before the first row and after it."""
    disk = new_disk()
    for key in ("a-a1", "b-a1", "c-a1"):
        put(disk, key, "carried")
    free(disk.view("one"), start(DIR, ep("a-a1")))
    free(disk.view("one"), start(DIR, ep("b-a1")))
    put(disk, "b-a1", "fresh")
    done = run(disk.view("two"), discard_unstarted(DIR, [ep(f"{x}-a1") for x in "abc"]))
    assert (done.deleted, done.started, done.failed, done.busy) == ([ep("c-a1")], [ep("a-a1"), ep("b-a1")], {}, [])
    assert names(disk) == [
        "a-a1.lineage.jsonl", "a-a1.lineage.started", "b-a1.lineage.jsonl", "b-a1.lineage.started",
    ]  # fmt: skip
    assert free(disk.view("one"), append_row(DIR, ep("c-a1"), a_row("late", ep("c-a1")))) is Appended.WRITTEN, (
        "no fence"
    )


def test_a_delete_that_fails_is_reported_with_its_reason_and_the_others_go_on() -> None:
    disk = new_disk()
    put(disk, "a-a1", "c")
    put(disk, "b-a1", "c")
    disk.on_op = lambda _owner, op, path: refuse(op, path)
    done = run(disk.view("one"), discard_unstarted(DIR, [ep("a-a1"), ep("b-a1")]))
    assert (done.deleted, list(done.failed)) == ([ep("b-a1")], [ep("a-a1")])
    disk.on_op = None
    assert run(disk.view("one"), discard_unstarted(DIR, done.failed)).deleted == [ep("a-a1")]


def test_a_lock_that_cannot_be_opened_fails_a_discard_and_raises_nothing() -> None:
    disk = new_disk()
    put(disk, "a-a1", "c")
    disk.on_op = lambda _owner, op, path: no_locks(op, path)
    done = run(disk.view("one"), discard_unstarted(DIR, [ep("a-a1"), ep("b-a1")]))
    assert (list(done.failed), done.deleted) == ([ep("a-a1"), ep("b-a1")], [])


def no_locks(op: str, path: str) -> None:
    if op == "try_lock":
        raise OSError(errno.ENOLCK, "no locks", path)


def refuse(op: str, path: str) -> None:
    if op == "unlink" and "/a-a1" in path:
        raise OSError(errno.EACCES, "denied", path)


def test_while_another_process_holds_the_lock_nothing_is_done() -> None:
    disk = new_disk()
    put(disk, "r", "c0")
    before = files(disk)
    held = disk.view("two").try_lock(lock_path(DIR, lock_number("r")), "")
    fs = disk.view("one")
    assert held is not None
    assert run(fs, append_row(DIR, R0, a_row("c1"))) is BUSY
    assert run(fs, append_poison(DIR, R0, Poison("c", "x"))) is BUSY
    assert run(fs, start(DIR, R0)) is BUSY
    assert run(fs, retire(DIR, [R0])) == [R0]
    assert run(fs, delete(DIR, [R0])) == [R0]
    assert run(fs, forget(DIR, [R0])) == [R0]
    assert run(fs, discard_unstarted(DIR, [R0])).busy == [R0]
    assert files(disk) == before
    disk.crash("two")
    put(disk, "r", "c1")


def test_locks_do_not_grow_with_rollouts_and_are_never_removed() -> None:
    """Scenario 27: a lock that is swept while somebody waits on its old file excludes nobody."""
    disk = new_disk()
    locks = sorted(path for path in disk.durable_tree(DIR) if "/locks/" in path)
    unlinked: list[str] = []
    disk.on_op = lambda _owner, op, path: unlinked.append(path) if op in ("unlink", "rename") else None
    for at in range(200):
        put(disk, f"r{at}", "c0")
        run(disk.view("one"), retire(DIR, [ep(f"r{at}")]))
        run(disk.view("one"), forget(DIR, [ep(f"r{at}")]))
    run(disk.view("two"), open_ledger(DIR))
    assert sorted(path for path in disk.tree(DIR)) == locks
    assert len(locks) == LEDGER_LOCKS + 1
    assert not [path for path in unlinked if "/locks/" in path]


def test_the_manifest_shows_all_there_is() -> None:
    disk = new_disk()
    put(disk, "r-a1", "c0")
    free(disk.view("one"), start(DIR, ep("r-a1")))
    run(disk.view("one"), retire(DIR, [R0]))
    disk.view("x").create(f"{DIR}/note.txt").close()
    shown = [
        (listed.episode.key, len(listed.rows), listed.fenced, listed.started)
        for listed in run(disk.view("one"), manifest(DIR))[0]
    ]
    assert shown == [("r", 0, True, False), ("r-a1", 1, False, True)]
    assert [listed.episode for listed in run(disk.view("one"), manifest(DIR, [R0]))[0]] == [R0]


def test_an_export_is_of_the_scope_by_name() -> None:
    disk = new_disk()
    rows, _, _ = chain(ep("b"), 3)  # INV-46: every staged key, by episode
    for row in rows:
        free(disk.view("one"), append_row(DIR, ep("b"), row))
    put(disk, "a", "c0")
    put(disk, "b-a1", "c0")
    ops: list[str] = []
    disk.on_op = lambda _owner, op, _path: ops.append(op)
    found = run(disk.view("two"), export(DIR, [ep("b"), ep("none")]))
    assert [(each.episode.key, each.rows) for each in found] == [("b", tuple(rows))]
    assert found[0].staging_keys == tuple(row.staging_key for row in rows)
    assert "listdir" not in ops
