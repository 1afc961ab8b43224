"""What a simulated gym is asked to do: a handful of rollouts, drawn from a small number of workloads.

Few different ones on purpose: the undisturbed run that each must equal (INV-1) is played once per process and kept.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from faults.endurance import HEAVY, HEAVY_WORKLOADS
from gym_ckpt.wire import json
from sim.streams import stream

WORKLOADS = 13
"""How many different ones there are, besides those whose episodes differ much in length (`faults.endurance`)."""
RESTARTING = 12
"""The one whose sessions cannot be captured."""
TOKENS_PER_S = 130.0
"""So slow that a generation of few tokens lasts as long as one of hundreds elsewhere: time costs nothing here, and each
token is written, hashed and read a dozen times. The longest (120 of text, some 40 of a tool call) must end within the
shortest time that `faults.draw` gives a checkpoint: a stream that has begun cannot be cut, and would block each one."""
STEP_TOKENS = 45
CONTROLLER = "controller"
"""The node that collects."""
SERVERS = ("environment", "agent", "inventory", "verifier", "policy", "worker")
SECOND_POLICY = "policy2"
"""Where tokens are captured: another policy-model server, which shares the ledger."""
SECOND_WORKER = "worker2"
"""Where rollouts are spread over two inference workers, and each is the other's refuge."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`tasks`: id → prompt. `tokens_per_s`: of one generation. `captured`: two policy servers share
    a ledger. `spread`: one policy server has two workers. `restarts`: no session can be captured."""

    number: int
    tasks: tuple[tuple[str, str], ...]
    stream: bool
    judged: bool
    tokens_per_s: float
    concurrency: int
    captured: bool = False
    spread: bool = False
    restarts: bool = False

    @property
    def policies(self) -> tuple[str, ...]:
        """Its policy-model servers."""
        return ("policy", SECOND_POLICY) if self.captured else ("policy",)

    @property
    def workers(self) -> tuple[str, ...]:
        """Its inference workers, which take no part in checkpoints."""
        return ("worker", SECOND_WORKER) if self.spread else ("worker",)

    @property
    def servers(self) -> tuple[str, ...]:
        """The nodes of its cluster, without the controller."""
        return (*SERVERS, *self.policies[1:], *self.workers[1:])

    def input(self) -> bytes:
        """The input file of the collection run."""
        lines = [json.dumps({"id": task_id, "task": {"prompt": prompt}}) for task_id, prompt in self.tasks]
        return b"".join(line + b"\n" for line in lines)


def workload(number: int, rollouts: int = 8) -> Workload:
    """The workload of this number (taken modulo `WORKLOADS`; from `HEAVY` on, one with a heavy tail)."""
    heavy = number >= HEAVY
    number = HEAVY + number % HEAVY_WORKLOADS if heavy else number % WORKLOADS
    prompt = _heavy_prompt if heavy else _prompt
    chance = stream(number, "workload")
    return Workload(
        number=number,
        tasks=tuple((task_id, prompt(chance, task_id)) for task_id in _ids(rollouts)),
        stream=number % 2 == 1,
        judged=number % 3 != 0,
        tokens_per_s=TOKENS_PER_S,
        concurrency=rollouts if number % 4 else max(2, rollouts // 2),
        captured=number % 4 in (1, 2),
        spread=number % 4 == 3,
        restarts=number == RESTARTING,
    )


def _ids(count: int) -> list[str]:
    """Look-alikes among them: whoever mixes up `r`, `r-1`, `r.b` and `r-a2x` is found out."""
    special = ["r", "r-1", "r.b", "r-a2x"]
    return (special + [f"t{index}" for index in range(count)])[:count]


def _prompt(chance: random.Random, task_id: str) -> str:
    turns = chance.choice((0, 1, 1, 1, 2, 2))
    tokens = chance.choice((10, 30, 60, 120))
    return f"{task_id} {chance.getrandbits(32):08x} [[turns={turns} tokens={tokens}]]"


def _heavy_prompt(chance: random.Random, task_id: str) -> str:
    """Most are over in a second or two; one in a few takes ten times as long, as a Pareto distribution has it."""
    turns = min(18, int(chance.paretovariate(0.8)) - 1)
    tokens = chance.choice((60, 90, 120))
    return f"{task_id} {chance.getrandbits(32):08x} [[turns={turns} tokens={tokens}]]"
