"""Runs a fault plan on real processes: the same plan file that the simulator runs, for the faults that exist here.

| fault of the plan | on real processes |
|---|---|
| `crash`, `crash_host` | SIGKILL, and started again as its `restart` says |
| `pause` | SIGSTOP, SIGCONT |
| `signal` | to the collector |
| `partition`, `half_open` | the proxy that each pair of processes talks through (`e2e.proxy`) |
| `disk_error` | the k-th such call of the process's file system (`e2e.struck`), where the step has one |

Moments are `at` (seconds since the first row was sent) or `row`: the k-th of those events of the collector
that it prints. The gym is that of the workload, with the same names, input and seeds as in the simulator, so that the
output rows must be the very same. A plan that asks for anything else is refused (`NotHere`) before a process starts.
Must not know what must hold.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.many import answers
from e2e.nursery import Nursery
from e2e.proxy import Links
from faults import catalogue as faults
from faults.catalogue import EVERYTHING, At, OnRow, Restart, When, kind_of
from faults.plan import Plan
from gym_ckpt.adapters.host import free_ports
from gym_ckpt.wire import json
from sim.cluster import HOSTS
from sim.own import keys_of
from sim.reference import Output, output_of
from sim.workload import CONTROLLER, STEP_TOKENS, Workload, workload

LIMIT_S = 240.0
"""Only a way out of a hang."""
POLL_S = 0.01
SILENCE_S = 2.0
"""When a half-open connection is given up, as the kernel would much later."""
PRINTED = frozenset({"collector.published", "collector.checkpoint_failed", "collector.restored", "collector.lost"})
PARTS = {"records": "records", "log": ".jsonl", "files": "", "publish": "LATEST", "tokens": "tokens"}
"""First word of a disk step → what is in the path of the calls that such steps make."""
CALLS = {
    **{name: name for name in ("create", "write", "fsync", "rename", "mkdir")},
    **dict.fromkeys(("sync_dir", "sync_parent", "sync_pointer"), "fsync_dir"),
}
"""Second word of a disk step → the call of it that fails."""


class NotHere(Exception):
    """The plan asks for something that does not exist on real processes."""


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a plan. `complete`: the collector said that every row has ended."""

    complete: bool
    output: Output
    struck: Counter[str]
    statuses: tuple[int, ...]
    said: str


