"""The example jobs under the signals that batch systems send, with small stand-ins for the systems (scenario 31).

The stand-ins are shell scripts on the PATH: `srun` runs its command, `scontrol requeue` leaves a note. Who gets which
signal when is this file's part, in the order of the systems' manuals.
"""

from __future__ import annotations

import fcntl
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
from gym_ckpt.limits import SERVERS_WAIT_S
from gym_ckpt.wire import json

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


def servers_killed(job: Job) -> None:
    """The kernel's killer takes the servers: nobody will start them again in this job."""
    for pid in job.processes():
        if "collect" not in (command_line(pid) or "").split():
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


@pytest.mark.parametrize("send", [shell_only, every_process, twice, both, killed, servers_killed, at_once])
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


def with_a_hopeless_row(nursery: Nursery, folder: Path) -> Many:
    """A gym of which one row fails whenever it is tried, and is given up at once."""
    many = Many(nursery, folder, collect=f"{COLLECT}max_attempts = 1\n", turns=(1, 1, 2))
    tasks = folder / "tasks.jsonl"
    first, rest = tasks.read_text().split("\n", 1)
    tasks.write_text(first.replace("apple", "no such item") + "\n" + rest)
    return many


def summary(many: Many) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((many.gym.folder / "summary.json").read_bytes())
    return found


def test_a_slurm_job_of_which_a_row_was_given_up_is_over(tmp_path: Path) -> None:
    """Status 1, and every row has ended: starting it again would do nothing."""
    with Nursery() as nursery:
        many = with_a_hopeless_row(nursery, tmp_path)
    requeued = stand_ins(many.gym.folder)
    assert Job(many, EXAMPLES / "slurm" / "collect.sbatch", 0).end() == 1
    assert not requeued.exists()
    assert summary(many)["complete"] and "to try them anew" in summary(many)["message"]


def test_a_job_whose_gym_cannot_be_used_is_not_requeued_for_ever(tmp_path: Path) -> None:
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=COLLECT)
    requeued = stand_ins(many.gym.folder)
    many.gym.config.write_text(many.gym.config.read_text() + "no_such_key = 1\n")
    assert Job(many, EXAMPLES / "slurm" / "collect.sbatch", 0).end() == 2
    assert not requeued.exists()


def test_a_job_whose_directory_another_collector_still_has_tries_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Slurm has given up a node, and the file server has not: no mistake of anybody's, and it passes."""
    monkeypatch.setenv("GYM_LATER_S", "0.1")
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=COLLECT)
    requeued = stand_ins(many.gym.folder)
    many.gym.run_dir.mkdir(parents=True, exist_ok=True)
    with (many.gym.run_dir / "collector.pid").open("w") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        assert Job(many, EXAMPLES / "slurm" / "collect.sbatch", 0).end() == 0
    assert requeued.exists() and "in use by another collector" in summary(many)["message"]
    assert summary(many)["exit_code"] == 1 and job_says(1) == "Count", "nor does a Job give up"


def test_a_job_whose_servers_cannot_be_started_does_not_wait_for_them(tmp_path: Path) -> None:
    """The collector would wait `servers_wait_s` for servers that have ended already."""
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=COLLECT)
    requeued = stand_ins(many.gym.folder)
    srun = many.gym.folder / "bin" / "srun"
    srun.write_text(srun.read_text().replace("exec", 'case "$*" in *serve*) exit 7;; esac\nexec'))
    assert KILL_WAIT_S < SERVERS_WAIT_S
    assert Job(many, EXAMPLES / "slurm" / "collect.sbatch", 0).end() == 7
    assert not requeued.exists()


def job_spec() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "kubernetes" / "job.yaml").read_text())["spec"]
    return found


def job_says(status: int, *, disrupted: bool = False) -> str:
    """What the Job's controller makes of a pod whose collector ended so: `Complete`, the first rule that applies, or
    `Count` (one of `backoffLimit`). `disrupted`: evicted, preempted or drained."""
    if status == 0:
        return "Complete"
    for rule in job_spec()["podFailurePolicy"]["rules"]:
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        assert (codes is None) != (conditions is None), "a rule is about one of both"
        if codes is not None:
            assert (codes["containerName"], codes["operator"]) == ("collector", "In")
            applies = status in codes["values"]
        else:
            assert conditions == [{"type": "DisruptionTarget"}]
            applies = disrupted
        if applies:
            return str(rule["action"])
    return "Count"


class Pod:
    """What kubelet does with the two containers of the example's pod, on this machine instead of in images."""

    def __init__(self, many: Many) -> None:
        spec = job_spec()["template"]["spec"]
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

    def end(self) -> int:
        """The collector has ended by itself, or will: its exit status, once the servers have been ended, too."""
        status = self.collector.wait(KILL_WAIT_S)
        self.servers.terminate()
        self.servers.wait(KILL_WAIT_S)
        return status

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
            status = pod.terminate()
            assert status == 75, "not done, and not to be taken for done"
            assert (job_says(status, disrupted=True), job_says(status)) == ("Ignore", "Count"), "another pod is started"
            assert "stopped: " in log.read_text()
        else:
            status = pod.end()
            assert job_says(status) == "Complete", log.read_text()[-3000:]
        pod.close()
    result = compare(calm, many.gym.rows())
    assert (result.duplicated, result.missing, result.differing) == (0, [], [])
    assert "collector.restored {" in log.read_text()


def test_a_job_of_which_a_row_was_given_up_starts_no_other_pod(tmp_path: Path) -> None:
    with Nursery() as nursery:
        many = with_a_hopeless_row(nursery, tmp_path)
    stand_ins(many.gym.folder)
    for _ in range(2):  # also when somebody creates the Job again
        pod = Pod(many)
        status = pod.end()
        pod.close()
        assert (status, job_says(status)) == (3, "FailJob"), (many.gym.folder / "logs" / "job.log").read_text()[-3000:]
        assert summary(many)["complete"] and "to try them anew" in summary(many)["message"]
    assert len(many.gym.rows()) == 2


def test_a_job_whose_configuration_is_refused_starts_no_other_pod(tmp_path: Path) -> None:
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=f"{COLLECT}no_such_key = 1\n")
    stand_ins(many.gym.folder)
    pod = Pod(many)
    status = pod.collector.wait(KILL_WAIT_S)
    assert pod.servers.wait(KILL_WAIT_S) == 2, "neither container can use it"
    pod.close()
    assert (status, job_says(status)) == (2, "FailJob")
