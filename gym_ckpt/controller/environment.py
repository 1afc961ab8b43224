"""One `/run` on the environment server, and what its outcome means.

A reply of any kind releases the episode on the servers; no reply means that it may still run, so that it must be
retired (INV-93). A 409 is no reply of the episode: the server says that this attempt runs, has run or is retired there,
which a controller that lost its dispatch log does not know. It must not know what happens next to the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gym_ckpt.errors import PeerUnreachable, TransportError
from gym_ckpt.limits import REASON_MAX_CHARS
from gym_ckpt.ports import HttpClient, Reply
from gym_ckpt.runtime.asgi import of_run, tagged
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTINUED_HEADER

CONFLICT = 409


class Loss(StrEnum):
    """How a call ended that has no reply of its episode."""

    NO_REPLY = "no reply to"
    KNOWN = "known to the server already:"
    """It answered 409."""
    UNREACHED = "no server could be reached for"
    """Certainly not begun."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The episode's result, an object."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """A reply that is no result."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """No reply of this episode: it may have run, may be running, may never have begun."""

    reason: str
    how: Loss = Loss.NO_REPLY


async def run_episode(
    http: HttpClient, url: str, episode: EpisodeId, task: bytes, *, run: str | None = None, continued: bool = False
) -> Finished | Failed | Lost:
    """Send the episode and wait for its reply, however long it takes: time-outs of episodes are the environment's.

    `run`: whose episode this is, so that a copy of the call which arrives when all is over is known for one.
    `continued`: it goes on from what a restore has installed. An environment that has died since and has nothing of it
    would begin it from its input, on tools that have its effects already (INV-3): it answers 409.
    """
    body = b'{"episode_id":{"rollout_id":%s,"attempt":%d},"task":%s}' % (
        json.dumps(episode.rollout_id),
        episode.attempt,
        task,
    )
    headers = [("content-type", "application/json"), *of_run(run), *([(CONTINUED_HEADER, "1")] if continued else [])]
    try:
        reply = await http.request("POST", tagged(url, episode, "/run"), headers=headers, body=body)
    except TransportError as error:
        how = Loss.UNREACHED if isinstance(error, PeerUnreachable) else Loss.NO_REPLY
        return Lost(f"{type(error).__name__}: {error}"[:REASON_MAX_CHARS], how)
    return _read(reply)


def _read(reply: Reply) -> Finished | Failed | Lost:
    try:
        value = json.loads(reply.body)
    except ValueError as error:
        return Failed(f"HTTP {reply.status}: the reply cannot be read ({error})")
    if reply.status != 200:
        typed = value.get("error") if isinstance(value, dict) else None
        if isinstance(typed, dict):
            text = f"HTTP {reply.status} {typed.get('code')}: {typed.get('detail')}"[:REASON_MAX_CHARS]
        else:
            text = f"HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
        return Lost(text, Loss.KNOWN) if reply.status == CONFLICT else Failed(text)
    if isinstance(value, dict) and value.get("status") == "finished" and isinstance(value.get("result"), dict):
        return Finished(value["result"])
    if isinstance(value, dict) and value.get("status") == "failed":
        return Failed(str(value.get("reason"))[:REASON_MAX_CHARS])
    return Failed("the environment's reply is neither finished with a result nor failed")