class RealRun:
    """One plan, one gym in `folder`."""

    def __init__(self, nursery: Nursery, links: Links, folder: Path, plan: Plan) -> None:
        _refuse(plan)
        self._nursery, self._links, self._folder, self._plan = nursery, links, folder, plan
        self._workload: Workload = workload(plan.setup.workload)
        self._servers = self._workload.servers
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._struck: Counter[str] = Counter()
        self._statuses: list[int] = []
        self._resume = False
        self._begun: float | None = None
        (folder / "logs").mkdir(parents=True)
        (folder / "tasks.jsonl").write_bytes(self._workload.input())
        self._configure()

    def play(self) -> Played:
        """Run it to its end, or to `LIMIT_S`."""
        failing = [fault for fault in self._plan.faults if isinstance(fault, faults.DiskError)]
        for each in failing:  # counted from the process's start on, as in a world
            self._arm(each)
        for name in self._servers:
            self._start(name)
        self._wait_ready()
        waiting = [(fault, _moment(fault)) for fault in self._plan.faults if fault not in failing]
        end = time.monotonic() + LIMIT_S
        self._start(CONTROLLER)
        while not (complete := self._complete()) and time.monotonic() < end:
            if self._begun is None:
                self._begun = time.monotonic() if self._has_sent() else None
            else:  # after `chaos_s`, too: a slow machine takes longer than a world to get where a fault is due
                due = [each for each in waiting if self._is_due(each[1])]
                waiting = [each for each in waiting if each not in due]
                for fault, _ in due:
                    self._strike(fault)
            ready, self._due = _split(self._due, time.monotonic())
            for _, act in ready:
                act()
            time.sleep(POLL_S)
        for name in list(self._nursery.alive):
            self._nursery.kill(name)
        done = [fault for fault in failing if self._strike_file(fault.node).with_suffix(".done").exists()]
        self._struck.update(map(kind_of, done))
        output = self._folder / "rows.jsonl"
        data = output.read_bytes() if output.exists() else b""
        return Played(complete, output_of(data), self._struck, tuple(self._statuses), self._said())

    # ------------------------------------------------------------------------------------------- the gym

    def _configure(self) -> None:
        """A configuration for each process: itself where it listens, everybody else behind a proxy."""
        everyone = (*self._servers, CONTROLLER)
        numbers = iter(free_ports(len(self._servers) * (len(everyone) + 1)))
        self._at = {name: next(numbers) for name in self._servers}
        for src in everyone:
            urls = {}
            for dst in self._servers:
                if dst == src:
                    urls[dst] = _url(self._at[dst])
                    continue
                at = next(numbers)
                self._links.add(src, dst, at, self._at[dst])
                urls[dst] = _url(at)
            (self._folder / f"{src}.toml").write_text(self._toml(urls), encoding="utf-8")

    def _toml(self, urls: dict[str, str]) -> str:
        setup, work = self._plan.setup, self._workload
        models, workers = list(work.policies), list(work.workers)
        every = "" if setup.every_s is None else f"checkpoint_every_s = {setup.every_s}\n"
        ledger = 'ledger_dir = "ledger"\n' if work.captured else ""
        verifier = 'verifier = "verifier"\n' if work.judged else ""
        gyms = {"inventory": {"gym": "inventory"}, "verifier": {"gym": "answer"}}
        gyms |= {app.server: gyms[app.server] | keys_of(app) for app in setup.apps}
        own = {name: "".join(f'{key} = "{value}"\n' for key, value in keys.items()) for name, keys in gyms.items()}
        tables = {
            "environment": f'kind = "environment"\nagent = "agent"\nresources = "inventory"\n{verifier}',
            "agent": f'kind = "agent"\nmodel = {json.dumps(models).decode()}\nstream = {str(work.stream).lower()}\n',
            "inventory": f'kind = "resources"\n{own["inventory"]}',
            "verifier": f'kind = "resources"\n{own["verifier"]}',
            **dict.fromkeys(models, f'kind = "model"\nworkers = {json.dumps(workers).decode()}\n{ledger}'),
            **dict.fromkeys(
                workers, f'kind = "inference"\ntokens_per_s = {work.tokens_per_s}\nstep_tokens = {STEP_TOKENS}\n'
            ),
        }
        servers = "".join(f'\n[servers.{name}]\nurl = "{urls[name]}"\n{tables[name]}' for name in self._servers)
        return (
            f'name = "plan"\ncontrol_token = "only-for-a-plan"\n\n[checkpoint]\ngrace_s = {setup.grace_s}\n{servers}\n'
            f'[collect]\nenvironment = "environment"\ninput = "tasks.jsonl"\noutput = "rows.jsonl"\n'
            f'concurrency = {work.concurrency}\nmax_attempts = 1000\ncheckpoint_dir = "run"\n'
            f"checkpoint_timeout_s = {setup.timeout_s}\nkeep_checkpoints = {setup.keep}\n"
            f"one_sigterm_s = {setup.one_sigterm_s}\n{every}"
        )

    def _start(self, name: str) -> None:
        if name in self._nursery.alive:
            return
        config = str(self._folder / f"{name}.toml")
        if name == CONTROLLER:
            words = ["collect", config, "--json", "--resume" if self._resume else "--no-resume"]
            self._resume = True
        else:
            words = ["serve", config, "--server", name]
        self._nursery.start(name, words, self._folder / "logs" / f"{name}.log", self._strike_file(name))

    def _strike_file(self, name: str) -> Path:
        return self._folder / f"{name}.strike"

    def _wait_ready(self) -> None:
        end = time.monotonic() + LIMIT_S
        for port in self._at.values():
            while not answers(port):
                assert time.monotonic() < end, "the servers do not come up"
                time.sleep(POLL_S)

    def _said(self) -> str:
        log = self._folder / "logs" / f"{CONTROLLER}.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _complete(self) -> bool:
        """Whether the collector has ended with every row written; one that ended otherwise is brought back."""
        if CONTROLLER not in self._nursery.alive or (status := self._nursery.poll(CONTROLLER)) is None:
            return False
        self._statuses.append(status)
        output = self._folder / "rows.jsonl"
        rows = output.read_bytes().count(b"\n") if output.exists() else 0
        if status == 0 and rows == len(self._workload.tasks):
            return True
        self._come_back([CONTROLLER], self._plan.requeue)
        return False

    # ------------------------------------------------------------------------------------------- moments and faults

    def _has_sent(self) -> bool:
        log = self._folder / "run" / "dispatched.jsonl"
        return log.exists() and b"rollout_id" in log.read_bytes()

    def _now(self) -> float:
        """Seconds since the first row was sent, however long the processes took to come up."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    def _later(self, after_s: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + after_s, act))

    def _is_due(self, when: When) -> bool:
        match when:
            case At():
                return self._now() >= when.t_s
            case OnRow():
                return self._said().count(f" {when.event} {{") >= when.k
        raise NotHere(f"{when.words()}: real processes know no such moment")

    def _strike(self, fault: faults.Fault) -> None:
        self._struck[kind_of(fault)] += 1
        match fault:
            case faults.Crash():
                everyone = EVERYTHING in fault.nodes
                self._kill([*self._servers, CONTROLLER] if everyone else list(fault.nodes), fault.restart)
            case faults.CrashHost():
                self._kill(list(HOSTS[fault.host]), fault.restart)
            case faults.Pause():
                self._nursery_signal(fault.node, signal.SIGSTOP)
                self._later(fault.for_s, lambda: self._nursery_signal(fault.node, signal.SIGCONT))
            case faults.Signal():
                self._nursery_signal(CONTROLLER, signal.Signals[fault.name])
                if fault.again_s is not None:
                    self._later(fault.again_s, lambda: self._nursery_signal(CONTROLLER, signal.Signals[fault.name]))
            case faults.Partition():
                self._links.set(fault.src, fault.dst, "silent" if fault.silent else "refusing")
                self._later(fault.for_s, lambda: self._links.set(fault.src, fault.dst, "open"))
            case faults.HalfOpen():
                self._links.half_open(fault.one, fault.other)
                for pair in ((fault.one, fault.other), (fault.other, fault.one)):
                    if pair[1] in self._servers:
                        self._later(SILENCE_S, lambda pair=pair: self._links.cut(*pair))  # type: ignore[misc]
            case _:
                raise AssertionError(f"{fault.words()}: it was to be refused")

    def _arm(self, fault: faults.DiskError) -> None:
        first, _, second = fault.step.partition(".")
        which = {"nth": fault.k, "part": PARTS[first], "only": CALLS[second]}
        self._strike_file(fault.node).write_bytes(json.dumps({**which, "errno": fault.errno, "after": fault.after}))

    def _nursery_signal(self, name: str, number: signal.Signals) -> None:
        if name in self._nursery.alive:
            self._nursery.signal(name, number)

    def _kill(self, names: list[str], restart: Restart) -> None:
        alive = [name for name in names if name in self._nursery.alive]
        self._nursery.kill(*alive)
        self._come_back(alive, restart)

    def _come_back(self, names: list[str], restart: Restart) -> None:
        after_s = max(0.0, self._plan.chaos_s - self._now()) if restart.how == "healing" else restart.after_s

        def again() -> None:
            if restart.how == "whole":
                self._nursery.kill(*self._nursery.alive)
                for name in self._servers:
                    self._start(name)
                self._wait_ready()
                self._start(CONTROLLER)
            else:
                for name in names:
                    self._start(name)

        self._later(after_s, again)


def _refuse(plan: Plan) -> None:
    """Raises `NotHere` for whatever of the plan would not be carried out."""
    everyone = {*workload(plan.setup.workload).servers, CONTROLLER}
    if plan.schedule is not None or not (plan.setup.journalled and plan.setup.links) or plan.heal.how == "whole":
        raise NotHere("a schedule, other disks and a healing that restarts all are the simulator's")
    failing: set[str] = set()
    for fault in plan.faults:
        why = ""
        match fault:
            case faults.DiskError():
                first, _, second = fault.step.partition(".")
                if (
                    max(fault.call, fault.calls, fault.n) > 1
                    or first not in PARTS
                    or second not in CALLS
                    or fault.node in failing
                ):
                    why = "only one call of a file system, one for each process"
                failing.add(fault.node)
            case faults.Crash() if fault.silent or not everyone.issuperset({*fault.nodes} - {EVERYTHING}):
                why = "who dies here is one of these, and is heard of"
            case faults.Signal() if fault.group:
                why = "only the collector gets it"
            case faults.HalfOpen() if fault.for_s:
                why = "the link works again once it is given up"
            case _:
                pass
        if not isinstance(fault, faults.DiskError):
            _moment(fault)
        names = {getattr(fault, name, CONTROLLER) for name in ("node", "src", "dst", "one", "other")}
        if why or not names <= everyone:
            raise NotHere(f"{fault.words()}: {why or 'there is no such process'}")


def _moment(fault: faults.Fault) -> When:
    """When it strikes. Raises `NotHere`."""
    match fault:
        case faults.Crash() | faults.CrashHost() | faults.Pause() | faults.Signal() | faults.HalfOpen():
            when = fault.when
        case faults.Partition():
            when = At(fault.from_s)
        case _:
            raise NotHere(f"{fault.words()}: not on real processes")
    if not (isinstance(when, At) or (isinstance(when, OnRow) and when.event in PRINTED)):
        raise NotHere(f"{when.words()}: real processes know no such moment")
    return when


def _split(
    due: list[tuple[float, Callable[[], None]]], now: float
) -> tuple[list[tuple[float, Callable[[], None]]], list[tuple[float, Callable[[], None]]]]:
    return [each for each in due if each[0] <= now], [each for each in due if each[0] > now]


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
