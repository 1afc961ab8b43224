"""The example jobs under the signals that batch systems send, with small stand-ins for the systems (scenario 31).

The stand-ins are shell scripts on the PATH: `srun` runs its command, `scontrol requeue` leaves a note. Who gets which
signal when is this file's part, in the order of the systems' manuals.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.many import TURNS, Many
from e2e.nursery import Nursery
from gym_ckpt.adapters.host import command_line
from gym_ckpt.cli.demo_figures import compare
from gym_ckpt.cli.demo_gym import COLLECTOR

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds a job's processes in /proc"),
]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
KILL_WAIT_S = 120.0
"""Longer than any example grants: a busy machine is not what these tests are about."""
STARTS_MAX = 6
Rows = list[dict[str, Any]]
COLLECT = "checkpoint_every_s = 1.0\ncheckpoint_timeout_s = 60\n"


class Job:
    """One start of a job's script, in a session of its own as a batch system gives it."""

    def __init__(self, many: Many, script: Path, start: int) -> None:
        folder = many.gym.folder
        self._log = (folder / "logs" / "job.log").open("ab")
        env = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "GYM_CONFIG": str(many.gym.config),
            "GYM_SUMMARY": str(folder / "summary.json"),
            "SLURM_JOB_ID": "7",
            "SLURM_RESTART_COUNT": str(start),
        }
        self.process = subprocess.Popen(
            ["bash", str(script)], env=env, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def processes(self) -> list[int]:
        """Everything of the job but its shell, as a cgroup would list it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    if os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
                except (ProcessLookupError, PermissionError):
                    continue
        return found

    def runs(self, word: str) -> bool:
        """Whether some process of it has this word in its command line."""
        return any(word in (command_line(pid) or "").split() for pid in self.processes())

    def shell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def steps(self, number: signal.Signals) -> None:
        """As slurmstepd does: each process of each step, and the batch shell not."""
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def end(self) -> int:
        """Its exit status; what is left of it after the time between SIGTERM and SIGKILL, and at its end, is killed."""
        try:
            return self.process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.steps(signal.SIGKILL)
            while self.processes():
                time.sleep(0.01)
            self._log.close()


def until_published(many: Many, process: subprocess.Popen[bytes]) -> None:
    """Until there is one checkpoint more, or the process has ended."""
    log = many.gym.folder / "logs" / "job.log"
    before = log.read_text().count(" collector.published {")
    many.until(
        lambda: log.read_text().count(" collector.published {") > before or process.poll() is not None,
        "a checkpoint of the job",
    )


def stand_ins(folder: Path) -> Path:
    """`srun`, `scontrol` and `gym-ckpt`; returns the file that a requeue writes to."""
    (folder / "bin").mkdir()
    requeued = folder / "requeued"
    for name, text in {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
        "scontrol": f'[ "$1 $2" = "requeue 7" ] && echo again >> {requeued}',
        "gym-ckpt": f'exec {sys.executable} -m gym_ckpt "$@"',
    }.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return requeued


def shell_only(job: Job) -> None:
    """`--signal=B:TERM@120`."""
    job.shell(signal.SIGTERM)


def every_process(job: Job) -> None:
    """A preemption, or scancel: SIGCONT and SIGTERM to the steps; the shell learns nothing."""
    job.steps(signal.SIGCONT)
    job.steps(signal.SIGTERM)


def twice(job: Job) -> None:
    """The time limit is near, and then a preemption comes as well."""
    job.shell(signal.SIGTERM)
    time.sleep(0.2)
    every_process(job)


def both(job: Job) -> None:
    """`scancel --full`: the shell and every process at the same time, so that the collector is told twice."""
    job.shell(signal.SIGTERM)
    every_process(job)


def killed(job: Job) -> None:
    """The kernel's killer takes the collector; nobody is told anything."""
    for pid in job.processes():
        if "collect" in (command_line(pid) or "").split():
            os.kill(pid, signal.SIGKILL)


def at_once(job: Job) -> None:
    """Before there is a collector to tell."""
    del job


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Rows of a run that nothing happened to."""
    with Nursery() as nursery:
        many = Many(nursery, tmp_path_factory.mktemp("calm"))
        many.start_servers()
        many.start_collector(resume=False)
        assert nursery.wait(COLLECTOR) == 0, many.said()
        return many.gym.rows()


@pytest.mark.parametrize("send", [shell_only, every_process, twice, both, killed, at_once])
def test_a_slurm_job_requeues_itself_until_every_row_is_there(
    tmp_path: Path, calm: Rows, send: Callable[[Job], None]
) -> None:
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=COLLECT + ("one_sigterm_s = 2\n" if send is both else ""))
    requeued = stand_ins(many.gym.folder)
    log = many.gym.folder / "logs" / "job.log"
    starts = 0
    while True:
        job = Job(many, EXAMPLES / "slurm" / "collect.sbatch", starts)
        starts += 1
        assert starts <= STARTS_MAX, log.read_text()[-3000:]
        if starts <= 2:
            if send is at_once:
                many.until(lambda job=job: job.runs("serve"), "the job to have begun")  # type: ignore[misc]
                job.shell(signal.SIGTERM)
            else:
                until_published(many, job.process)
                send(job)
        status = job.end()
        again = requeued.exists()
        requeued.unlink(missing_ok=True)
        if not again:
            break
    said = log.read_text()
    assert status == 0, said[-3000:]
    result = compare(calm, many.gym.rows())
    assert (result.duplicated, result.missing, result.differing) == (0, [], [])
    assert starts == 3 and len(many.gym.rows()) == len(TURNS)
    if send is not at_once:
        assert "collector.restored {" in said
    if send is both:  # neither stop was the second SIGTERM's
        assert said.count("stopped at once") == 0 and said.count('collector.exit {"status": 0') == starts


def test_a_job_whose_gym_cannot_be_used_is_not_requeued_for_ever(tmp_path: Path) -> None:
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=COLLECT)
    requeued = stand_ins(many.gym.folder)
    many.gym.config.write_text(many.gym.config.read_text() + "no_such_key = 1\n")
    assert Job(many, EXAMPLES / "slurm" / "collect.sbatch", 0).end() == 2
    assert not requeued.exists()


class Pod:
    """What kubelet does with the two containers of the example's pod, on this machine instead of in images."""

    def __init__(self, many: Many) -> None:
        spec = yaml.safe_load((EXAMPLES / "kubernetes" / "job.yaml").read_text())["spec"]["template"]["spec"]
        self._grace_s = spec["terminationGracePeriodSeconds"]
        self._many = many
        self._log = (many.gym.folder / "logs" / "job.log").open("ab")
        servers, collector = spec["initContainers"][0], spec["containers"][0]
        self._pre_stop = servers["lifecycle"]["preStop"]["exec"]["command"]
        assert "lifecycle" not in collector, "a signal in front of SIGTERM would make that the second"
        self.servers = self._run(servers["command"])
        self.collector = self._run(collector["command"])

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        gym = self._many.gym
        here = {
            "/gym/gym.toml": str(gym.config),
            "/gym/collect.sh": str(EXAMPLES / "kubernetes" / "collect.sh"),
            "/gym/run/collector.pid": str(gym.run_dir / "collector.pid"),
        }
        env = {
            **os.environ,
            "PATH": f"{gym.folder / 'bin'}:{os.environ['PATH']}",
            "GYM_CONFIG": str(gym.config),
            "GYM_SUMMARY": str(gym.folder / "summary.json"),
        }
        words = [here.get(word, word) for word in command]
        return subprocess.Popen(words, env=env, stdout=self._log, stderr=self._log, start_new_session=True)

    def terminate(self) -> int:
        """preStop and SIGTERM to all containers at once, as without sidecars; the collector's exit status."""
        self.collector.terminate()
        self._run(self._pre_stop).wait(self._grace_s)
        self.servers.terminate()
        assert self.servers.wait(KILL_WAIT_S) == 0, "the servers drain"
        return self.collector.wait(KILL_WAIT_S)

    def close(self) -> None:
        self._log.close()


def test_an_evicted_pod_is_continued_by_the_next(tmp_path: Path, calm: Rows) -> None:
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=COLLECT)
    stand_ins(many.gym.folder)
    log = many.gym.folder / "logs" / "job.log"
    for number in range(3):
        pod = Pod(many)
        if number < 2:
            until_published(many, pod.collector)
            assert pod.terminate() == 75, "not done, and not to be taken for done"
            assert "stopped: " in log.read_text()
        else:
            assert pod.collector.wait(KILL_WAIT_S) == 0, log.read_text()[-3000:]
            pod.servers.terminate()
            pod.servers.wait(KILL_WAIT_S)
        pod.close()
    result = compare(calm, many.gym.rows())
    assert (result.duplicated, result.missing, result.differing) == (0, [], [])
    assert "collector.restored {" in log.read_text()
