"""What a resources server keeps of its episodes: plain data, whose rules are `gym_ckpt.participants.resources`'."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import anyio

from gym_ckpt.limits import IDEMPOTENCY_KEYS_KEPT
from gym_ckpt.runtime.asgi import Answer
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.types import EpisodeId


@dataclass(slots=True)
class Session:
    session_id: str
    episode: EpisodeId
    state: Any
    revision: int = 0
    busy: anyio.Lock = field(default_factory=anyio.Lock)
    last_key: str | None = None
    last_reply: Answer | None = None
    done: dict[str, None] = field(default_factory=dict)
    """Keys of the calls before the last one, oldest first."""
    unsound: bool = False
    """A tool call broke off in the author's code. How much of its effect is in the state, nobody knows."""
    closed: bool = False
    """Its author was told to free what it holds outside the process; that is done once."""
    freed: anyio.Event = field(default_factory=anyio.Event)
    """... and has."""
    kept: Any = None
    """What the last checkpoint of a stop holds of it: should the run go on all the same, so does the session, from
    this."""

    def keep(self, key: str | None, reply: Answer) -> None:
        """A call was done. Raises nothing; only the newest keys are kept."""
        if self.last_key is not None:
            self.done[self.last_key] = None
            if len(self.done) > IDEMPOTENCY_KEYS_KEPT:
                del self.done[next(iter(self.done))]
        self.last_key, self.last_reply = key, reply


class Verification:
    """One that has effects, under way or done."""

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.outcome: Outcome[Answer] = Outcome()
