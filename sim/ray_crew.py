"""Workers on a Ray cluster: one Ray task per block of jobs. The extra `ray`; imported only where it is asked for.

The cluster's machines need Python and the packages of requirements.txt and of the extra; the sources are shipped with
the campaign, so that what runs there is this checkout, and each task says which sources it ran: others are an error. A
task whose process dies takes a run with it: its jobs are sent again one by one, and the one that dies again is a
failure of its seed (`RUN-lost`).

Must not know what a job does, or what is kept of it.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from gym_ckpt.errors import ConfigError
from sim.crew import RUN_MAX_S
from sim.jobs import Job, Outcome, lost, run_jobs
from sim.sources import PACKAGES, ROOT, versions

REACHED_S = 20.0
EXCLUDED = (".*", "__pycache__", "docs", "benchmarks", "tests", "e2e", "examples", "runs", "dist", "build")


class Cluster:
    """A `Crew` of a whole cluster. `until`: on this machine's monotonic clock, when to begin no more jobs.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at `address`.
    """

    def __init__(self, address: str, until: float | None = None) -> None:
        self._ray = ray = _ray()
        self._until = until
        self._sources = versions()["sources"]
        try:
            _reach(address)
            ray.init(
                address=address,
                runtime_env={"working_dir": str(ROOT), "excludes": list(EXCLUDED)},
                log_to_driver=False,
                logging_level="warning",
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"there is no Ray cluster at {address}: {error}") from None
        self.size = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(num_cpus=1, max_retries=0)(run_there)
        self._running: dict[Any, tuple[list[Job], float]] = {}
        self._left: deque[Job] = deque()
        """Of blocks whose process has died: to be run one by one."""

    @property
    def free(self) -> int:
        return max(0, self.size - len(self._running))

    @property
    def busy(self) -> bool:
        return bool(self._left or self._running)

    def give(self, block: Sequence[Job]) -> None:
        left_s = None if self._until is None else max(0.0, self._until - time.perf_counter())
        reference = self._task.remote(list(block), left_s, self._sources)
        self._running[reference] = (list(block), time.perf_counter())

    def wait(self, timeout_s: float) -> list[Outcome]:
        while self._left and self.free:
            self.give([self._left.popleft()])
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        if not done:
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        outcomes = [outcome for reference in done for outcome in self._heard(reference)]
        return outcomes + self._endless()

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def _heard(self, reference: Any) -> list[Outcome]:
        block, since = self._running.pop(reference)
        try:
            outcomes: list[Outcome] = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise ConfigError(f"the cluster cannot run this checkout: {error.cause}") from None
        except self._ray.exceptions.RayError as error:
            return self._bury(block, since, "RUN-lost", f"the process that ran it ended: {type(error).__name__}")
        return outcomes

    def _bury(self, block: list[Job], since: float, name: str, seen: str) -> list[Outcome]:
        if len(block) == 1:
            return [lost(block[0], name, seen, time.perf_counter() - since)]
        self._left.extend(block)
        return []

    def _endless(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for reference, (block, since) in list(self._running.items()):
            if time.perf_counter() - since > RUN_MAX_S * len(block):
                self._ray.cancel(reference, force=True)
                del self._running[reference]
                outcomes += self._bury(block, since, "RUN-hung", f"it had run for {RUN_MAX_S:g} s of real time")
        return outcomes


def run_there(block: list[Job], left_s: float | None, sources: str) -> list[Outcome]:
    """One task: what became of these jobs."""
    there = versions()["sources"]
    if there != sources:
        raise RuntimeError(f"{', '.join(PACKAGES)} differ there: {there} is not {sources}")
    return list(run_jobs(block, None if left_s is None else time.perf_counter() + left_s))


def _reach(address: str) -> None:
    """Raises `OSError` where nobody listens: Ray would go on trying for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_S).close()


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        install = "./dev run python -m pip install --require-hashes -r requirements-ray.txt"
        raise ConfigError(f"Ray is not installed: {install}") from None
    return ray
