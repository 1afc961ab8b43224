"""A signal goes to the live owner of a directory, and to nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.cli.signals import NotRunning, collector_of, signal_collector
from gym_ckpt.errors import ConfigError

OWNER = """
import os, signal, sys
from gym_ckpt.adapters.posix import PosixFileSystem
lock = PosixFileSystem().try_lock(sys.argv[1], f"{os.getpid()}\\n")
signal.signal(signal.SIGUSR1, lambda *_: (print("asked", flush=True), os._exit(0)))
print("owns", flush=True)
signal.pause()
"""


def test_a_live_owner_gets_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "collector.pid")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "owns\n"
        assert f"pid {owner.pid}" in signal_collector(str(tmp_path), "SIGUSR1")
        assert owner.stdout.readline() == "asked\n"


def test_a_dead_owner_is_named(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    (tmp_path / "collector.pid").write_text(f"{owner.pid}\n")
    with pytest.raises(NotRunning, match=f"pid {owner.pid}.* has ended; go on: gym-ckpt collect CONFIG --resume"):
        signal_collector(str(tmp_path), "SIGTERM")


def test_a_recycled_pid_is_not_signalled(tmp_path: Path) -> None:
    """The pid lives, but whoever has it now does not hold the directory's lock."""
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        (tmp_path / "collector.pid").write_text(f"{os.getpid()}\n")
        with pytest.raises(NotRunning, match="has ended"):
            signal_collector(str(tmp_path), "SIGUSR1")
        assert received == []
        lock = PosixFileSystem().try_lock(str(tmp_path / "collector.pid"), f"{os.getpid()}\n")
        assert lock is not None
        signal_collector(str(tmp_path), "SIGUSR1")
        lock.release()
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_directory_without_a_collector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="no collector has run"):
        signal_collector(str(tmp_path), "SIGTERM")
    (tmp_path / "collector.pid").write_text("nobody\n")
    with pytest.raises(ConfigError, match="names no process"):
        signal_collector(str(tmp_path), "SIGTERM")


def test_whose_a_directory_is_can_be_asked(tmp_path: Path) -> None:
    assert collector_of(str(tmp_path)) == (None, False)
    (tmp_path / "collector.pid").write_text("4711\n")
    assert collector_of(str(tmp_path)) == (4711, False)
    lock = PosixFileSystem().try_lock(str(tmp_path / "collector.pid"), "4712\n")
    assert lock is not None
    assert collector_of(str(tmp_path)) == (4712, True)
    lock.release()
