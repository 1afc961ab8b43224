"""The night's run: its sections, with `./dev` played by a script that takes notes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def night(at: Path, *arguments: str, failing: str = "nothing") -> tuple[int, list[str]]:
    """Status and commands."""
    shutil.copytree(ROOT / ".ci", at / ".ci")
    (at / "dev").write_text(f'#!/bin/sh\necho "$*" >> notes\ncase "$*" in {failing}) exit 3;; esac\n')
    (at / "dev").chmod(0o755)
    done = subprocess.run([at / ".ci/nightly", *arguments], capture_output=True, text=True, check=False)
    assert ("=== all passed" in done.stdout) is (done.returncode == 0), done.stderr
    return done.returncode, (at / "notes").read_text().splitlines()


def test_a_night_fuzzes_twice_for_half_an_hour_and_hunts_the_planted_bugs(tmp_path: Path) -> None:
    assert night(tmp_path) == (
        0,
        ["setup", "fuzz --minutes 30", "fuzz --minutes 30 --profile chaos", "run gym-ckpt sim bugs --seeds 0..400"],
    )


def test_its_status_is_that_of_the_section_that_failed_and_the_others_run(tmp_path: Path) -> None:
    status, commands = night(tmp_path, "5", failing="*chaos")
    assert status == 3 and commands[1:3] == ["fuzz --minutes 5", "fuzz --minutes 5 --profile chaos"]
    assert len(commands) == 4
