"""What a command needs to know about the machine it runs on: environment variables, processes, free ports.

The one place of the command line that asks the operating system; commands stay testable without one.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import math
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PARENT_PID = "GYM_CKPT_PARENT_PID"
"""Environment variable by which a supervisor tells a server whose death ends it."""
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 1.0


def environment_variable(name: str) -> str | None:
    """Its value, or None."""
    return os.environ.get(name)


def monotonic() -> float:
    """Seconds, for durations only."""
    return time.monotonic()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different. Another process may still be quicker."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process_state(pid) != "Z"


def process_state(pid: int) -> str | None:
    """The state letter that Linux gives a process, or None where that cannot be known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def started_at(pid: int) -> str | None:
    """A value that tells two processes of one id apart: the kernel's start time in ticks; None where unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def command_line(pid: int) -> str | None:
    """The command line of a process, its words separated by blanks; None where that cannot be known."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return raw.replace(b"\0", b" ").decode(errors="replace").strip() or None


def send_signal(pid: int, name: str) -> None:
    """Send `SIGTERM`, `SIGUSR1` … to a process. Raises `ProcessLookupError`, `PermissionError`."""
    os.kill(pid, signal.Signals[name])


def die_with_parent() -> bool:
    """Kill this process when the supervisor that started it is gone, which stops its processes in order unless it was
    killed itself. False when no supervisor started it: nothing is done.

    Linux does it by itself (PR_SET_PDEATHSIG); elsewhere a daemon thread looks once a second.
    """
    expected = os.environ.pop(PARENT_PID, None)
    if expected is None:
        return False
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(int(expected),), daemon=True).start()
    if os.getppid() != int(expected):
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def _watch_parent(expected: int) -> None:
    while os.getppid() == expected:
        time.sleep(_PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def pid_file(path: Path) -> Iterator[None]:
    """`path` holds this process's id meanwhile, for whoever means to signal it; what cannot be written is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{os.getpid()}\n", encoding="utf-8")
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def why_not_writable(path: Path) -> OSError | None:
    """Why this process cannot add to a file, or make files in a directory, found by trying; None when it can. Nothing
    is there afterwards that was not there before.

    Permissions alone do not say: root has all of them on a disk that is read-only, on a share that knows better, and
    below /proc.
    """
    try:
        with tempfile.TemporaryFile(dir=path) if path.is_dir() else path.open("ab"):
            return None
    except OSError as error:
        return error


def one_output() -> bool:
    """Whether standard output and standard error lead to one place, where a line on both would stand twice."""
    try:
        return os.path.samestat(os.fstat(1), os.fstat(2))
    except OSError:
        return False


def shield_from_interrupt() -> None:
    """Ignore SIGINT: a terminal's Ctrl-C reaches every process at once, and the supervisor decides who stops when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_cleanly_at_sigterm() -> None:
    """Let SIGTERM unwind this process as Ctrl-C does, so that it takes its processes and its files with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def let_through(signals: Sequence[signal.Signals]) -> None:
    """Let signals that were blocked strike; those that came meanwhile do now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def ignore(signals: Sequence[signal.Signals]) -> None:
    """Whatever comes of them from now on, or waits, is too late to change anything."""
    for each in signals:
        signal.signal(each, signal.SIG_IGN)


def log_to_stderr() -> None:
    """Warnings and what the tracer finds notable, one plain line each."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("gym_ckpt").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)


def log_through(write: Callable[[str], None]) -> None:
    """Warnings only, each given to `write`: a program that has the screen shows them without breaking its picture."""
    handler = _Writing(write)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)


class _Writing(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """A call that the end of a drain cut off has a line already that says so; its traceback says nothing more."""
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError


def is_locked(path: Path) -> bool:
    """Whether a live process holds the exclusive lock of this file (see `ports.FileSystem.try_lock`)."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        return False


def open_files_allowed() -> float:
    """How many files and sockets a process of this user may have open, at the most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if hard == resource.RLIM_INFINITY else hard
