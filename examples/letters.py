"""A resources server of your own: a Starlette application whose episodes write letters, with a language model's help.

`gym-ckpt serve` runs it where a configuration says `app = "examples.letters:build"`, and a node of the simulator
where a plan or `--app inventory=examples.letters:build` does: `docs/simulator/your-own-server.md`. It keeps a letter
per attempt, exports and installs it, and asks the gym's inference server by a plain `httpx.AsyncClient`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gym_ckpt import EpisodeId, Kind, Participant, Ports, Record, Serving, up_to
from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.ports import ASGIApp

TOOLS = [
    {"type": "function", "function": {
        "name": "write", "description": "Write one line.",
        "parameters": {"type": "object", "required": ["line"], "properties": {"line": {"type": "string"}}}}},
    {"type": "function", "function": {
        "name": "go_on", "description": "Have a colleague write the next line.",
        "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip


@dataclass
class Letter:
    """`done`: replies of this attempt's calls by their key; the same call may come twice, at the same time even."""

    lines: list[str]
    done: dict[str, Any] = field(default_factory=dict)
    busy: anyio.Lock = field(default_factory=anyio.Lock)


class Letters(Participant):
    """A letter per attempt: what a checkpoint holds of this server."""

    kind = Kind.RESOURCES

    def __init__(self, instance: str, ports: Ports) -> None:
        super().__init__(instance, ports)
        self.letters: dict[EpisodeId, Letter] = {}

    def live(self) -> Iterable[EpisodeId]:
        return self.letters

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [Record(each, list(self.letters[each].lines)) for each in sorted(scope) if each in self.letters]

    async def check(self, records: Sequence[Record]) -> None:
        for record in records:
            if not isinstance(record.state, list) or not all(isinstance(line, str) for line in record.state):
                raise InvalidCheckpointState(f"{record.episode.key}: a letter is a list of lines")

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:  # record.episode is the attempt that continues
            self.letters[record.episode] = Letter(list(record.state))

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for gone in up_to(episodes, self.letters):
            del self.letters[gone]


class Desk:
    """The routes of a resources server (docs/servers.md)."""

    def __init__(self, participant: Letters, model: httpx.AsyncClient) -> None:
        self.participant = participant
        self.model = model

    async def seed(self, request: Request) -> Response:
        self.participant.letters.setdefault(request.scope["gym_ckpt.episode"], Letter([]))
        # Every call says whose it is, so the cookie need not; but the caller wants one.
        headers = {"set-cookie": "ng_session=letter; Path=/; HttpOnly", "x-ng-checkpoint-verify": "replay"}
        return answer({"tools": TOOLS}, headers=headers)

    async def tools(self, request: Request) -> Response:
        return answer(TOOLS)

    async def tool(self, request: Request) -> Response:
        letter = self.participant.letters.get(request.scope["gym_ckpt.episode"])
        if letter is None:
            return answer({"error": "this attempt has no letter"}, 404)
        key, arguments = request.headers.get("x-ng-idempotency-key", ""), await request.json()
        async with letter.busy:
            if key not in letter.done:
                try:
                    line = arguments["line"] if request.path_params["tool"] == "write" else await self.next_line(letter)
                except httpx.HTTPError as error:  # nothing was done: the agent calls again
                    return answer({"error": f"the colleague does not answer: {error}"}, 503)
                letter.lines.append(line)
                letter.done[key] = {"line": line, "lines": len(letter.lines)}
            return answer(letter.done[key])

    async def next_line(self, letter: Letter) -> str:
        """Raises `httpx.HTTPError`."""
        asked = [{"role": "user", "content": "Go on: " + " / ".join(letter.lines)}]
        body = json.dumps({"messages": asked, "max_tokens": 12})
        reply = await self.model.post("/v1/chat/completions", content=body)
        said: str = reply.raise_for_status().json()["choices"][0]["message"]["content"]
        return said

    async def verify(self, request: Request) -> Response:
        letter = self.participant.letters.get(request.scope["gym_ckpt.episode"])
        if letter is None:
            return answer({"error": "this attempt has no letter"}, 404)
        return answer({"reward": min(1.0, len(letter.lines) / 4), "effects": letter.lines})

    async def close(self, request: Request) -> Response:
        self.participant.letters.pop(request.scope["gym_ckpt.episode"], None)
        return answer({"closed": True})

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/seed_session", self.seed, methods=["POST"]),
                Route("/verify", self.verify, methods=["POST"]),
                Route("/close_session", self.close, methods=["POST"]),
                Route("/tools", self.tools),
                Route("/{tool}", self.tool, methods=["POST"]),
            ]
        )


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value), status, headers, "application/json")


async def build(serving: Serving) -> ASGIApp:
    """One process of it, in production and in the simulator."""
    model = await serving.at_end.enter_async_context(httpx.AsyncClient(base_url=serving.url("worker"), timeout=5.0))
    participant = Letters(serving.name, serving.ports)
    return serving.controlled(Desk(participant, model).app(), participant)
