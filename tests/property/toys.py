"""The smallest participant there is, and a world of several of them: for properties of the control plane alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import anyio

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.asgi import Answer, Request, Route, Router, answer
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.install import install
from gym_ckpt.runtime.participant import Participant, Record, up_to
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.world import World

TOKEN = "toy"
URL = "http://model:80"
"""Where a toy listens that is alone in its world."""


class Toy(Participant):
    """One number per episode; `POST /add` adds one, taking a second."""

    kind: ClassVar[Kind] = Kind.MODEL

    def __init__(self, instance: str, ports: Ports) -> None:
        super().__init__(instance, ports)
        self.numbers: dict[EpisodeId, int] = {}

    async def add(self, request: Request) -> Answer:
        episode = request.required_episode()
        async with self.admission.enter(episode) as work:
            await work.begin()
            await anyio.sleep(1)
            self.numbers[episode] = self.numbers.get(episode, 0) + 1
            return answer({"number": self.numbers[episode]})

    def live(self) -> Iterable[EpisodeId]:
        return self.numbers

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [Record(episode, self.numbers[episode]) for episode in sorted(scope) if episode in self.numbers]

    async def check(self, records: Sequence[Record]) -> None:
        for record in records:
            if not isinstance(record.state, int):
                raise InvalidCheckpointState(f"{record.episode.key}: not a number")

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:
            await anyio.sleep(0.01)
            self.numbers[record.episode] = record.state

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self.numbers):
            del self.numbers[episode]


class ToyEnvironment(Toy):
    """The same as an environment: every continued episode needs one owner of that kind."""

    kind: ClassVar[Kind] = Kind.ENVIRONMENT


async def serve(toy: Toy, url: str, grace_s: float = 10.0) -> None:
    """A toy's server, until cancelled."""
    async with anyio.create_task_group() as tasks:
        control = ControlPlane(toy, tasks, grace_s=grace_s)
        app = install(Router((Route("POST", "/add", toy.add),)), control, TOKEN)
        await toy.ports.server.serve(app, url, ready=lambda: None)
        tasks.cancel_scope.cancel()


async def control(world: World, operation: str, checkpoint_id: str = "", **more: Any) -> tuple[int, Any]:
    """One control call of the toy at `URL`, with a second for it unless told otherwise: status, and what it says."""
    body: dict[str, Any] = {"checkpoint_id": checkpoint_id} if checkpoint_id else {}
    body |= {"deadline_ts": 4e9, "budget_s": 1.0, **more}
    method, data = ("GET", b"") if operation == "status" else ("POST", json.dumps(body))
    headers = (("authorization", f"Bearer {TOKEN}"),)
    reply = await world.client().request(method, URL + CONTROL_PREFIX + operation, headers=headers, body=data)
    return reply.status, json.loads(reply.body)
