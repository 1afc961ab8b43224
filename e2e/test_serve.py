"""`gym-ckpt serve`: readiness, draining, and what happens when a server dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from e2e.cluster import ROLLOUTS, Running, command, running
from gym_ckpt.adapters.host import is_alive
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.cli.demo_gym import SERVERS, DemoGym, write_tasks
from gym_ckpt.controller.environment import Finished, run_episode
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.sse import DONE_EVENT

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


def children(served: Running) -> list[int]:
    """The server processes, in the order of the configuration."""
    text = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


@asynccontextmanager
async def serving(folder: Path, *words: str) -> AsyncIterator[tuple[Running, DemoGym]]:
    """A running `gym-ckpt serve`, and whose it is."""
    gym = DemoGym("gym", folder / "gym")
    write_tasks(folder / "tasks.jsonl", ROLLOUTS)
    gym.prepare(ROLLOUTS, 400.0)
    async with running("serve", str(gym.config), *words) as served:
        yield served, gym


async def test_sigterm_lets_a_running_answer_end(tmp_path: Path) -> None:
    ask = {"messages": [{"role": "user", "content": "hello [[turns=0 tokens=800]]"}], "stream": True}
    async with serving(tmp_path, "--server", "worker") as (served, gym), HttpxClient() as http:
        await served.until("ready at")
        url = gym.url("worker") + "/v1/chat/completions"
        async with http.stream("POST", url, body=json.dumps(ask)) as reply:
            chunks = reply.chunks()
            first = await anext(chunks)
            served.process.send_signal(signal.SIGTERM)
            assert DONE_EVENT not in first
            assert (first + b"".join([chunk async for chunk in chunks])).endswith(DONE_EVENT)
        assert await served.ended() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server processes in /proc")
async def test_all_servers_serve_and_leave_with_their_supervisor(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, gym), HttpxClient() as http:
        await served.until(f"{SERVERS[-1]}: ready")
        servers = children(served)
        assert len(servers) == len(SERVERS)
        task = json.dumps({"prompt": "[[turns=1 tokens=20]]"})
        outcome = await run_episode(http, gym.url("environment"), EpisodeId("one"), task)
        assert isinstance(outcome, Finished) and len(outcome.result["calls"]) == 2
        served.process.send_signal(signal.SIGTERM)
        assert await served.ended() == 0
        assert not any(is_alive(pid) for pid in servers)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server processes in /proc")
async def test_a_dead_server_is_named_and_takes_the_gym_down(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        await served.until(f"{SERVERS[-1]}: ready")
        servers = children(served)
        os.kill(servers[SERVERS.index("policy")], signal.SIGKILL)
        assert await served.ended() == 1
        await served.until("server 'policy' was killed by SIGKILL")
        assert not any(is_alive(pid) for pid in servers)


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, "--server", "worker") as (first, gym):
        await first.until("ready at")
        status, _, complaint = await command("serve", str(gym.config), "--server", "worker")
        assert status == 2 and f"cannot listen on {gym.url('worker')}" in complaint
