"""The README's two commands on the example gym: stopped in the middle, all ended, started again, every row there."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from e2e.cluster import WAIT_S, command
from gym_ckpt.adapters.host import free_ports
from gym_ckpt.wire import json

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.anyio]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SERVERS = 6


@pytest.fixture
def anyio_backend() -> str:
    """Production's event loop."""
    return "asyncio"


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


class Running:
    """A command that runs, and what it has said so far."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.process = process
        self.said = ""

    async def read(self) -> None:
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self.said += chunk.decode()

    async def until(self, words: str) -> None:
        with anyio.fail_after(WAIT_S):
            while words not in self.said:
                assert self.process.returncode is None, self.said
                await anyio.sleep(0.05)

    async def ended(self) -> int:
        with anyio.fail_after(WAIT_S):
            return await self.process.wait()


@asynccontextmanager
async def running(*words: str) -> AsyncIterator[Running]:
    argv = [sys.executable, "-m", "gym_ckpt", *words]
    async with await anyio.open_process(argv) as process, anyio.create_task_group() as tasks:
        each = Running(process)
        tasks.start_soon(each.read)
        try:
            yield each
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()


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
