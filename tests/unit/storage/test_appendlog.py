"""Append-only logs: repair of a torn end at every byte, failed appends, crashes."""

from __future__ import annotations

import errno
import random

import pytest

from gym_ckpt import limits
from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.storage import AppendLog, open_log, read_lines
from gym_ckpt.wire import json
from sim.disk import SimFileSystem
from tests.unit.storage.driver import calm, run, strike

PATH = "/shared/out.jsonl"


def row(n: int) -> bytes:
    return json.dumps({"n": n, "text": "x" * (n % 7)})


def opened(disk: SimFileSystem, owner: str = "writer") -> tuple[AppendLog, list[int], str | None]:
    found = run(disk.view(owner), open_log(PATH, lambda value: int(value["n"])))
    return found.log, list(found.picked), found.repair


def append(disk: SimFileSystem, log: AppendLog, *numbers: int, sync: bool = True) -> None:
    run(disk.view("writer"), log.append([row(n) for n in numbers], sync=sync))


def disk_with(content: bytes = b"", *, seed: int = 0, journalled: bool = False) -> SimFileSystem:
    disk = SimFileSystem(random.Random(seed), journalled=journalled)
    disk.make_dirs("/shared")
    if content:
        file = disk.view("before").create(PATH)
        file.write(content)
        file.fsync()
        disk.view("before").fsync_dir("/shared")
    return disk


def test_a_file_cut_at_every_byte_keeps_its_whole_rows_and_takes_new_ones() -> None:
    content = b"".join(row(n) + b"\n" for n in range(3))
    ends = [i for i in range(len(content) + 1) if i == 0 or content[i - 1 : i] in (b"\n", b"}")]
    for cut in range(len(content) + 1):
        disk = disk_with(content[:cut])
        log, rows, repair = opened(disk)
        whole = content[:cut].count(b"}")
        assert rows == list(range(whole))
        assert (repair is not None) == (cut not in ends or content[cut - 1 : cut] == b"}")
        append(disk, log, 9)
        assert opened(disk)[1:] == ([*range(whole), 9], None)
        assert disk.tree("/shared")[PATH].count(b"\n") == whole + 1


def test_blocks_that_never_reached_the_disk_are_a_torn_end() -> None:
    disk = disk_with(row(0) + b"\n" + bytes(40) + b'xx"}\n' + row(2) + b"\n")
    assert run(disk.view("x"), read_lines(PATH, lambda value: value["n"])) == (0,)
    log, rows, repair = opened(disk)
    assert rows == [0]
    assert repair is not None and "torn" in repair
    append(disk, log, 1)
    assert opened(disk)[1] == [0, 1]


@pytest.mark.parametrize("line", [b"{broken}", b"[1]", b"12", b""])
def test_damage_that_no_crash_makes_is_refused_and_not_cut(line: bytes) -> None:
    content = row(0) + b"\n" + line + b"\n" + row(1) + b"\n"
    disk = disk_with(content)
    with pytest.raises(InvalidCheckpointState, match="line 2"):
        opened(disk)
    assert disk.tree("/shared")[PATH] == content


def test_a_row_is_not_taken_for_whole_because_its_beginning_is_json() -> None:
    assert opened(disk_with(b'{"n":1}\n12'))[1] == [1]


def test_a_missing_log_is_empty_and_is_made() -> None:
    disk = disk_with()
    assert run(disk.view("x"), read_lines(PATH, lambda value: value)) == ()
    log, rows, repair = opened(disk)
    assert (rows, repair) == ([], None)
    append(disk, log, 1)
    disk.crash("writer")
    assert opened(disk)[1] == [1]


@pytest.mark.parametrize("after", [False, True])
def test_an_append_that_fails_at_any_call_loses_no_row_and_doubles_none(after: bool) -> None:
    struck_at = 0
    for seed in range(6):
        for call in range(30):
            disk = disk_with(seed=seed)
            log, _, _ = opened(disk)
            append(disk, log, 1)
            append(disk, log, 2, sync=False)
            hit = strike(disk, call, after=after, error=lambda: OSError(errno.ENOSPC, "no space"))
            written = [1, 2]
            for number in (3, 4, 5):
                try:
                    append(disk, log, number, sync=number != 4)
                    written.append(number)
                except OSError:
                    calm(disk)
            struck_at += hit()
            calm(disk)
            append(disk, log, 6)
            disk.crash("writer")
            assert opened(disk)[1] == [*written, 6]
    assert struck_at == 6 * 5, "three writes and two syncs"


def test_a_crash_loses_only_what_was_not_synced_and_never_the_middle() -> None:
    lost = 0
    for seed in range(200):
        disk = disk_with(seed=seed, journalled=seed % 2 == 0)
        log, _, _ = opened(disk)
        append(disk, log, 0, 1)
        for number in (2, 3, 4):
            append(disk, log, number, sync=False)
        disk.crash("writer")
        log, rows, _ = opened(disk)
        assert rows == list(range(len(rows))) and len(rows) >= 2
        lost += len(rows) < 5
        append(disk, log, len(rows))
        disk.crash("writer")
        assert opened(disk)[1] == list(range(len(rows) + 1))
    assert 50 < lost < 200


def test_a_log_syncs_by_itself_before_a_crash_could_take_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ckpt.storage.appendlog.LOG_UNSYNCED_MAX_BYTES", 100)
    assert limits.LOG_UNSYNCED_MAX_BYTES > 100
    disk = disk_with()
    log, _, _ = opened(disk)
    for number in range(50):
        append(disk, log, number, sync=False)
    assert len(disk.tree("/shared")[PATH]) - len(disk.durable_tree("/shared")[PATH]) <= 100


def test_rows_that_someone_else_cut_off_are_noticed() -> None:
    disk = disk_with()
    log, _, _ = opened(disk)
    append(disk, log, 1, 2)
    disk.view("stranger").append(PATH).truncate(3)
    strike(disk, 0, after=False, error=lambda: OSError(errno.EIO, "I/O"))
    with pytest.raises(OSError):
        append(disk, log, 3)
    calm(disk)
    with pytest.raises(InvalidCheckpointState, match="lost rows while it was open"):
        append(disk, log, 4)
