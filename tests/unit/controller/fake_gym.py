"""A gym in a few lines, for tests of the controller: an environment behind an HTTP client, and its coordination.

An episode does `steps` steps; a step takes virtual or real `step_s` seconds and none begins while the gym is closed.
Checkpoints are real files of one environment participant. Everything that was asked is in `log`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from gym_ckpt.adapters.posix import ThreadDisk
from gym_ckpt.core.forgotten import Ended, Forgotten
from gym_ckpt.errors import (
    AlreadyServing,
    CoordinationError,
    NotCheckpointable,
    NotReady,
    ParticipantFailed,
    PeerLost,
    PeerUnreachable,
)
from gym_ckpt.ports import Disk, FileSystem, Headers, Ports, Reply
from gym_ckpt.storage.records import AbortFlag, ManifestHead, read_records, write_records
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire.messages import RUN_HEADER

ENVIRONMENT = "http://env:1"


class Committed:
    def __init__(self, episodes: Iterable[EpisodeId]) -> None:
        self.episodes = tuple(sorted(episodes))


class FakeGym:
    """Servers that live until `FakeGym` is thrown away; make another one for servers that were restarted."""

    def __init__(self, disk: Disk, *, steps: int = 3, step_s: float = 0.002) -> None:
        self.disk = disk
        self.steps = steps
        self.step_s = step_s
        self.log: list[tuple[str, Any]] = []
        self.done: dict[EpisodeId, int] = {}
        """Steps done by each episode that is live."""
        self.made: Counter[str] = Counter()
        """Steps made for each rollout, by any attempt."""
        self.runs: list[EpisodeId] = []
        self.retired: dict[str, int] = {}
        self.forgotten: list[str] = []
        self.late_copies = Forgotten()
        self.closed = False
        self.open = anyio.Event()
        self.open.set()
        self.serving = False
        self.away = False
        """No new episode reaches it."""
        self.died = False
        """Every call breaks off."""
        self.restarts: frozenset[EpisodeId] = frozenset()
        self.failing: dict[str, list[str]] = {}
        """rollout id → what its next attempts do instead: `fail`, `lose`, `hang`, `http500`, or `late`.

        A late one ends at once, and replies when the event `late` is set.
        """
        self.late = anyio.Event()
        self.faults: dict[str, list[Exception]] = {}
        """operation → errors that its next calls raise."""
        self.busy = anyio.Event()
        """Set once `busy_at` episodes have run."""
        self.busy_at = 0
        self.commits: list[tuple[tuple[EpisodeId, ...], bool]] = []
        self.on_prepared: Any = None
        self.on_forget: Callable[[], object] = lambda: None
        self.budgets: list[tuple[float, float | None]] = []
        """Of each prepare: for the whole checkpoint, and for the prepare."""
        self.saved: dict[str, int] = {}

    # Data plane.

    async def request(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        sent = json.loads(body)
        episode = EpisodeId(**sent["episode_id"])
        assert (method, url) == ("POST", f"{ENVIRONMENT}/ng-rollout/{episode.key}/run")
        assert timeout_s is None, "episodes have no time-out here"
        self.serving = True
        self.runs.append(episode)
        if self.late_copies.refuses(episode, dict(headers).get(RUN_HEADER), anyio.current_time()):
            return Reply(409, (), b'{"error":{"code":"stale_attempt","detail":"a late copy"}}')
        if self.busy_at and len(self.runs) >= self.busy_at:
            self.busy.set()
        plan = self.failing.get(episode.rollout_id, [])
        how = plan.pop(0) if plan else ""
        if how == "hang":
            self.done.setdefault(episode, 0)
            await anyio.sleep_forever()
        if how == "lose":
            raise PeerLost("reset")
        if self.away:
            raise PeerUnreachable("connection refused")
        if how == "runs":
            return Reply(409, (), b'{"error":{"code":"refused","detail":"the attempt runs or has run already"}}')
        if how == "http500":
            return Reply(500, (), b"oops")
        self.done.setdefault(episode, self.steps if how == "late" else 0)
        while self.done.get(episode, 0) < self.steps:
            await self.open.wait()
            if self.retired.get(episode.rollout_id, -1) >= episode.attempt:
                return Reply(409, (), b'{"error":{"code":"stale_attempt","detail":"retired"}}')
            await anyio.sleep(self.step_s)
            if self.died:
                raise PeerLost("reset")
            if self.closed or episode not in self.done:
                continue
            self.done[episode] += 1
            self.made[episode.rollout_id] += 1
        del self.done[episode]
        if how == "late":
            await self.late.wait()
        if how == "fail":
            return Reply(200, (), b'{"status":"failed","reason":"the tool broke"}')
        result = {"reward": float(sent["task"]["n"]), "messages": [sent["task"]["n"]], "nan": float("nan")}
        return Reply(200, (), json.dumps({"status": "finished", "result": result}).encode())

    def stream(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("collection streams nothing")

    # Coordination.

    def _ask(self, what: str, detail: Any = None) -> None:
        self.log.append((what, detail))
        if self.faults.get(what):
            raise self.faults[what].pop(0)

    def _close(self) -> None:
        self.closed, self.open = True, anyio.Event()

    def _reopen(self) -> None:
        self.closed = False
        self.open.set()

    def hurry(self, rest_s: float) -> None:
        pass

    def cut_off(self) -> str:
        return ""

    async def discover(self, say: Callable[[str], object] | None = None, budget_s: float = 30.0) -> None:
        self._ask("discover")

    async def anybody(self, budget_s: float) -> bool:
        try:
            self._ask("anybody")
        except NotCheckpointable:
            return False
        return True

    @asynccontextmanager
    async def prepared(
        self,
        checkpoint_id: str,
        budget_s: float,
        abandoned: Callable[[], bool] = lambda: False,
        prepare_s: float | None = None,
    ) -> AsyncIterator[FakeCheckpoint]:
        self._close()
        self.budgets.append((budget_s, prepare_s))
        opened = FakeCheckpoint(self, checkpoint_id)
        try:
            self._ask("prepare", checkpoint_id)
            await anyio.sleep(0)
            if self.on_prepared is not None:
                await self.on_prepared()
            yield opened
        finally:
            if not (opened.stays_closed or abandoned()):
                self.log.append(("resume", checkpoint_id))
                self._reopen()

    async def restore(
        self, restore_id: str, checkpoint_dir: str, scope: Iterable[EpisodeId], budget_s: float
    ) -> frozenset[EpisodeId]:
        wanted = set(scope)
        self._close()
        try:
            self._ask("restore", tuple(sorted(wanted)))
            if self.serving:
                raise ParticipantFailed("env", "restore", AlreadyServing("it has served"))
        except Exception:
            self.retired.update({episode.rollout_id: episode.attempt + 1 for episode in wanted})
            self._reopen()
            raise
        job = read_records(checkpoint_dir, Kind.ENVIRONMENT, "env", None, lambda _: True)
        _, records = await self.disk.run(job)
        installed = set()
        for record in records:
            episode = EpisodeId(record["rollout_id"], record["attempt"])
            if episode in wanted:
                self.done[episode.next()] = record["done"]
                self.saved = {"tokens": self.saved.get("tokens", 0) + record["done"]}
                installed.add(episode.next())
        return frozenset(installed)

    async def resume(self, checkpoint_id: str) -> None:
        self.log.append(("resume", checkpoint_id))
        self._reopen()

    async def retire(self, episodes: Iterable[EpisodeId]) -> None:
        wanted = tuple(sorted(episodes))
        assert not self.closed, "retire while a checkpoint is open (INV-93)"
        self._ask("retire", wanted)
        for episode in wanted:
            self.retired[episode.rollout_id] = max(episode.attempt, self.retired.get(episode.rollout_id, -1))
            self.done.pop(episode, None)

    async def forget(self, rollout_ids: Iterable[str], *, ended: Ended | None = None) -> None:
        wanted = sorted(rollout_ids)
        assert ended is not None, "a collection says whose rollouts it has forgotten, or late copies are begun (INV-38)"
        self._ask("forget", wanted)
        self.on_forget()
        self.forgotten += wanted
        self.late_copies.add(wanted, ended, anyio.current_time())

    def asked(self, what: str) -> list[Any]:
        return [detail for name, detail in self.log if name == what]


class FakeCheckpoint:
    def __init__(self, gym: FakeGym, checkpoint_id: str) -> None:
        self._gym = gym
        self._id = checkpoint_id
        self.restarts = gym.restarts
        self.live = frozenset(gym.done)
        self.stays_closed = False

    async def commit(self, checkpoint_dir: str, scope: Iterable[EpisodeId], *, stop: bool = False) -> Committed:
        gym = self._gym
        wanted = tuple(sorted(scope))
        gym.commits.append((wanted, stop))
        gym._ask("commit", wanted)
        held = [episode for episode in wanted if episode in gym.done]
        rows = [
            json.dumps({"rollout_id": e.rollout_id, "attempt": e.attempt, "done": gym.done[e]}).encode() for e in held
        ]
        head = ManifestHead(kind=Kind.ENVIRONMENT, instance="env", checkpoint_id=self._id)
        await gym.disk.run(write_records(checkpoint_dir, head, rows, AbortFlag(), "0123456789abcdef"))
        return Committed(held)

    def leave_closed(self) -> None:
        self.stays_closed = True


def not_ready(*episodes: EpisodeId) -> NotReady:
    return NotReady("env not ready", blockers=[episode.key for episode in episodes], blocker_count=len(episodes))


def broken(why: str) -> CoordinationError:
    return CoordinationError(why)


@dataclass
class FakeSignals:
    """Signals that a test sends with `send`."""

    waiting: list[str] = field(default_factory=list)
    listeners: int = 0
    """How many there have been."""
    arrived: anyio.Event = field(default_factory=anyio.Event)

    def send(self, name: str) -> None:
        self.waiting.append(name)
        self.arrived.set()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[str]]:
        self.listeners += 1
        yield self._names()

    async def _names(self) -> AsyncIterator[str]:
        while True:
            while self.waiting:
                yield self.waiting.pop(0)
            self.arrived = anyio.Event()
            await self.arrived.wait()


class FakeEntropy:
    def __init__(self, start: int) -> None:
        self._next = start

    def token(self, nbytes: int = 8) -> str:
        self._next += 1
        return f"{self._next:0{2 * nbytes}x}"

    def uniform(self, low: float, high: float) -> float:
        return low


class FakeClock:
    def wall(self) -> float:
        return 1_700_000_000.0


@dataclass
class Recorder:
    """Tracer, progress and probes of one run."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    at: dict[str, Any] = field(default_factory=dict)
    """probe → what to call there."""
    probed: Counter[str] = field(default_factory=Counter)

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    async def __call__(self, point: str) -> None:
        self.probed[point] += 1
        await anyio.sleep(0)
        if point in self.at:
            self.at[point]()

    def start(self, counts: Any) -> None: ...

    def update(self, counts: Any, rested_by: float = 0.0) -> None: ...

    def message(self, text: str, event: str = "") -> None:
        self.lines.append(text)

    def stop(self) -> None: ...

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


def make_ports(gym: FakeGym, signals: FakeSignals, recorder: Recorder, disk: Disk, start: int) -> Ports:
    return Ports(
        clock=FakeClock(),
        entropy=FakeEntropy(start),
        disk=disk,
        http=gym,
        control=gym,
        server=None,  # type: ignore[arg-type]  # a collector serves nothing
        signals=signals,
        tracer=recorder,
        probe=recorder,
        pid=4242,
    )


def thread_disk(files: FileSystem | None = None) -> ThreadDisk:
    return ThreadDisk(files)
