"""`examples.letters` as an author might have got it wrong, for the campaign to find out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response

from examples.letters import Desk, Letter, Letters
from examples.safe import SafeInAWorld
from gym_ckpt import EpisodeId, Gym, Record, Serving
from gym_ckpt.gyms import StateMode
from gym_ckpt.ports import ASGIApp, Receive, Scope, Send


class Forgetful(Letters):
    """Its export leaves out the line that was written last."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [Record(each.episode, each.state[:-1]) for each in await super().export(scope, stop)]


class Repeating(Desk):
    """It does not look at the key of a call: one whose reply was lost has its effect again."""

    async def tool(self, request: Request) -> Response:
        letter = self.participant.letters.get(request.scope["gym_ckpt.episode"])
        if letter is not None:
            letter.done.clear()
        return await super().tool(request)


async def forgetful(serving: Serving) -> ASGIApp:
    """The first."""
    participant = Forgetful(serving.name, serving.ports)
    return serving.controlled(Desk(participant, model_of(serving)).app(), participant)


async def repeating(serving: Serving) -> ASGIApp:
    """The second."""
    participant = Letters(serving.name, serving.ports)
    return serving.controlled(Repeating(participant, model_of(serving)).app(), participant)


def model_of(serving: Serving) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=serving.url("worker"), timeout=5.0)


class Hasty(Desk):
    """Careless with a stream only, which harms nobody: it leaves once it has the first words."""

    async def next_line(self, letter: Letter) -> str:
        asked = {"messages": [{"role": "user", "content": " / ".join(["Go on:", *letter.lines])}], "stream": True}
        async with self.model.stream("POST", "/v1/chat/completions", content=json.dumps(asked)) as reply:
            reply.raise_for_status()
            async for event in reply.aiter_lines():
                if event.startswith("data:") and (said := json.loads(event[5:])["choices"][0]["delta"].get("content")):
                    return str(said)
        raise httpx.RemoteProtocolError("a stream without a word")


LETTERS: dict[EpisodeId, Letter] = {}
"""What no server may have: two processes of one interpreter would share it."""


class Clocked(Desk):
    """It asks the machine what time it is."""

    async def seed(self, request: Request) -> Response:
        time.time()
        return await super().seed(request)


async def in_globals(serving: Serving) -> ASGIApp:
    """The third: its state is its module's, and it exports nothing."""
    participant = Exporting(serving.name, serving.ports)
    participant.letters = LETTERS
    return serving.controlled(Desk(participant, model_of(serving)).app(), participant)


async def hasty(serving: Serving) -> ASGIApp:
    """One that is right."""
    participant = Letters(serving.name, serving.ports)
    return serving.controlled(Hasty(participant, model_of(serving)).app(), participant)


async def judge(serving: Serving) -> ASGIApp:
    """Another that is right: a verifier, which keeps nothing, and is no framework's."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked, more = b"", True
        while more:
            message = await receive()
            asked, more = asked + message.get("body", b""), message.get("more_body", False)
        said = json.loads(asked)["messages"] if scope["path"] == "/verify" else []
        headers = [(b"content-type", b"application/json"), (b"x-ng-checkpoint-verify", b"replay")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"reward": 1 / (1 + len(said))}).encode()})

    return serving.controlled(app, Letters(serving.name, serving.ports))


class Exporting(Letters):
    """It relies on its module to remember."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [Record(each.episode, []) for each in await super().export(scope, stop)]

    async def install(self, records: Sequence[Record]) -> None:
        for record in records:
            before = [each for each in self.letters if each.rollout_id == record.episode.rollout_id]
            lines = self.letters[max(before)].lines if before else []
            self.letters[record.episode] = Letter(list(lines))


async def clocked(serving: Serving) -> ASGIApp:
    """The fourth."""
    participant = Letters(serving.name, serving.ports)
    return serving.controlled(Clocked(participant, model_of(serving)).app(), participant)


class Tuples(Letters):
    """It exports what JSON would give back as something else."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [Record(each.episode, tuple(each.state)) for each in await super().export(scope, stop)]


class Nothing(Letters):
    """Its export forgets to return what it has."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        await super().export(scope, stop)
        return None  # type: ignore[return-value]


class Lookup(Letters):
    """Its export looks for what it never kept."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        raise KeyError("session")


class Dropping(Letters):
    """Its export leaves every other letter out, so that after a restore their rows fail and start over."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [*await super().export(scope, stop)][::2]


class Empty(Letters):
    """Its export gives nothing."""

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return []


class Uninstalled(Letters):
    """Its install does nothing."""

    async def install(self, records: Sequence[Record]) -> None: ...


class ForgetfulSafe(SafeInAWorld):
    """A gym whose export forgets how many tries there were."""

    async def export_session_state(self, state: Any) -> Any:
        return {**state, "tries": 0}


class Echo(Gym):
    """A gym that is right, and keeps nothing: its tools do with no state at all."""

    state_mode = StateMode.STATELESS
    tools = ({"type": "function", "function": {"name": "say", "parameters": {"type": "object", "properties": {}}}},)

    async def seed(self, task: dict[str, Any]) -> Any:
        return None

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        return [state, tool]

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"reward": 1 / len(messages)}


async def tuples(serving: Serving) -> ASGIApp:
    """The fifth."""
    return _exporting(Tuples(serving.name, serving.ports), serving)


async def nothing(serving: Serving) -> ASGIApp:
    """The sixth."""
    return _exporting(Nothing(serving.name, serving.ports), serving)


async def lookup(serving: Serving) -> ASGIApp:
    """The seventh."""
    return _exporting(Lookup(serving.name, serving.ports), serving)


async def dropping(serving: Serving) -> ASGIApp:
    """The eighth."""
    return _exporting(Dropping(serving.name, serving.ports), serving)


async def empty(serving: Serving) -> ASGIApp:
    """The ninth."""
    return _exporting(Empty(serving.name, serving.ports), serving)


async def uninstalled(serving: Serving) -> ASGIApp:
    """The tenth."""
    return _exporting(Uninstalled(serving.name, serving.ports), serving)


def _exporting(participant: Letters, serving: Serving) -> ASGIApp:
    return serving.controlled(Desk(participant, model_of(serving)).app(), participant)
