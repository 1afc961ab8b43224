"""One gym of the demo: its files in a folder of its own, and its eight processes.

The configuration is an ordinary file, and the processes are ordinary `gym-ckpt serve` and `gym-ckpt collect`: what the
demo shows is what a user gets. Knows nothing of what is compared.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gym_ckpt.adapters.host import free_ports
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.adapters.supervisor import Command, Supervisor, server_command
from gym_ckpt.errors import GymCkptError, TransportError
from gym_ckpt.gyms.inventory import ITEMS
from gym_ckpt.limits import DEMO_STATUS_TIMEOUT_S, DEMO_WAIT_S
from gym_ckpt.participants.ledger_routes import LEDGER_ROOT
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX

COLLECTOR: Final = "collector"
POLICIES: Final = ("policy", "policy2")
SERVERS: Final = ("environment", "agent", "inventory", "answer", *POLICIES, "worker")
TOOL_TURNS: Final = (3, 4, 5)
"""Turns with tool calls of each third of the rollouts; one more turn gives the answer."""
TOKENS: Final = (180, 200, 220)
TOKENS_PER_S: Final = 320.0
_TOKEN = "only-for-the-demo"

_CONFIG = """\
name = "{name}"
control_token = "{token}"

[checkpoint]

[servers.environment]
kind = "environment"
url = "http://127.0.0.1:{ports[0]}"
agent = "agent"
resources = "inventory"
verifier = "answer"

[servers.agent]
kind = "agent"
url = "http://127.0.0.1:{ports[1]}"
model = ["policy", "policy2"]

[servers.inventory]
kind = "resources"
url = "http://127.0.0.1:{ports[2]}"
gym = "inventory"

[servers.answer]
kind = "resources"
url = "http://127.0.0.1:{ports[3]}"
gym = "answer"

[servers.policy]
kind = "model"
url = "http://127.0.0.1:{ports[4]}"
workers = ["worker"]
ledger_dir = "ledger"

[servers.policy2]
kind = "model"
url = "http://127.0.0.1:{ports[5]}"
workers = ["worker"]
ledger_dir = "ledger"

[servers.worker]
kind = "inference"
url = "http://127.0.0.1:{ports[6]}"
tokens_per_s = {tokens_per_s}

