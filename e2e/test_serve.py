"""`gym-ckpt serve`: readiness, draining, and what happens when a server dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from e2e.cluster import ROLLOUTS, WAIT_S
from gym_ckpt.adapters.host import is_alive
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.cli.demo_gym import SERVERS, DemoGym, write_tasks
from gym_ckpt.controller.environment import Finished, run_episode
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    """Production's event loop."""
    return "asyncio"


class Served:
    """A running `gym-ckpt serve` and what it has said so far."""

    def __init__(self, gym: DemoGym, process: anyio.abc.Process) -> None:
        self.gym = gym
        self.process = process
        self.said = ""

    async def read(self) -> None:
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self.said += chunk.decode()

    async def until(self, words: str) -> None:
        with anyio.fail_after(WAIT_S):
            while words not in self.said:  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def ended(self) -> int:
        with anyio.fail_after(WAIT_S):
            return await self.process.wait()

    def children(self) -> list[int]:
        """The server processes, in the order of the configuration."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]


@asynccontextmanager
async def serving(folder: Path, *words: str) -> AsyncIterator[Served]:
    gym = DemoGym("gym", folder / "gym")
    write_tasks(folder / "tasks.jsonl", ROLLOUTS)
    gym.prepare(ROLLOUTS, 400.0)
    argv = [sys.executable, "-m", "gym_ckpt", "serve", str(gym.config), *words]
    async with await anyio.open_process(argv) as process, anyio.create_task_group() as tasks:
        served = Served(gym, process)
        tasks.start_soon(served.read)
        try:
            yield served
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_sigterm_lets_a_running_answer_end(tmp_path: Path) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hello [[turns=0 tokens=400]]"}]})
    async with serving(tmp_path, "--server", "worker") as served, HttpxClient() as http:
        await served.until("ready at")
        replies = []

        async def ask() -> None:
            url = served.gym.url("worker") + "/v1/chat/completions"
            replies.append(await http.request("POST", url, body=body, timeout_s=WAIT_S))

        async with anyio.create_task_group() as asking:
            asking.start_soon(ask)
            await anyio.sleep(0.4)
            served.process.send_signal(signal.SIGTERM)
        assert [reply.status for reply in replies] == [200]
        assert await served.ended() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server processes in /proc")
async def test_all_servers_serve_and_leave_with_their_supervisor(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, HttpxClient() as http:
        await served.until(f"{SERVERS[-1]}: ready")
        children = served.children()
        assert len(children) == len(SERVERS)
        task = json.dumps({"prompt": "[[turns=1 tokens=20]]"})
        outcome = await run_episode(http, served.gym.url("environment"), EpisodeId("one"), task)
        assert isinstance(outcome, Finished) and len(outcome.result["calls"]) == 2
        served.process.send_signal(signal.SIGTERM)
        assert await served.ended() == 0
        assert not any(is_alive(pid) for pid in children)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server processes in /proc")
async def test_a_dead_server_is_named_and_takes_the_gym_down(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.until(f"{SERVERS[-1]}: ready")
        children = served.children()
        os.kill(children[SERVERS.index("policy")], signal.SIGKILL)
        assert await served.ended() == 1
        await served.until("server 'policy' was killed by SIGKILL")
        assert not any(is_alive(pid) for pid in children)


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, "--server", "worker") as first:
        await first.until("ready at")
        argv = [sys.executable, "-m", "gym_ckpt", "serve", str(first.gym.config), "--server", "worker"]
        second = await anyio.run_process(argv, check=False)
        assert second.returncode == 2
        assert f"cannot listen on {first.gym.url('worker')}" in second.stderr.decode()
