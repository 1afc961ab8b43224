"""Identity: rollouts, attempts, episodes, capture keys, checkpoint ids.

A rollout is logical and keeps its id for ever; an attempt is one physical execution of it. The pair is an
`EpisodeId`; its text form, the *capture key*, appears in paths, file names and the wire. The two forms map to each
other without ambiguity because a rollout id may not end in `-a<positive integer>`.

Pure: knows no clock, no file and no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gym_ckpt.errors import InvalidRequest, InvalidRolloutId
from gym_ckpt.limits import CHECKPOINT_ID_MAX_BYTES, ROLLOUT_ID_MAX_BYTES

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_ATTEMPT_SUFFIX = re.compile(r"-a([1-9][0-9]*)\Z", re.ASCII)
ATTEMPT_MAX = 10**9
"""No rollout is tried more often than this; a larger number on the wire is malformed."""


class Kind(StrEnum):
    """The four kinds of participant."""

    ENVIRONMENT = "environment"
    MODEL = "model"
    AGENT = "agent"
    RESOURCES = "resources"


def check_rollout_id(text: str) -> str:
    """Return `text` if it is a well-formed rollout id.

    Raises:
        InvalidRolloutId: naming the id and the rule that it breaks.
    """
    if len(text) > ROLLOUT_ID_MAX_BYTES:
        raise InvalidRolloutId(f"rollout id is longer than {ROLLOUT_ID_MAX_BYTES} bytes: {text[:40]!r}...")
    if not _ID.fullmatch(text):
        raise InvalidRolloutId(
            f"rollout id {text!r} must start with a letter or digit and hold only letters, digits, '.', '_' and '-'"
        )
    if _ATTEMPT_SUFFIX.search(text):
        raise InvalidRolloutId(f"rollout id {text!r} must not end in '-a<number>': that form names an attempt")
    return text


def check_checkpoint_id(text: str) -> str:
    """Return `text` if it is a well-formed checkpoint id.

    Raises:
        InvalidRequest: naming the id and the rule that it breaks.
    """
    if len(text) > CHECKPOINT_ID_MAX_BYTES or not _ID.fullmatch(text):
        raise InvalidRequest(
            f"checkpoint_id {text[:140]!r} must start with a letter or digit, hold only letters, digits, '.', '_' "
            f"and '-', and be at most {CHECKPOINT_ID_MAX_BYTES} characters"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class EpisodeId:
    """One physical execution of a rollout. `attempt` counts from 0; a restore continues N as N+1."""

    rollout_id: str
    attempt: int = 0

    @property
    def key(self) -> str:
        """The capture key: the rollout id for attempt 0, otherwise `<rollout_id>-a<attempt>`."""
        return self.rollout_id if self.attempt == 0 else f"{self.rollout_id}-a{self.attempt}"

    def __str__(self) -> str:
        return self.key

    def next(self) -> EpisodeId:
        """The attempt that continues or repeats this one."""
        return EpisodeId(self.rollout_id, self.attempt + 1)

    @classmethod
    def checked(cls, rollout_id: str, attempt: int) -> EpisodeId:
        """Build from untrusted parts.

        Raises:
            InvalidRolloutId: a malformed id or an attempt outside 0..ATTEMPT_MAX.
        """
        if not 0 <= attempt <= ATTEMPT_MAX:
            raise InvalidRolloutId(f"attempt {attempt} of {rollout_id[:40]!r} is outside 0..{ATTEMPT_MAX}")
        return cls(check_rollout_id(rollout_id), attempt)

    @classmethod
    def from_key(cls, key: str) -> EpisodeId:
        """Parse a capture key; the inverse of `key`.

        Raises:
            InvalidRolloutId: when the key is not one that `key` could have produced.
        """
        found = _ATTEMPT_SUFFIX.search(key)
        if found is None:
            return cls(check_rollout_id(key), 0)
        if len(found.group(1)) > len(str(ATTEMPT_MAX)):
            raise InvalidRolloutId(f"attempt in capture key {key[:60]!r} is outside 0..{ATTEMPT_MAX}")
        return cls.checked(key[: found.start()], int(found.group(1)))


def keys(episodes: Iterable[EpisodeId]) -> list[str]:
    """Capture keys of `episodes`, sorted by identity (the order every set leaves this package in)."""
    return [episode.key for episode in sorted(episodes)]
