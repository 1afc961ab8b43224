"""Names in a ledger's directory, and which of a few locks a rollout takes.

    <directory>/<capture key>.lineage.jsonl      rows
    <directory>/<capture key>.lineage.poison     why the rollout is unusable for training
    <directory>/<capture key>.lineage.fence      rows of this key are discarded from now on
    <directory>/<capture key>.lineage.started    this restored attempt has had a call
    <directory>/locks/<number>                   locks, made once and never removed
    <directory>/locks/fence                      an empty file of which fences are made

A name is a key and one of four endings, so no two keys share a name, whatever dots and dashes they hold. Lock files are
not the rollouts' own: one that is removed while somebody waits for it excludes nobody, and one that is not stays for
ever.

It touches no file.
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Final

from gym_ckpt.limits import LEDGER_LOCKS
from gym_ckpt.storage.layout import join
from gym_ckpt.types import EpisodeId

LOCKS: Final = "locks"
FENCE_MOULD: Final = "fence"


class Ending(StrEnum):
    """The four files of a capture key."""

    ROWS = ".lineage.jsonl"
    POISON = ".lineage.poison"
    FENCE = ".lineage.fence"
    STARTED = ".lineage.started"


LEDGER: Final = (Ending.ROWS, Ending.POISON, Ending.STARTED)
"""What goes with a ledger; the fence stays until its rollout is forgotten."""


def path_of(directory: str, episode: EpisodeId, ending: Ending) -> str:
    return join(directory, episode.key + ending)


def lock_number(rollout_id: str) -> int:
    """All attempts of a rollout share a lock, and so does every process that computes this."""
    return zlib.crc32(rollout_id.encode()) % LEDGER_LOCKS


def lock_path(directory: str, number: int) -> str:
    return join(directory, LOCKS, f"{number:02d}")


def mould_path(directory: str) -> str:
    return join(directory, LOCKS, FENCE_MOULD)


def split_name(name: str) -> tuple[str, Ending] | None:
    """The capture key (not checked) and the ending of a file's name; None for any other file."""
    key, dot, last = name.rpartition(".lineage.")
    if not dot or not key:
        return None
    ending = _ENDINGS.get(last)
    return None if ending is None else (key, ending)


def attempt_in(key: str) -> tuple[str, int] | None:
    """Rollout id and attempt of a key taken from a file's name, quickly; None when it can be no capture key.

    The rollout id is not checked: whoever asks compares it with ids that were.
    """
    base, dash, digits = key.rpartition("-a")
    if not dash or not digits.isascii() or not digits.isdigit() or digits[0] == "0":
        return key, 0
    return (base, int(digits)) if base and len(digits) <= _ATTEMPT_DIGITS_MAX else None


_ENDINGS: Final = {ending.rpartition(".")[2]: ending for ending in Ending}
_ATTEMPT_DIGITS_MAX: Final = 10
