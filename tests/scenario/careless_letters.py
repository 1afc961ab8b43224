"""`examples.letters` as an author might have got it wrong, for the campaign to find out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx
from starlette.requests import Request
from starlette.responses import Response

from examples.letters import Desk, Letter, Letters
from gym_ckpt import EpisodeId, Record, Serving
from gym_ckpt.ports import ASGIApp


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
