"""Staged keys that the checkpoints of a directory need: listed for a ledger's `sweep`, or looked for in a token store.

A list that lacked one would cost its tokens, so whatever cannot be read ends it; nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.cli.signals import run_dir_of
from gym_ckpt.errors import ConfigError, InvalidCheckpointState, InvalidRolloutId
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import layout, manifest
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.ledger import Exported
from gym_ckpt.storage.pointer import checkpoint_names, read_or_rebuilt
from gym_ckpt.storage.records import verified_records
from gym_ckpt.storage.tokens import StagedDamaged, StagedMissing, get, path_of
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json


def list_staged_keys(directory: str, *, as_json: bool) -> str:
    """The keys of all checkpoints that a restart may use, sorted: one a line, or as the body of `sweep` has them.

    Raises:
        ConfigError: there is no such directory, or no checkpoint in it.
        InvalidCheckpointState: one of them cannot be read whole.
    """
    fs, run_dir = PosixFileSystem(), run_dir_of(directory)
    pointer, _ = read_or_rebuilt(fs, run_dir)
    names = checkpoint_names(fs, run_dir)
    if pointer is None and not names:
        raise ConfigError(f"{directory}: holds no checkpoints; give the collector's checkpoint_dir")
    kept = {name for name in names if fs.exists(layout.collection(layout.checkpoint_dir(run_dir, name)))}
    kept |= {pointer.checkpoint_id} if pointer is not None else set()
    keys = sorted({key for name in kept for key in needed(fs, layout.checkpoint_dir(run_dir, name))})
    return json.dumps({"staging_keys": keys}).decode() if as_json else "\n".join(keys)


def needed(fs: FileSystem, checkpoint_dir: str) -> set[str]:
    """Every staged key that a checkpoint refers to. Raises `InvalidCheckpointState`."""
    kind_dir = layout.join(checkpoint_dir, layout.GYM, Kind.MODEL)
    if not fs.is_dir(checkpoint_dir):
        raise manifest.damaged(checkpoint_dir, "is missing")
    found: set[str] = set()
    for instance in fs.listdir(kind_dir) if fs.is_dir(kind_dir) else ():
        where = layout.join(kind_dir, instance)
        named = manifest.read(fs, where)
        if named is None:
            raise manifest.damaged(layout.join(where, layout.MANIFEST), "is missing")
        for record in verified_records(fs, where, named):
            found |= set(of_record(Kind.MODEL, record))
    return found


def of_record(kind: str, record: dict[str, Any]) -> tuple[str, ...]:
    """Those that a record of the capture ledger refers to; none of any other state. Raises `InvalidCheckpointState`."""
    state = record.get("state")
    if kind != Kind.MODEL or not isinstance(state, dict) or "poison" not in state:
        return ()  # a policy-model server without capture has no poison
    try:
        episode = EpisodeId.checked(record["episode"]["rollout_id"], record["episode"]["attempt"])
    except (InvalidRolloutId, KeyError, TypeError) as error:
        raise InvalidCheckpointState(f"a ledger record names no episode: {error}") from None
    return Exported.parse(episode, state).staging_keys


def problems_with(fs: FileSystem, token_dir: str, keys: Iterable[str]) -> Iterator[str]:
    """What is wrong with these keys in a token store: every byte of each is read against its digest."""
    for key in keys:
        try:
            finish(fs, get(token_dir, key))
        except (StagedMissing, StagedDamaged) as error:
            yield f"{error}; the rows that need it cannot be trained on"
        except OSError as error:
            yield f"{path_of(token_dir, key)}: cannot be read ({error.strerror or error})"