[collect]
environment = "environment"
input = "../tasks.jsonl"
output = "rollouts.jsonl"
concurrency = {concurrency}
checkpoint_dir = "checkpoints"
"""


class DemoFailed(GymCkptError):
    """The demo could not be carried out; the text says what happened."""


def write_tasks(path: Path, rollouts: int) -> None:
    """The input of every gym of a demo: conversations of several turns with tool calls that have effects."""
    lines = []
    for number in range(rollouts):
        turns, tokens = TOOL_TURNS[number % len(TOOL_TURNS)], TOKENS[number // len(TOOL_TURNS) % len(TOKENS)]
        task = {
            "prompt": f"Put store {number} in order and report. [[turns={turns} tokens={tokens} calls=1]]",
            "inventory": dict.fromkeys(ITEMS, 300 + number % 7),
        }
        lines.append(json.dumps({"id": f"store-{number:03d}", "task": task}))
    path.write_bytes(b"\n".join(lines) + b"\n")


@dataclass(slots=True)
class DemoGym:
    """Files and processes. `lines`: everything that the collector printed since it was started last."""

    name: str
    folder: Path
    lines: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "gym.toml"

    @property
    def output(self) -> Path:
        return self.folder / "rollouts.jsonl"

    @property
    def run_dir(self) -> Path:
        return self.folder / "checkpoints"

    def prepare(self, rollouts: int, tokens_per_s: float = TOKENS_PER_S) -> None:
        """Create folder and configuration, on ports that are free now."""
        self.folder.mkdir(parents=True)
        (self.folder / "logs").mkdir()
        self.ports = free_ports(len(SERVERS))
        text = _CONFIG.format(
            name=self.name, token=_TOKEN, ports=self.ports, concurrency=min(rollouts, 2000), tokens_per_s=tokens_per_s
        )
        self.config.write_text(text, encoding="utf-8")

    def url(self, server: str) -> str:
        return f"http://127.0.0.1:{self.ports[SERVERS.index(server)]}"

    def log(self, server: str, line: str) -> None:
        """Keep a line that a process printed."""
        if server == COLLECTOR:
            self.lines.append(line)
        with (self.folder / "logs" / f"{server}.log").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    # Processes.

    async def start_servers(self, servers: Supervisor) -> None:
        """Start the seven servers and wait until they serve. Raises `ServerDied`."""
        for name in SERVERS:
            await servers.start(name, server_command(str(self.config), name, self.url(name)))
        await servers.wait_ready()

    async def start_collector(self, servers: Supervisor, *, resume: bool) -> None:
        self.lines.clear()
        argv = (
            sys.executable,
            "-m",
            "gym_ckpt",
            "collect",
            str(self.config),
            "--json",
            "--resume" if resume else "--no-resume",
        )
        await servers.start(COLLECTOR, Command(argv))

    async def finish_collector(self, servers: Supervisor) -> dict[str, Any]:
        """Wait for the collector's end; its summary. Raises `DemoFailed` when it did not succeed."""
        status = await servers.wait(COLLECTOR)
        if status != 0:
            raise DemoFailed(f"the collector of the {self.name} ended with status {status}: {self.last_words()}")
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """The JSON object that the collector printed. Raises `DemoFailed`."""
        for line in reversed(self.lines):
            if line.startswith("{"):
                found = json.loads(line.encode())
                assert isinstance(found, dict), "a line that starts with a brace is an object"
                return found
        raise DemoFailed(f"the collector of the {self.name} printed no summary: {self.last_words()}")

    def traced(self, event: str) -> dict[str, Any] | None:
        """Fields of the collector's latest trace event of this name, or None while there is none."""
        for line in reversed(self.lines):
            _, found, fields = line.partition(f" {event} {{")
            if found:
                value: dict[str, Any] = json.loads(b"{" + fields.encode())
                return value
        return None

    def last_words(self) -> str:
        """The collector's last lines, on one."""
        return " | ".join(self.lines[-4:]) or "it printed nothing"

    def ask_for_checkpoint(self, servers: Supervisor) -> None:
        servers.signal(COLLECTOR, signal.SIGUSR1)

    # What it says of itself.

    async def status(self, http: HttpxClient, server: str) -> dict[str, Any]:
        """A participant's control status. Raises `DemoFailed`."""
        headers = (("authorization", f"Bearer {_TOKEN}"),)
        return await self._get(http, server, f"{CONTROL_PREFIX}status", headers)

    async def worker_statistics(self, http: HttpxClient) -> dict[str, Any]:
        """Calls and tokens of the inference worker since it was started. Raises `DemoFailed`."""
        return await self._get(http, "worker", "/health", ())

    async def verified(self, http: HttpxClient) -> list[dict[str, Any]]:
        """What a policy server says of the lineage of every output row. Raises `DemoFailed`."""
        wanted = [{"rollout_id": row["rollout_id"], "attempt": row["attempt"]} for row in self.rows()]
        headers = (("authorization", f"Bearer {_TOKEN}"), ("content-type", "application/json"))
        body = json.dumps({"episode_ids": wanted})
        url = self.url("policy") + LEDGER_ROOT + "verify"
        try:
            reply = await http.request("POST", url, headers=headers, body=body, timeout_s=DEMO_WAIT_S)
        except TransportError as error:
            raise DemoFailed(f"the policy server of the {self.name} does not verify its ledger: {error}") from None
        if reply.status != 200:
            raise DemoFailed(f"the policy server of the {self.name} answered {reply.status} when asked to verify")
        found: list[dict[str, Any]] = json.loads(reply.body)["lineages"]
        return found

    async def _get(
        self, http: HttpxClient, server: str, path: str, headers: tuple[tuple[str, str], ...]
    ) -> dict[str, Any]:
        try:
            reply = await http.request("GET", self.url(server) + path, headers=headers, timeout_s=DEMO_STATUS_TIMEOUT_S)
        except TransportError as error:
            raise DemoFailed(f"{server} of the {self.name} does not answer: {error}") from None
        if reply.status != 200:
            raise DemoFailed(f"{server} of the {self.name} answered {reply.status} to {path}")
        value: dict[str, Any] = json.loads(reply.body)
        return value

    def rows(self) -> list[dict[str, Any]]:
        """The output as it is now; a line that is being written is not there yet."""
        return list(_lines(self.output))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)
