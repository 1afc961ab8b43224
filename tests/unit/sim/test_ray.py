"""A campaign on a real Ray cluster of this machine. Skipped where the extra `ray` is not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ckpt.wire import json
from sim.history import History

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: ./dev run python -m pip install --require-hashes -r requirements-ray.txt",
    ),
]
LOST = """
import os, sys
from sim.campaign import campaign
from sim.jobs import Job
from sim.ray_crew import Cluster

def crew(until):
    cluster = Cluster(sys.argv[1], until)
    real = cluster._task
    def dying(block, left_s, sources):
        import os, signal
        from sim.ray_crew import run_there
        if any(job.seed == 2 for job in block):
            os.kill(os.getpid(), signal.SIGKILL)
        return run_there(block, left_s, sources)
    cluster._task = cluster._ray.remote(num_cpus=1, max_retries=0)(dying)
    return cluster

summary = campaign(range(4), "calm", crew=crew)
print(summary.figures.seeds, [(each.job.seed, each.violation.invariant) for each in summary.figures.failed])
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of one machine, with two cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: Unix sockets lie in it
    head = ["start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000"]
    command: list[str | Path] = [BIN / "ray", *head, *quiet, f"--temp-dir={folder}"]
    with open(Path(folder) / "head.log", "wb") as log:
        cluster = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    health: list[str | Path] = [BIN / "ray", "health-check", "--address", f"127.0.0.1:{port}"]
    try:
        while subprocess.run(health, capture_output=True).returncode:
            assert cluster.poll() is None, (Path(folder) / "head.log").read_text()[-2000:]
            time.sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        cluster.terminate()  # with --block it ends what it has started
        cluster.wait(timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


def run(address: str, folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, timeout=400)


def test_a_campaign_runs_on_a_cluster_and_is_kept_here(address: str, tmp_path: Path) -> None:
    arguments = ("--seeds", "0..20", "--profile", "calm", "--double", "20", "--ray", address, "--json")
    done = run(address, tmp_path, "-m", "gym_ckpt", "sim", "fuzz", *arguments)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    said = json.loads(done.stdout)
    assert (said["seeds"], said["jobs"], said["failures"], said["campaign"]) == (20, 2, [], 1)
    assert said["twice"] > 0
    with History(tmp_path / ".gym-ckpt" / "campaigns.sqlite") as history:
        assert next(history.untried("calm")) == 20


def test_a_process_that_dies_there_is_a_failure_of_its_seed(address: str, tmp_path: Path) -> None:
    done = run(address, tmp_path, "-c", LOST, address)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert done.stdout.decode().splitlines()[-1] == "4 [(2, 'RUN-lost')]"


def test_where_there_is_no_cluster_it_says_so(tmp_path: Path) -> None:
    arguments = ("--seeds", "0..2", "--ray", "127.0.0.1:1")
    done = run("127.0.0.1:1", tmp_path, "-m", "gym_ckpt", "sim", "fuzz", *arguments)
    assert done.returncode != 0 and b"there is no Ray cluster at 127.0.0.1:1" in done.stderr
