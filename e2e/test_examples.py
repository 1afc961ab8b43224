"""The README's two commands on the example gym: stopped in the middle, all ended, started again, every row there."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from e2e.cluster import command, running
from gym_ckpt.adapters.host import free_ports
from gym_ckpt.wire import json

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.anyio]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SERVERS = 6


def copied(folder: Path) -> Path:
    """The example on ports that are free, three times as fast; returns its configuration."""
    shutil.copy(EXAMPLES / "tasks.jsonl", folder)
    text = (EXAMPLES / "gym.toml").read_text()
    old = re.findall(r"127\.0\.0\.1:(\d+)", text)
    assert len(old) == SERVERS
    for before, now in zip(old, free_ports(SERVERS), strict=True):
        text = text.replace(f":{before}", f":{now}")
    for slow, fast in (("tokens_per_s = 200", "tokens_per_s = 600"), ("every_s = 5", "every_s = 1.5")):
        assert slow in text
        text = text.replace(slow, fast)
    (folder / "gym.toml").write_text(text)
    return folder / "gym.toml"


async def test_the_example_is_stopped_and_goes_on(tmp_path: Path) -> None:
    config = str(copied(tmp_path))
    run_dir = str(tmp_path / "runs" / "example")
    async with running("serve", config) as servers:
        await servers.until("worker: ready")
        async with running("collect", config) as collector:
            await collector.until("published")
            assert (await command("stop", run_dir))[0] == 0
            assert await collector.ended() == 0
        for words in ((), ("--no-resume",)):  # which must not forget anything either before it can begin
            status, said, complaint = await command("collect", config, *words)
            assert status == 1 and said and complaint.endswith(f"gym-ckpt: {said}")
            assert "is still in checkpoint" in complaint and "restart the servers" in complaint
    status, said, _ = await command("inspect", run_dir, "--verify")
    assert status == 0 and "collector ended" in said and "every byte is right" in said
    async with running("serve", config) as servers:
        await servers.until("worker: ready")
        status, said, log = await command("collect", config)
        assert status == 0 and "all 24 rows finished" in said
        assert "restored from checkpoint" in log
    rows = [json.loads(line) for line in (tmp_path / "runs" / "example.jsonl").read_bytes().splitlines()]
    assert set(Counter(row["rollout_id"] for row in rows).values()) == {1} and len(rows) == 24
    assert any(row["attempt"] == 1 for row in rows)
