"""Several operating-system processes append to one rollout's ledger: the locks hold, and end with their process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.storage.ledger import open_ledger, read_lineage
from gym_ckpt.storage.ledger.names import lock_number, lock_path
from gym_ckpt.types import EpisodeId
from tests.unit.storage.driver import run

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[1]
WRITER = """
import sys, time
from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.storage.ledger import BUSY, append_row
from gym_ckpt.types import EpisodeId
from tests.unit.ledger.given import a_row
from tests.unit.storage.driver import run

directory, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
busy = 0
for at in range(count):
    while run(PosixFileSystem(), append_row(directory, EpisodeId("r"), a_row(f"{name}-{at}"))) is BUSY:
        busy += 1
        time.sleep(0.001)
print(busy)
"""
HOLDER = """
import sys, time
from gym_ckpt.adapters.posix import PosixFileSystem

held = PosixFileSystem().try_lock(sys.argv[1], "")
print("held" if held else "not held", flush=True)
time.sleep(600)
"""


def spawn(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_once_lose_no_row_and_tear_none(tmp_path: Path) -> None:
    directory = str(tmp_path / "ledger")
    run(PosixFileSystem(), open_ledger(directory))
    writers = [spawn(WRITER, directory, f"w{number}", "40") for number in range(3)]
    busy = [int(writer.communicate(timeout=60)[0]) for writer in writers]
    lineage = run(PosixFileSystem(), read_lineage(directory, EpisodeId("r")))
    expected = {f"w{number}-{at}" for number in range(3) for at in range(40)}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert {row.model_call_id for row in lineage.rows} == expected
    assert len(lineage.rows) == len(expected)
    assert sum(busy) > 0, "they never met: the test has shown nothing"


def test_a_killed_process_gives_its_lock_back(tmp_path: Path) -> None:
    directory = str(tmp_path / "ledger")
    run(PosixFileSystem(), open_ledger(directory))
    path = lock_path(directory, lock_number("r"))
    holder = spawn(HOLDER, path)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    assert PosixFileSystem().try_lock(path, "") is None
    holder.kill()
    holder.communicate(timeout=10)
    ours = PosixFileSystem().try_lock(path, "")
    assert ours is not None
    ours.release()
