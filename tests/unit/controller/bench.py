"""A run's files, and the means to run collection on them any number of times."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from gym_ckpt.controller.collect import Outcome, collect
from gym_ckpt.ports import Disk
from gym_ckpt.settings import CollectSettings
from tests.unit.controller.fake_gym import ENVIRONMENT, FakeGym, FakeSignals, Recorder, make_ports, thread_disk

PATIENCE_S = 300
"""Only a way out of a hang."""


@dataclass
class Bench:
    """A run's files, and the means to run it any number of times."""

    folder: Path
    rows: int = 6
    runs: int = 0
    signals: FakeSignals = field(default_factory=FakeSignals)
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        lines = [json.dumps({"id": f"row-{n}", "task": {"n": n}}) for n in range(self.rows)]
        (self.folder / "in.jsonl").write_text("\n".join(lines) + "\n")

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    def settings(self, **changes: Any) -> CollectSettings:
        values: dict[str, Any] = {
            "environment": "env",
            "input": str(self.folder / "in.jsonl"),
            "output": str(self.output),
            "checkpoint_dir": str(self.directory),
            **changes,
        }
        return CollectSettings(**values)

    def disk(self) -> Disk:
        """The collector's disk."""
        return thread_disk()

    async def run(self, gym: FakeGym, **changes: Any) -> Outcome:
        """One process of the collector, from start to end."""
        self.runs += 1
        self.signals, self.recorder = FakeSignals(), Recorder(at=self.recorder.at)
        ports = make_ports(gym, self.signals, self.recorder, self.disk(), self.runs * 1000)
        with anyio.fail_after(PATIENCE_S):
            return await collect(self.settings(**changes), gym, ENVIRONMENT, ports, self.recorder)

    async def crash(self, gym: FakeGym, when: Callable[[], Any], **changes: Any) -> None:
        """Run until `when()` is done, then end the collector without a word."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: self.run(gym, **changes))
            await when()
            tasks.cancel_scope.cancel()

    async def with_signals(self, gym: FakeGym, script: Callable[[], Any], **changes: Any) -> Outcome:
        """Run, with `script` (which sends signals) beside it."""
        outcomes = []

        async def one() -> None:
            outcomes.append(await self.run(gym, **changes))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(script)
        return outcomes[0]

    async def until(self, true: Callable[[], Any]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not true():
                await anyio.sleep(0.001)

    async def two_checkpoints(self, busy: anyio.Event) -> None:
        """Two that somebody asks for, one after the other, once the gym is `busy`."""
        await busy.wait()
        for count in (1, 2):
            self.signals.send("SIGUSR1")
            await self.until_published(count)

    async def until_published(self, count: int) -> None:
        await self.until(lambda: len(self.recorder.named("collector.published")) >= count)

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def failures(self) -> list[dict[str, Any]]:
        path = self.folder / "out_failures.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def check_whole(self) -> None:
        """Every row once, with the undisturbed result (INV-1, INV-2)."""
        rows = sorted((row["rollout_id"], row["reward"]) for row in self.written())
        assert rows == sorted((f"row-{n}", float(n)) for n in range(self.rows))

    def published(self) -> str:
        pointed: str = json.loads((self.directory / "LATEST").read_text())["checkpoint_id"]
        return pointed

    def collection(self) -> dict[str, Any]:
        text = (self.directory / "checkpoints" / self.published() / "collection.json").read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "checkpoints").iterdir())


def gym_of(**changes: Any) -> FakeGym:
    return FakeGym(thread_disk(), **changes)


async def slow_gym(rows: int) -> FakeGym:
    """One whose episodes do not finish before a test is done with it."""
    gym = gym_of(steps=10**9)
    gym.busy_at = rows
    return gym


async def stop_in_the_middle(bench: Bench) -> None:
    """A run that stopped with a checkpoint in which every row had made progress."""
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await bench.until(lambda: len(gym.done) == bench.rows and min(gym.done.values()) >= 2)
        bench.signals.send("SIGTERM")

    assert (await bench.with_signals(gym, script)).exit_code == 0
