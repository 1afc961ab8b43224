"""The main job, as a newcomer runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import command
from gym_ckpt.wire import json

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


async def test_the_demo_finds_nothing_different(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    status, said, progress = await command("demo", "--rollouts", "8", "--json", "--keep", str(kept))
    assert status == 0, progress
    figures = json.loads(said.encode())
    assert figures["ok"] is True and figures["reasons"] == []
    assert figures["rows_expected"] == figures["rows_written"] == 8
    assert figures["rows_duplicated"] == figures["rows_differing"] == figures["model_calls_repeated"] == 0
    assert figures["rows_continued"] >= 4
    assert figures["tool_effects_seen"] == figures["tool_effects_expected"] > 0
    assert figures["ledger_rows_verified"] == figures["ledger_rows_expected"] > 0
    assert figures["processes_killed"] == 8
    assert 0 < figures["tokens_saved"] < figures["tokens_total"]
    assert min(figures["prepare_s"], figures["commit_s"], figures["restore_s"]) > 0
    assert (kept / "gym" / "rollouts.jsonl").exists() and (kept / "gym" / "logs" / "collector.log").exists()


async def test_the_demo_refuses_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not yours")
    status, said, complaint = await command("demo", "--keep", str(tmp_path))
    assert (status, said) == (2, "") and "is not empty" in complaint
