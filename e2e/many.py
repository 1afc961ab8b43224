"""A gym that a test kills again and again: the demo's, out of a nursery, with episodes of very different lengths."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from e2e.nursery import POLL_S, WAIT_S, Nursery
from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.cli.config import load
from gym_ckpt.cli.demo_gym import COLLECTOR, SERVERS, DemoGym
from gym_ckpt.gyms.inventory import ITEMS
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.pointer import read_pointer
from gym_ckpt.storage.verify import verify_checkpoint
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX

TURNS = (1, 1, 2, 1, 6, 2, 1, 14)
"""Of each rollout: most are short, and one outlasts many lives of the gym."""
TOKENS_PER_S = 400.0
SLOW_TOKENS_PER_S = 0.5
"""No rollout ends soon, so that a test can do many things meanwhile."""


def write_tasks(path: Path, turns_of: tuple[int, ...]) -> None:
    lines = []
    for number, turns in enumerate(turns_of):
        prompt = f"Put store {number} in order. [[turns={turns} tokens=60 calls=1]]"
        task = {"prompt": prompt, "inventory": dict.fromkeys(ITEMS, 300 + number)}
        lines.append(json.dumps({"id": f"store-{number}", "task": task}))
    path.write_bytes(b"\n".join(lines) + b"\n")


class Many:
    """One gym in `folder`, with a rollout for each of `turns`, whose inference worker writes `tokens_per_s`."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        *,
        collect: str = "",
        turns: tuple[int, ...] = TURNS,
        tokens_per_s: float = TOKENS_PER_S,
    ) -> None:
        self.nursery = nursery
        self.tokens_per_s = tokens_per_s
        self.statuses: list[int] = []
        self.pairs: Counter[tuple[str, str]] = Counter()
        """Which calls have met which errors, how often."""
        self.gym = DemoGym("gym", folder / "gym")
        write_tasks(folder / "tasks.jsonl", turns)
        self.gym.prepare(len(turns), tokens_per_s)
        text = self.gym.config.read_text(encoding="utf-8") + collect
        agent = 'kind = "agent"\n'
        self.gym.config.write_text(text.replace(agent, f"{agent}max_steps = {max(turns) + 1}\n"), encoding="utf-8")

    @property
    def log(self) -> Path:
        return self.gym.folder / "logs" / "collector.log"

    def said(self) -> str:
        """Everything that collectors have said so far."""
        return self.log.read_text() if self.log.exists() else ""

    def strike(self, name: str) -> Path:
        """The error that is to meet the collector's disk, or that of the server of this name."""
        return self.gym.folder / f"{name}.strike"

    def arm(self, name: str, nth: int, error: str, *, after: bool, part: str = "", call: str | None = None) -> None:
        """The next process of this name, or the one that runs, meets this error at its `nth` call."""
        strike = {"nth": nth, "errno": error, "after": after, "part": part, "only": call}
        self.strike(name).with_suffix(".done").unlink(missing_ok=True)
        self.strike(name).with_suffix(".new").write_bytes(json.dumps(strike))
        self.strike(name).with_suffix(".new").rename(self.strike(name))

    def struck(self, name: str) -> bool:
        """Whether it has; if not, it does not any more."""
        self.strike(name).unlink(missing_ok=True)
        done = self.strike(name).with_suffix(".done")
        if not done.exists():
            return False
        what = json.loads(done.read_bytes())
        self.pairs[what["call"], what["errno"]] += 1
        return True

    def start_servers(self) -> None:
        for name in SERVERS:
            self.start_server(name)

    def start_server(self, name: str) -> None:
        words = ["serve", str(self.gym.config), "--server", name]
        self.nursery.start(name, words, self.gym.folder / "logs" / f"{name}.log", self.strike(name))

    def wait_ready(self) -> None:
        for number, name in enumerate(SERVERS):
            self.until(lambda port=self.gym.ports[number]: answers(port), f"{name} to be ready")  # type: ignore[misc]

    def start_collector(self, *, resume: bool = True) -> None:
        words = ["collect", str(self.gym.config), "--json", "--resume" if resume else "--no-resume"]
        self.nursery.start(COLLECTOR, words, self.log, self.strike(COLLECTOR))

    def ended(self) -> bool:
        """Whether the collector has; its exit status is the last of `statuses` then."""
        if COLLECTOR in self.nursery.alive:
            status = self.nursery.poll(COLLECTOR)
            if status is not None:
                self.statuses.append(status)
        return COLLECTOR not in self.nursery.alive

    def in_flight(self) -> int:
        """How many attempts the dispatch log names."""
        log = self.gym.run_dir / "dispatched.jsonl"
        return log.read_bytes().count(b"rollout_id") if log.exists() else 0

    def idle(self) -> bool:
        """Whether the policy model is in no checkpoint: then the collector has done all that belongs to the last."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gym.ports[SERVERS.index("policy")], timeout=WAIT_S)
        try:
            token = load(self.gym.config).settings.control_token
            connection.request("GET", f"{CONTROL_PREFIX}status", headers={"authorization": f"Bearer {token}"})
            return bool(json.loads(connection.getresponse().read())["phase"] == "idle")
        finally:
            connection.close()

    def speed_up(self) -> None:
        """A slow gym is as fast as another from its next start on."""
        text = self.gym.config.read_text()
        self.gym.config.write_text(text.replace(f"= {self.tokens_per_s}", f"= {TOKENS_PER_S}"))

    def check_latest(self) -> None:
        """The checkpoint in force is whole; an older one may be half removed at any moment."""
        fs = PosixFileSystem()
        pointer = read_pointer(fs, str(self.gym.run_dir))
        assert pointer is not None, "there is one in force"
        report = finish(fs, verify_checkpoint(layout.checkpoint_dir(str(self.gym.run_dir), pointer.checkpoint_id)))
        assert report.sound, report.problems

    def kill_all(self) -> None:
        self.nursery.kill(*self.nursery.alive)

    def until_published_again(self) -> None:
        """Until there is one checkpoint more, or the collector has ended."""
        before = self.said().count("collector.published")
        self.until(lambda: self.ended() or self.said().count("collector.published") > before, "a checkpoint")

    def until(self, true: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, f"waited in vain for {what}; the collector said last: {self.said()[-2000:]}"
            time.sleep(POLL_S)


def answers(port: int) -> bool:
    """Whether a server's health route does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
