"""`gym-ckpt checkpoint` and `stop`: a signal to the collector that owns a directory, and to nobody else.

A pid in a file may be a dead process's, or another process's by now. The collector holds a lock on the file as long as
it lives, so the lock decides; the pid only says where the signal goes.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gym_ckpt.adapters.host import is_alive, is_locked, send_signal
from gym_ckpt.errors import ConfigError, GymCkptError
from gym_ckpt.storage import layout

_PID = re.compile(r"(?:pid\D*)?(\d+)")
_EFFECT: Final = MappingProxyType(
    {
        "SIGUSR1": "takes a checkpoint and goes on",
        "SIGTERM": "takes a checkpoint if rows are in flight, and stops",
    }
)


class NotRunning(GymCkptError):
    """No live collector owns the directory."""


def collector_of(directory: str) -> tuple[int | None, bool]:
    """Pid of the directory's present or last collector (None: there was none, or it cannot be read); does it run?"""
    path = Path(layout.collector_pid(directory))
    try:
        match = _PID.search(path.read_text(encoding="utf-8", errors="replace"))
        return (int(match.group(1)), is_locked(path)) if match else (None, False)
    except OSError:
        return None, False


def run_dir_of(directory: str) -> str:
    """The run directory that a person means, who may name the `checkpoints` in it."""
    path = Path(directory).resolve()
    inside = path.name == layout.CHECKPOINTS and not _is_run(path) and _is_run(path.parent)
    return str(path.parent if inside else path)


def _is_run(path: Path) -> bool:
    marks = (layout.run_file, layout.latest, layout.collector_pid)
    return any(Path(mark(str(path))).exists() for mark in marks)


def signal_collector(directory: str, name: str) -> str:
    """Send SIGUSR1 or SIGTERM to the directory's collector; returns a line that says so.

    Raises:
        ConfigError: there is no such directory, or its pid file cannot be used.
        NotRunning: its collector has ended.
    """
    if not Path(directory).is_dir():
        raise ConfigError(f"{directory}: there is no such directory; give the collector's checkpoint_dir")
    path = Path(layout.collector_pid(run_dir_of(directory)))
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise NotRunning(f"no collector has run in {directory}: it has no {path.name}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    match = _PID.search(text)
    if match is None:
        raise ConfigError(f"{path}: names no process")
    pid = int(match.group(1))
    if not is_alive(pid) or not is_locked(path):
        raise NotRunning(f"the collector of {directory} (pid {pid}) has ended; go on: gym-ckpt collect CONFIG --resume")
    try:
        send_signal(pid, name)
    except ProcessLookupError:
        raise NotRunning(f"the collector of {directory} (pid {pid}) has just ended") from None
    except PermissionError:
        raise NotRunning(f"the collector of {directory} (pid {pid}) is another user's process") from None
    return f"sent {name} to the collector (pid {pid}): it {_EFFECT[name]}"
