"""One operating-system process per server: start them, wait until they serve, notice who dies, stop them all.

A `Supervisor` owns every process that it started: leaving its context ends them, and a server whose supervisor is
killed ends itself (`host.die_with_parent`), so no orphan keeps a port. It restarts nothing: a server that died has lost
its episodes, and only the controller knows which of them a checkpoint can bring back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType

import anyio
import anyio.abc

from gym_ckpt.adapters.host import PARENT_PID
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.errors import ConfigError, GymCkptError, TransportError
from gym_ckpt.limits import DRAIN_S, KILL_AFTER_DRAIN_S, LOG_LINES_SHOWN, READY_POLL_S, READY_S
from gym_ckpt.runtime.groups import Tasks

USAGE_ERROR = 2
"""Exit status of a process that refuses its configuration or its arguments."""
Log = Callable[[str, str], None]
"""Called with a server's name and one line that it printed."""


class ServerDied(GymCkptError):
    """A supervised process ended, or did not come up, without being asked to; names it and its last lines."""


@dataclass(frozen=True, slots=True)
class Command:
    """One process. `health_url`: answers 200 once the server serves; None for a process that serves nothing."""

    argv: Sequence[str]
    health_url: str | None = None


@dataclass(slots=True)
class _Running:
    process: anyio.abc.Process
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES_SHOWN))
    stopping: bool = False
    drained: anyio.Event = field(default_factory=anyio.Event)


def server_command(config: str, name: str, url: str) -> Command:
    """The process that runs one server of a configuration file."""
    argv = (sys.executable, "-m", "gym_ckpt", "serve", config, "--server", name)
    return Command(argv, f"{url}/health")


class Supervisor:
    """Processes by name. An async context manager; on exit whatever still runs is terminated, then killed."""

    def __init__(self, log: Log, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._environment = dict(environment or {})
        self._running: dict[str, _Running] = {}
        self._commands: dict[str, Command] = {}
        self._exit = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup

    async def __aenter__(self) -> Supervisor:
        self._tasks = await self._exit.enter_async_context(Tasks())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        with anyio.CancelScope(shield=True):
            await self.stop(drain_s=DRAIN_S if kind is None else 0.0)
        self._tasks.cancel_scope.cancel()
        return await self._exit.__aexit__(kind, error, where)

    async def start(self, name: str, command: Command) -> int:
        """Start a process; returns its id.

        Raises:
            ConfigError: it cannot be started at all, or somebody answers at its health route already, whose answer
                would be taken for its own.
        """
        assert name not in self._running, f"{name} runs already"
        if command.health_url is not None:
            async with HttpxClient() as client:
                if await _healthy(client, command.health_url):
                    raise ConfigError(f"{command.health_url} answers already: another gym runs there; stop it first")
        environment = {**os.environ, **self._environment, PARENT_PID: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        try:
            process = await anyio.open_process(
                list(command.argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        except OSError as error:
            raise ConfigError(f"cannot start {name}: {error}") from None
        running = _Running(process)
        self._running[name] = running
        self._commands[name] = command
        self._tasks.start_soon(self._read_log, name, running)
        return process.pid

    async def _read_log(self, name: str, running: _Running) -> None:
        assert running.process.stdout is not None
        rest = b""
        try:
            async for chunk in running.process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._line(name, running, line)
            if rest:
                self._line(name, running, rest)
        finally:
            running.drained.set()

    def _line(self, name: str, running: _Running, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        running.tail.append(text)
        self._log(name, text)

    async def wait_ready(self, ready_s: float = READY_S) -> None:
        """Return once every process with a health route answers it.

        Raises:
            ServerDied: naming the server that ended, or does not answer after `ready_s` seconds, with its last lines.
            ConfigError: a server refused its configuration; named in the same way.
        """
        async with HttpxClient() as client:
            waiting = {name: self._commands[name].health_url for name in self._running}
            missing: list[str] = []
            with anyio.move_on_after(ready_s):
                missing = [name for name, url in waiting.items() if url is not None]
                while missing:
                    missing = [name for name in missing if not await _healthy(client, str(waiting[name]))]
                    self.check()
                    if missing:
                        await anyio.sleep(READY_POLL_S)
                return
            raise ServerDied(
                f"server {missing[0]!r} does not answer {waiting[missing[0]]} after {ready_s:g} s"
                f"{self._last_lines(missing[0])}"
            )

    async def watch(self) -> None:
        """Wait until a process ends that was not told to. Raises `ServerDied`; returns never."""
        while True:
            self.check()
            await anyio.sleep(READY_POLL_S)

    def check(self) -> None:
        """Raises `ServerDied` when a process has ended that was not told to; `ConfigError` when it refused to begin."""
        for name, running in self._running.items():
            code = running.process.returncode
            if code is not None and not running.stopping:
                # What a server refuses is its configuration, which is its supervisor's.
                died = ConfigError if code == USAGE_ERROR else ServerDied
                raise died(f"server {name!r} {_how(code)}{self._last_lines(name)}")

    def _last_lines(self, name: str) -> str:
        tail = [line for line in self._running[name].tail if line]
        return "; its last lines:\n  " + "\n  ".join(tail) if tail else "; it printed nothing"

    async def wait(self, name: str) -> int:
        """The exit status of a process, once it has ended; everything it printed has been logged by then."""
        running = self._running[name]
        running.stopping = True
        code = await running.process.wait()
        with anyio.move_on_after(KILL_AFTER_DRAIN_S):
            await running.drained.wait()
        await running.process.aclose()
        del self._running[name]
        return code

    def tail(self, name: str) -> list[str]:
        """The last lines that a running process printed."""
        return list(self._running[name].tail)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal; nothing when the process has ended."""
        running = self._running[name]
        if number in (signal.SIGTERM, signal.SIGKILL):
            running.stopping = True
        _send(running.process, number)

    async def kill_all(self) -> int:
        """SIGKILL every process, all before waiting for any; returns how many were alive and are dead now."""
        alive = [running for running in self._running.values() if running.process.returncode is None]
        for running in alive:
            running.stopping = True
            _send(running.process, signal.SIGKILL)
        await self._reap()
        return sum(running.process.returncode == -signal.SIGKILL for running in alive)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """SIGTERM to all; SIGKILL to those that are still there after `drain_s` and a margin."""
        for running in self._running.values():
            running.stopping = True
            _send(running.process, signal.SIGTERM)
        with anyio.move_on_after(drain_s + KILL_AFTER_DRAIN_S):
            await self._reap()
            return
        await self.kill_all()

    async def _reap(self) -> None:
        for name in list(self._running):
            await self.wait(name)


def _send(process: anyio.abc.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            return


async def _healthy(client: HttpxClient, url: str) -> bool:
    try:
        return (await client.request("GET", url, timeout_s=READY_S)).status == 200
    except TransportError:
        return False


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
