"""A whole gym in a world: the shipped servers, an inference worker and a collecting controller, each a node.

Everything in a node is production code: `run_server` for servers, `collect` for the controller. This file only names
the nodes, lays out the shared file system, and brings up again what has died, as a batch system would.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import anyio

from faults.plan import App
from gym_ckpt.controller.calls import ControlCalls, each
from gym_ckpt.controller.collect import Outcome, collect
from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.core.collection import Counts
from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import DISCOVERY_BUDGET_S
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.serve import run_server
from gym_ckpt.settings import (
    AgentSettings,
    CheckpointSettings,
    CollectSettings,
    EnvironmentSettings,
    GymSettings,
    InferenceSettings,
    ModelSettings,
    ResourcesSettings,
)
from gym_ckpt.wire.messages import CALL_ID, Status
from sim import gyms
from sim.node import Main
from sim.own import keys_of
from sim.workload import CONTROLLER, SECOND_POLICY, SECOND_WORKER, STEP_TOKENS, Workload
from sim.world import World

TOKEN = "simulated"
HOSTS = {
    "head": ("controller", "environment"),
    "cpu": ("agent", "inventory", "verifier"),
    "gpu": ("policy", SECOND_POLICY, "worker", SECOND_WORKER),
}
"""What runs where; the nodes of a host share its clock."""
HOST_OF = {name: host for host, names in HOSTS.items() for name in names}
RUN_DIR, INPUT, OUTPUT, LEDGER = "/run", "/data/tasks.jsonl", "/data/rows.jsonl", "/ledger"
FOREIGN = tuple(f"{RUN_DIR}/{name}" for name in ("notes.txt", "notes.tmp", "LATEST.bak", "records-0.jsonl"))
"""Files of somebody else in the run's directory; some look like the run's own."""
MAX_ATTEMPTS = 1000
"""No rollout may fail for good because faults struck it often: the runs would then differ rightly (INV-1)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the controller of a run is set up. Seconds of virtual time. `apps`: servers that are an author's own."""

    checkpoint: bool = True
    every_s: float | None = None
    timeout_s: float = 20.0
    keep: int = 2
    grace_s: float = 15.0
    one_sigterm_s: float = 0.0
    apps: tuple[App, ...] = ()


