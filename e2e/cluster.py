"""A gym of real processes for a test: the demo's gym, with a supervisor and the words that a test needs; and commands.

`Cluster` and `running` are async context managers; leaving them ends every process.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import anyio
import anyio.abc

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.supervisor import Supervisor
from gym_ckpt.cli.demo_gym import COLLECTOR, SERVERS, DemoGym, write_tasks

ROLLOUTS = 8
TOKENS_PER_S = 500.0
WAIT_S = 240.0
POLL_S = 0.05


class Cluster:
    """One gym in `folder`, of `ROLLOUTS` rollouts."""

    def __init__(self, folder: Path, name: str = "gym") -> None:
        self.gym = DemoGym(name, folder / name)
        write_tasks(folder / "tasks.jsonl", ROLLOUTS)
        self.gym.prepare(ROLLOUTS, TOKENS_PER_S)
        self.servers = Supervisor(self.gym.log)
        self.http = HttpxClient()

    async def __aenter__(self) -> Cluster:
        await self.http.__aenter__()
        await self.servers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.servers.kill_all()  # a drain would wait for episodes that nobody asks for any more
        await self.servers.__aexit__(kind, error, where)
        await self.http.__aexit__(kind, error, where)

    async def start(self) -> None:
        """All six servers, ready."""
        await self.gym.start_servers(self.servers)

    async def collect(self, *, resume: bool) -> None:
        """Start a collector; it goes on in its process."""
        await self.gym.start_collector(self.servers, resume=resume)

    async def collected(self) -> int:
        """Exit status of the collector, once it has ended."""
        with anyio.fail_after(WAIT_S):
            return await self.servers.wait(COLLECTOR)

    async def until_delivered(self, calls: int) -> None:
        """Wait until the policy model has delivered this many calls."""
        with anyio.fail_after(WAIT_S):
            while True:
                self.servers.check()
                counts = (await self.gym.status(self.http, "policy"))["report"]["counts"]
                if counts["delivered_calls"] >= calls:
                    return
                await anyio.sleep(POLL_S)

    async def until_traced(self, event: str) -> None:
        """Wait until the collector has said so."""
        with anyio.fail_after(WAIT_S):
            while self.gym.traced(event) is None:
                self.servers.check()
                await anyio.sleep(POLL_S)

    async def until_idle(self) -> None:
        """Wait until no participant is in a checkpoint any more."""
        with anyio.fail_after(WAIT_S):
            for name in SERVERS[:-1]:
                while (await self.gym.status(self.http, name))["phase"] != "idle":  # noqa: ASYNC110
                    await anyio.sleep(POLL_S)

    async def kill(self, *names: str) -> None:
        """SIGKILL these processes, all before waiting for any."""
        for name in names:
            self.servers.signal(name, signal.SIGKILL)
        for name in names:
            await self.servers.wait(name)


async def command(*words: str) -> tuple[int, str, str]:
    """Run `gym-ckpt` to its end: status, stdout, stderr."""
    with anyio.fail_after(WAIT_S):
        done = await anyio.run_process([sys.executable, "-m", "gym_ckpt", *words], check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Running:
    """A `gym-ckpt` that runs, and what it has said on standard error so far."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.process = process
        self.said = ""
        self._over = False

    async def read(self) -> None:
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self.said += chunk.decode()
        self._over = True

    async def until(self, words: str) -> None:
        with anyio.fail_after(WAIT_S):
            while words not in self.said:
                assert not self._over, f"it has ended, and never said {words!r}: {self.said}"
                await anyio.sleep(POLL_S)

    async def ended(self) -> int:
        """Its exit status."""
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
                process.kill()
            await process.wait()
