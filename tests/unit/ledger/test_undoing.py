"""Writes of the ledger that fail and cannot be undone either, as on a disk that is about to die (INV-16, INV-19)."""

from __future__ import annotations

import errno

import pytest

from gym_ckpt.core.lineage import Poison, Reason
from gym_ckpt.storage.ledger import append_poison, append_row, manifest, read_lineage
from sim.disk import SimFileSystem
from tests.unit.ledger.given import DIR, R0, a_row, files, free, new_disk
from tests.unit.storage.driver import calm, run


def undoing_fails(disk: SimFileSystem, ending: str) -> None:
    """From the next sync of such a file on, three calls fail: it, and the two that are to undo what was written."""
    left = 3

    def fail(_owner: str, op: str, path: str) -> None:
        nonlocal left
        if path.endswith(ending) and (op == "fsync" or left < 3) and left:
            left -= 1
            raise OSError(errno.EIO, "I/O", path)

    disk.on_op = fail


def test_a_row_that_could_not_be_taken_back_is_no_hole_before_the_next() -> None:
    """Its page may never reach the disk, whoever syncs it; rows behind it that were acknowledged must."""
    for seed in range(20):
        disk = new_disk(seed)
        free(disk.view("one"), append_row(DIR, R0, a_row("c0")))
        undoing_fails(disk, ".jsonl")
        with pytest.raises(OSError):
            run(disk.view("one"), append_row(DIR, R0, a_row("c1")))
        calm(disk)
        assert b'"c1"' in files(disk)["r.lineage.jsonl"], "it stands"
        free(disk.view("one"), append_poison(DIR, R0, Poison("c1", Reason.ROW_WRITE_FAILED)))
        free(disk.view("one"), append_row(DIR, R0, a_row("c2")))
        disk.crash("one")
        rows = run(disk.view("reader"), read_lineage(DIR, R0)).rows
        assert [row.model_call_id for row in rows] == ["c0", "c2"]


def test_poison_whose_write_failed_is_written_afresh() -> None:
    """A sync of what a failed sync has left proves nothing."""
    poison = Poison("c1", Reason.ROW_WRITE_FAILED)
    for seed in range(20):
        disk = new_disk(seed)
        undoing_fails(disk, ".poison")
        with pytest.raises(OSError):
            run(disk.view("one"), append_poison(DIR, R0, poison))
        calm(disk)
        assert files(disk)["r.lineage.poison"].count(b"\n") == 1, "it stands"
        free(disk.view("one"), append_poison(DIR, R0, poison, afresh=True))
        disk.crash("one")
        [listed], _ = run(disk.view("one"), manifest(DIR))
        assert listed.poison, "or damage, which is no sound lineage either"
