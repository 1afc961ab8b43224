"""The words of the gate's scenarios: a policy-model server, workers that answer on cue, and a caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from gym_ckpt.errors import TransportError
from gym_ckpt.participants.model import ModelParticipant
from gym_ckpt.ports import ASGIApp, Ports, Send
from gym_ckpt.runtime.asgi import Request, Route, Router, episode_context, tagged
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.install import install
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CALL_ID, CONTROL_PREFIX
from sim.world import World

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LEDGER = "/ledger"
TOKEN = "told"
GRACE_S = 15.0
USAGE = {"prompt_tokens": 5, "completion_tokens": 7}
ANSWER = json.dumps({"choices": [], "usage": USAGE})
LAST = b"data: " + ANSWER + b"\n\ndata: [DONE]\n\n"


@dataclass
class Worker:
    """Answers each call with the bytes put in by `say`; `end` ends the answer. `lost` counts callers that left.

    `silent`: not even the head of an answer comes before its first part. `seen`: path with query, headers and body of
    each call.
    """

    streaming: bool
    name: str = "worker"
    status: int = 200
    silent: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()
    calls: int = 0
    lost: int = 0
    sent: int = 0
    """Parts of the first call's answer that its connection has taken."""
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    parts: list[bytes | None] = field(default_factory=list)
    said: anyio.Event = field(default_factory=anyio.Event)

    def say(self, *parts: bytes) -> None:
        self.parts.extend(parts)
        self._wake()

    def end(self) -> None:
        self.parts.append(None)
        self._wake()

    def _wake(self) -> None:
        self.said.set()
        self.said = anyio.Event()

    async def main(self, ports: Ports) -> None:
        asked = [Route("GET", path, stream=self._serve) for path in ("/v1/models", "/v1/models/{id*}")]
        app = Router([*asked, *(Route("POST", path, stream=self._serve) for path in (CHAT, TEXT, RESPONSES))])
        await ports.server.serve(app, f"http://{self.name}:80", ready=lambda: None)

    async def _serve(self, request: Request, send: Send) -> None:
        body = await request.body()
        self.calls += 1
        given = {name.decode(): value.decode() for name, value in request.scope["headers"]}
        query = request.scope["query_string"].decode()
        self.seen.append((request.scope["path"] + (f"?{query}" if query else ""), given, body))
        ended = False
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                self.lost += not ended  # a response that is whole is a disconnect to ASGI as well
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            kind = b"text/event-stream" if self.streaming else b"application/json"
            head = [(b"content-type", kind), *self.headers]
            while self.silent and not self.parts:
                await self.said.wait()
            await send({"type": "http.response.start", "status": self.status, "headers": head})
            at, first = 0, self.calls == 1
            while True:
                while at == len(self.parts):
                    await self.said.wait()
                part, at = self.parts[at], at + 1
                ended = part is None
                await send({"type": "http.response.body", "body": part or b"", "more_body": part is not None})
                self.sent += first
                if part is None:
                    break
            tasks.cancel_scope.cancel()


@dataclass
class Caller:
    """One model call and what came of it. `body`: what has arrived so far."""

    episode: EpisodeId | None = field(default_factory=lambda: EpisodeId("r"))
    call_id: str = "call"
    path: str = CHAT
    method: str = "POST"
    sends: tuple[tuple[str, str], ...] = ()
    asks: bytes = b"{}"
    body: bytes = b""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    broken: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self, world: World) -> None:
        url = "http://policy:80"
        url = url + self.path if self.episode is None else tagged(url, self.episode, self.path)
        headers = ((CALL_ID, self.call_id), *self.sends)
        with self.scope:
            try:
                async with world.client().stream(self.method, url, headers=headers, body=self.asks) as reply:
                    self.status = reply.status
                    self.headers = dict(reply.headers)
                    async for chunk in reply.chunks():
                        self.body += chunk
                self.done = True
            except TransportError:
                self.broken = True

    def leave(self) -> None:
        self.scope.cancel()


class Gate:
    """The policy-model server under test; `participant` once it serves."""

    def __init__(self, workers: Sequence[str], *, captures: bool, checkpoints: bool) -> None:
        self.participant: ModelParticipant | None = None
        self._workers = workers
        self._captures = captures
        self._checkpoints = checkpoints

    async def main(self, ports: Ports) -> None:
        self.participant = ModelParticipant("policy", ports, [f"http://{name}:80" for name in self._workers])
        self.participant.gated = self._checkpoints
        if self._captures:
            self.participant.capture(LEDGER, None, ["policy"])
        await self.participant.open()
        app: ASGIApp = Router(self.participant.routes())
        async with Tasks() as tasks:
            if self._checkpoints:
                control = ControlPlane(self.participant, tasks, grace_s=GRACE_S)
                app = install(app, control, TOKEN, self.participant.control_routes())
            else:
                app = episode_context(app)
            await ports.server.serve(app, "http://policy:80", ready=lambda: None)

    @property
    def it(self) -> ModelParticipant:
        assert self.participant is not None, "the server is up"
        return self.participant

    async def rows(self, *episodes: EpisodeId) -> list[str]:
        """Ids of the delivered calls that a checkpoint of these episodes would hold."""
        records = await self.it.export(frozenset(episodes), stop=False)
        return [row["model_call_id"] for record in records for row in record.state["rows"]]


@dataclass
class Stage:
    """What a story plays with."""

    world: World
    gate: Gate
    workers: tuple[Worker, ...]
    tasks: anyio.abc.TaskGroup

    @property
    def worker(self) -> Worker:
        """The only one, or the first."""
        return self.workers[0]

    async def call(self, **of: object) -> Caller:
        """Make a call and let it get as far as it gets by itself."""
        caller = Caller(**of)  # type: ignore[arg-type]
        self.tasks.start_soon(caller.run, self.world)
        await settle()
        return caller

    async def control(self, operation: str, checkpoint_id: str = "c", budget_s: float = 20.0) -> tuple[int, Any]:
        """One control call: its status and what it says."""
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": 4e9, "budget_s": budget_s}
        url = "http://policy:80" + CONTROL_PREFIX + operation
        headers = (("authorization", f"Bearer {TOKEN}"),)
        reply = await self.world.client().request("POST", url, headers=headers, body=json.dumps(body))
        return reply.status, json.loads(reply.body)

    def seen(self, caller: Caller) -> tuple[bytes, bool]:
        """What has reached the caller by now, and whether that is all."""
        return caller.body, caller.done


async def settle() -> None:
    """Let everything that can happen without new input happen."""
    await anyio.sleep(0.1)


Story = Callable[[Stage], Awaitable[None]]


def play(
    story: Story,
    *,
    streaming: bool = False,
    workers: Sequence[str] = ("worker",),
    captures: bool = False,
    checkpoints: bool = True,
) -> None:
    """Tell one story in a calm world. Anything that goes wrong in a server fails it."""
    gate, engines = (
        Gate(workers, captures=captures, checkpoints=checkpoints),
        tuple(Worker(streaming, name) for name in workers),
    )
    world = World(1)
    world.disk.make_dirs(LEDGER)
    world.add_node("policy", gate.main)
    for engine in engines:
        world.add_node(engine.name, engine.main)

    async def script(world: World) -> None:
        for node in world.nodes.values():
            node.start()
        await settle()
        async with anyio.create_task_group() as tasks:
            await story(Stage(world, gate, engines, tasks))
            tasks.cancel_scope.cancel()

    world.run(script, horizon_s=1000).check()
