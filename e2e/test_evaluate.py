"""docs/evaluate.md, word for word: its commands are run as they stand there, every one of them.

Two stand-ins make that possible beside other tests: `./dev run` uses the environment that this test runs in, and `/tmp`
is this test's folder, too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.test_examples import EXAMPLES, copied
from gym_ckpt.adapters.host import process_state

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
DOC = EXAMPLES.parent / "docs" / "evaluate.md"
WAIT_S = 120.0
DISASTERS = ("/*.pid", "gym-ckpt stop", "/collector.pid", "truncate")
"""Of the page's section 2, in its order, by words of the command."""


def commands() -> list[str]:
    """Every command of the page, in its order, without the remark behind it."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```$", DOC.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            command = re.split(r"\s{2,}#", line)[0].strip()
            if re.match(r"(\./dev|cp|rm|kill|truncate) ", command):
                found.append(command)
    return found


def of(words: str) -> str:
    """The page's one command with these words in it."""
    (command,) = [each for each in commands() if words in each]
    return command


class Stranger:
    """Somebody in a checkout who types what the page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").mkdir()
        copied(folder / "examples")
        shutil.copy(EXAMPLES / "compare.py", folder / "examples")
        (folder / "dev").write_text('#!/bin/sh\n[ "$1" = run ] && shift && exec "$@"\nexit 2\n')
        (folder / "dev").chmod(0o755)
        self.env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def begin(self, name: str, command: str) -> None:
        """In a terminal of its own."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.env, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def until(self, true: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.log('collect')[-2000:]}"
            time.sleep(0.05)

    def start(self) -> None:
        """Both terminals; returns once the collector runs."""
        self.begin("serve", of("gym-ckpt serve"))
        self.until(lambda: "worker: ready" in self.log("serve"), "the servers")
        self.begin("collect", of("gym-ckpt collect"))

    def end(self, name: str) -> int:
        return self.running.pop(name).wait(WAIT_S)

    def stop_servers(self) -> None:
        """Ctrl-C in terminal A, if anything is left there."""
        servers = self.running.pop("serve")
        if servers.poll() is None:
            os.killpg(servers.pid, signal.SIGINT)
        servers.wait(WAIT_S)

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        command = command.replace("/tmp/", f"{self.folder}/")
        return subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )

    def living(self) -> list[int]:
        """Processes of this folder, the shells that type apart."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").resolve(strict=True) == self.folder.resolve():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def all_die(self) -> None:
        """`serve`, the collector and every server are gone, without anybody else having to do it."""
        self.until(lambda: not [pid for pid in self.living() if process_state(pid) != "Z"], "everything to be dead")

    def close(self) -> None:
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    made = Stranger(tmp_path)
    yield made
    made.close()


def test_every_command_of_the_page_does_what_the_page_says(stranger: Stranger) -> None:
    assert [each for each in commands() if any(word in each for word in DISASTERS)] == [of(word) for word in DISASTERS]
    assert len([each for each in commands() if re.match("kill|truncate", each)]) == 3, "the page's disasters are played"
    stranger.start()
    assert stranger.end("collect") == 0, stranger.log("collect")
    assert "all 24 rows finished" in stranger.log("collect") and "published, the last is" in stranger.log("collect")
    assert "INFO gym_ckpt" not in stranger.log("collect"), "what is said in words is not logged as well"
    stranger.stop_servers()
    for words in ("cp ", "rm -r "):
        assert stranger.type(of(words)).returncode == 0
    output = stranger.folder / "examples" / "runs" / "example.jsonl"

    for disaster in DISASTERS:
        stranger.start()
        collector = stranger.running["collect"]
        stranger.until(
            lambda: "published" in stranger.log("collect") or collector.poll() is not None,  # noqa: B023
            "a checkpoint",
        )
        if disaster == "truncate":
            stranger.until(lambda: output.stat().st_size > 0, "a row")
        typed = stranger.type(of("/*.pid" if disaster == "truncate" else disaster))
        assert typed.returncode == 0, typed.stderr
        status = stranger.end("collect")
        assert status == (0 if disaster == "gym-ckpt stop" else -signal.SIGKILL), stranger.log("collect")
        stranger.stop_servers()
        stranger.all_die()
        if disaster == "truncate":
            assert stranger.type(of(disaster)).returncode == 0

    stranger.start()
    assert stranger.end("collect") == 0, stranger.log("collect")
    said = stranger.log("collect")
    assert "bytes that a crash had left torn" in said and "finished before" in said
    stranger.stop_servers()
    compared = stranger.type(of("compare.py"))
    assert (compared.returncode, compared.stdout) == (0, "24 rows each, every one once, all equal\n"), compared.stdout
    assert compared.stdout in DOC.read_text()
