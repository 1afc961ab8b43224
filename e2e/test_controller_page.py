"""The controller of docs/controller.md takes a real gym through a checkpoint and the death of every server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from e2e.cluster import WAIT_S, Cluster
from gym_ckpt import Coordination, EpisodeId, production_ports
from gym_ckpt.cli.config import load
from gym_ckpt.wire import json
from tests.unit.documents import ROOT, executed

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]
ROWS = 4


async def test_the_controller_of_the_docs_continues_what_it_had_sent(tmp_path: Path) -> None:
    page = executed(ROOT / "docs" / "controller.md", "controller")
    first = [EpisodeId(f"row-{number}") for number in range(ROWS)]
    async with Cluster(tmp_path) as cluster, production_ports() as ports:
        tasks = [json.loads(line)["task"] for line in (tmp_path / "tasks.jsonl").read_bytes().splitlines()[:ROWS]]
        settings, directory = load(str(cluster.gym.config)).settings, str(tmp_path / "own-checkpoint")
        assert settings.control_token is not None
        participants = {name: server.url for name, server in settings.participants().items()}

        async def send(replies: list[Any], episode: EpisodeId, task: Any, **more: Any) -> None:
            replies.append(await page["run"](ports, settings.url("environment"), episode, task, **more))

        await cluster.start()
        async with anyio.create_task_group() as group:
            for episode, task in zip(first, tasks, strict=True):
                group.start_soon(send, [], episode, task)
            await cluster.until_delivered(ROWS)
            gym = Coordination(participants, settings.control_token, ports)
            held = await page["checkpoint"](gym, "own-1", directory, set(first))
            group.cancel_scope.cancel()
        assert held, "rows were in flight"
        await cluster.servers.kill_all()

        await cluster.start()
        gym = Coordination(participants, settings.control_token, ports)
        attempts = await page["continued"](gym, "own-restore-1", directory, held)
        assert attempts == [episode.next() for episode in held] and gym.saved["model_calls"] > 0
        replies: list[Any] = []
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as group:
                for attempt in attempts:
                    task = tasks[first.index(EpisodeId(attempt.rollout_id))]
                    group.start_soon(partial(send, replies, attempt, task, continued=True))
        assert [reply["status"] for reply in replies] == ["finished"] * len(held)
        await gym.forget([episode.rollout_id for episode in held])
