"""Processes that start in milliseconds: a parent which has imported everything forks them.

What runs in them is the command line, as ever; only the half second of imports is gone, so that a test can kill a
whole gym fifty times. `Nursery` is the tests' end, driven without an event loop. With a `strike` file a process's file
system fails where that file says (`e2e.struck`); nothing of that is in the package itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

WAIT_S = 240.0
POLL_S = 0.01


class Nursery:
    """A context manager; leaving it ends every process that was started through it."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "e2e.nursery"]
        self._parent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.alive: dict[str, int] = {}
        self.kills = 0

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.kill(*self.alive)
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(WAIT_S)
        self._parent.stdout.close()

    def start(self, name: str, words: list[str], log: Path, strike: Path | None = None) -> int:
        """Run `gym-ckpt` with `words`, its output going to the end of `log`; returns its pid."""
        assert name not in self.alive, f"{name} runs already"
        self.alive[name] = self._ask(start=words, log=str(log), strike=None if strike is None else str(strike))
        return self.alive[name]

    def poll(self, name: str) -> int | None:
        """The exit status (negative: the signal) of a process that has ended; None while it runs."""
        status: int | None = self._ask(poll=self.alive[name])
        if status is not None:
            del self.alive[name]
        return status

    def wait(self, name: str) -> int:
        """The exit status of a process, once it has ended."""
        end = time.monotonic() + WAIT_S
        while (status := self.poll(name)) is None:
            assert time.monotonic() < end, f"{name} does not end"
            time.sleep(POLL_S)
        return status

    def signal(self, name: str, number: signal.Signals) -> None:
        """Nothing when it has ended."""
        try:
            os.kill(self.alive[name], number)
        except ProcessLookupError:
            return

    def kill(self, *names: str) -> None:
        """SIGKILL these, all before waiting for any."""
        for name in names:
            self.signal(name, signal.SIGKILL)
        for name in names:
            self.kills += self.wait(name) == -signal.SIGKILL

    def _ask(self, **command: Any) -> Any:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(command).encode() + b"\n")
        self._parent.stdin.flush()
        answer = self._parent.stdout.readline()
        assert answer, "the nursery has died"
        return json.loads(answer)


# ----------------------------------------------------------------------------------------------- the parent's end


def _main() -> None:
    import gym_ckpt.adapters.system
    import gym_ckpt.cli.collect
    import gym_ckpt.cli.serve
    import gym_ckpt.runtime.serve  # noqa: F401

    for line in sys.stdin.buffer:
        command = json.loads(line)
        answer = _start(**command) if "start" in command else _poll(command["poll"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _start(start: list[str], log: str, strike: str | None) -> int:
    pid = os.fork()
    if pid == 0:
        _become(start, log, strike)
    return pid


def _become(words: list[str], log: str, strike: str | None) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    if strike is not None:
        from e2e.struck import strike_files

        strike_files(Path(strike))
    from gym_ckpt.cli.main import main

    status = 1
    try:
        main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    _main()
