"""Nobody can read what a command says, and it does its work all the same."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_ckpt.adapters.host import free_ports
from tests.unit.cli.test_collect_endings import config

__all__ = ["config"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a device that is always full")
TALKS = """
import os, sys
import gym_ckpt.cli.collect as command
from gym_ckpt.controller.outcome import Outcome

async def collect(settings, coordination, url, ports, progress):
    own = os.open(settings.output, os.O_WRONLY | os.O_CREAT)
    for number in range(2000):
        progress.message(f"line {number} of a run that has much to say")
    ports.tracer.emit("collector.published", checkpoint_id="x")
    os.write(own, b"a row")
    return Outcome(STATUS, "all is well")

command.collect = collect
from gym_ckpt.cli.main import main
main(["collect", CONFIG, *WORDS])
"""
STARTED_S = 60.0
STREAMS = {
    "closed": ">&- 2>&-",
    "all closed": "<&- >&- 2>&-",
    "full": "> /dev/full 2> /dev/full",
    "standard output full": "> /dev/full 2> err",
    "nobody reads": "2>&1 | true",
}


@pytest.mark.parametrize(("words", "status"), [([], 1), (["--json"], 0)], ids=["words", "json"])
@pytest.mark.parametrize("streams", STREAMS)
def test_a_collector_that_nobody_can_hear_ends_as_it_would_have(
    config: Path, tmp_path: Path, streams: str, words: list[str], status: int
) -> None:
    script = TALKS.replace("CONFIG", repr(str(config))).replace("WORDS", repr(words)).replace("STATUS", str(status))
    (tmp_path / "talks.py").write_text(script)
    shell = f"set -o pipefail; {sys.executable} talks.py {STREAMS[streams]}"
    ended = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert ended.returncode == status, (ended.stdout, ended.stderr)
    assert (tmp_path / "out.jsonl").read_bytes() == b"a row", "nothing of what is said got into a file of its own"
    if streams == "standard output full" and words:
        assert "the summary cannot be written to standard output" in (tmp_path / "err").read_text()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=STARTED_S).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("streams", ["closed", "full"])
@pytest.mark.parametrize("one", [False, True], ids=["all", "one"])
def test_servers_that_nobody_can_hear_serve(tmp_path: Path, streams: str, one: bool) -> None:
    (port,) = free_ports(1)
    text = f'[servers.worker]\nkind = "inference"\nurl = "http://127.0.0.1:{port}"\n'
    (tmp_path / "gym.toml").write_text(text)
    words = f"serve gym.toml{' --server worker' if one else ''} {STREAMS[streams]}"
    with subprocess.Popen(["bash", "-c", f"exec {sys.executable} -m gym_ckpt {words}"], cwd=tmp_path) as served:
        end = time.monotonic() + STARTED_S
        while not answers(port):
            assert served.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        served.send_signal(signal.SIGTERM)
        assert served.wait(STARTED_S) == 0