class Quiet:
    """A `Progress` that nobody watches; its messages go to the trace."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def start(self, counts: Counts) -> None: ...

    def update(self, counts: Counts, rested_by: float = 0.0) -> None: ...

    def message(self, text: str, event: str = "") -> None:
        self._ports.tracer.emit("collector.message", text=text)

    def stop(self) -> None: ...


def settings_of(workload: Workload, options: Options) -> GymSettings:
    """The configuration of the simulated gym."""
    urls = {name: f"http://{name}:80" for name in workload.servers}
    ledger_dir = LEDGER if workload.captured else None
    inventory = gyms.RESTARTING if workload.restarts else gyms.INVENTORY
    models = workload.policies
    own = {app.server: keys_of(app) for app in options.apps}  # their imports happen once, and not under a guard
    return GymSettings(
        control_token=TOKEN,
        checkpoint=CheckpointSettings(grace_s=options.grace_s) if options.checkpoint else None,
        servers={
            "environment": EnvironmentSettings(
                url=urls["environment"],
                agent="agent",
                resources="inventory",
                verifier="verifier" if workload.judged else None,
            ),
            "agent": AgentSettings(url=urls["agent"], model=models, stream=workload.stream),
            "inventory": ResourcesSettings(url=urls["inventory"], **{"gym": inventory, **own.get("inventory", {})}),
            "verifier": ResourcesSettings(url=urls["verifier"], **{"gym": gyms.ANSWER, **own.get("verifier", {})}),
            **{name: ModelSettings(url=urls[name], workers=workload.workers, ledger_dir=ledger_dir) for name in models},
            **{
                name: InferenceSettings(url=urls[name], tokens_per_s=workload.tokens_per_s, step_tokens=STEP_TOKENS)
                for name in workload.workers
            },
        },
    )


class Cluster:
    """The nodes of one gym. `outcome` and `refusal`: how the controller's last life ended, if it did by itself."""

    def __init__(self, world: World, workload: Workload, options: Options) -> None:
        self.world = world
        self.workload = workload
        self.options = options
        self.gym = settings_of(workload, options)
        self.outcome: Outcome | None = None
        self.refusal: str | None = None
        self.lives = 0
        """Lives of the controller so far."""
        world.network.shown = {CALL_ID: "call"}  # whose call of the model a message is, for the pictures
        self.servers = workload.servers
        self._modules = {app.server: app.factory.partition(":")[0] for app in options.apps}
        for name in self.servers:
            world.add_node(name, self._server(name), host=HOST_OF[name])
        world.add_node(CONTROLLER, self._controller, host=HOST_OF[CONTROLLER])
        self._lay_out()

    def _lay_out(self) -> None:
        disk = self.world.disk
        for path in ("/data", RUN_DIR, *((LEDGER,) if self.workload.captured else ())):
            disk.make_dirs(path)
        files = disk.view("operator")
        tasks = files.create(INPUT)
        tasks.write(self.workload.input())
        tasks.fsync()
        tasks.close()
        files.fsync_dir("/data")
        for path in FOREIGN:
            file = files.create(path)
            file.fsync()
            file.close()
        files.fsync_dir(RUN_DIR)

    def _server(self, name: str) -> Main:
        async def main(ports: Ports) -> None:
            if name in self._modules:  # what an author keeps in its globals goes with the process
                sys.modules.pop(self._modules[name], None)
            await run_server(self.gym, name, ports, ready=lambda: ports.tracer.emit("server.ready"))

        return main

    def playing(self) -> AbstractContextManager[None]:
        """To be entered while the world runs."""
        if not self.options.apps:
            return nullcontext()
        from sim.libraries import in_world  # httpx is imported by those who need it

        return in_world(self.world)

    async def _controller(self, ports: Ports) -> None:
        self.outcome, self.refusal = None, None
        self.lives += 1
        try:
            self.outcome = await self.collect(ports, resume=self.lives > 1)
        except (GymCkptError, OSError) as error:
            # As the command line does: one line, and a status other than 0.
            self.refusal = f"{type(error).__name__}: {error}"
            ports.tracer.emit("collector.refused", why=self.refusal)

    async def collect(self, ports: Ports, *, resume: bool) -> Outcome:
        """What the controller's process does, and what another one started on the same directory would do."""
        options = self.options
        settings = CollectSettings(
            environment="environment",
            input=INPUT,
            output=OUTPUT,
            concurrency=self.workload.concurrency,
            max_attempts=MAX_ATTEMPTS,
            checkpoint_dir=RUN_DIR if options.checkpoint else None,
            checkpoint_every_s=options.every_s if options.checkpoint else None,
            checkpoint_timeout_s=options.timeout_s,
            keep_checkpoints=options.keep,
            one_sigterm_s=options.one_sigterm_s,
            servers_wait_s=DISCOVERY_BUDGET_S,
            resume_from_cache=options.checkpoint and resume,
        )
        coordination = self.coordination(ports) if options.checkpoint else None
        return await collect(settings, coordination, self.gym.url("environment"), ports, Quiet(ports))

    def coordination(self, ports: Ports) -> Coordination:
        """Coordination as a controller with these ports would have it."""
        return Coordination({name: server.url for name, server in self.gym.servers.items()}, TOKEN, ports)

    @property
    def complete(self) -> bool:
        """Every row has ended and the controller has said so."""
        return self.outcome is not None and self.outcome.exit_code == 0 and self.outcome.summary.complete

    def start(self) -> None:
        """Bring up whatever is down."""
        for node in self.world.nodes.values():
            if not node.alive:
                node.start()

    def crash(self) -> None:
        """Everything dies at this instant."""
        for node in self.world.nodes.values():
            node.crash()

    async def statuses(self, ports: Ports) -> dict[str, Status]:
        """What every participant says of itself. Raises `ParticipantFailed`."""
        calls, until_s = ControlCalls(TOKEN, ports), anyio.current_time() + DISCOVERY_BUDGET_S
        names = list(self.gym.servers)
        said = await each(names, lambda name: calls.status(name, self.gym.servers[name].url, until_s))
        return {name: status for name, status in zip(names, said, strict=True) if status is not None}


Waiting = Callable[[], bool]


async def until(world: World, met: Waiting, limit_s: float, step_s: float = 0.25) -> bool:
    """Let virtual time pass until `met()`; False when it does not come to that within `limit_s`."""
    end = world.now + limit_s
    while not met():
        if world.now >= end:
            return False
        await world.sleep(step_s)
    return True
