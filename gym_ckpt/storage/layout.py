"""Where everything stands: names and paths of a run directory and of a checkpoint, as strings with `/`.

    <run_dir>/run.json                 whose directory this is
    <run_dir>/collector.pid            lock and pid of the one live collector (INV-95)
    <run_dir>/serve.pid                pid of the `gym-ckpt serve` that runs, for people; nothing reads it
    <run_dir>/dispatched.jsonl         the dispatch log
    <run_dir>/LATEST                   the pointer, and which checkpoints it ever named
    <run_dir>/checkpoints/<checkpoint_id>/collection.json
    <checkpoint_dir>/gym/<kind>/<instance>/manifest.json
    <checkpoint_dir>/gym/<kind>/<instance>/records-<sha256>.jsonl

It touches no file. Temporary names carry the token of one attempt: a name used again after a crash tears data.
"""

from __future__ import annotations

import re
from typing import Final

from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import INSTANCE_MAX_BYTES
from gym_ckpt.types import Kind, check_checkpoint_id

MANIFEST: Final = "manifest.json"
MANIFEST_LOCK: Final = "manifest.lock"
"""Only where hard links do not exist: serializes the writers of one manifest."""
COLLECTION: Final = "collection.json"
LATEST: Final = "LATEST"
CHECKPOINTS: Final = "checkpoints"
GYM: Final = "gym"

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_RECORDS = re.compile(r"records-[0-9a-f]{64}\.jsonl", re.ASCII)
_TEMPORARY = re.compile(
    r"(LATEST|run\.json|dispatched\.jsonl|collection\.json|manifest\.json|records)\.[0-9a-f]{8,64}\.tmp", re.ASCII
)
_TOKEN = re.compile(r"[0-9a-f]{8,64}", re.ASCII)


def join(parent: str, *names: str) -> str:
    """`parent/name/...`."""
    return "/".join((parent.rstrip("/"), *names))


def parent_of(path: str) -> str:
    """The directory that holds `path`."""
    return path.rstrip("/").rpartition("/")[0] or "/"


def within(path: str, directory: str) -> bool:
    """Whether `path` is the directory, or in it."""
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def check_instance(text: str) -> str:
    """Return `text` if it can name a server within its kind, and so a directory.

    Raises:
        ConfigError: naming it and the rule that it breaks.
    """
    if len(text) > INSTANCE_MAX_BYTES or not _INSTANCE.fullmatch(text):
        raise ConfigError(
            f"server name {text[:120]!r} must start with a letter or digit, hold only letters, digits, '.', '_' and "
            f"'-', and be at most {INSTANCE_MAX_BYTES} characters: it names a directory of each checkpoint"
        )
    return text


def participant_dir(checkpoint_dir: str, kind: Kind, instance: str) -> str:
    """One participant's directory in a checkpoint."""
    return join(checkpoint_dir, GYM, kind.value, check_instance(instance))


def records_name(sha256: str) -> str:
    return f"records-{sha256}.jsonl"


def is_records(name: str) -> bool:
    return _RECORDS.fullmatch(name) is not None


def temporary(path: str, attempt_token: str) -> str:
    """A name beside `path` that no other attempt uses. The token is fresh lower-case hexadecimal (`Entropy.token`)."""
    assert _TOKEN.fullmatch(attempt_token), f"not an attempt token: {attempt_token!r}"
    return f"{path}.{attempt_token}.tmp"


def is_temporary(name: str) -> bool:
    """Whether `temporary` may have made this name."""
    return _TEMPORARY.fullmatch(name) is not None


def checkpoint_dir(run_dir: str, checkpoint_id: str) -> str:
    return join(run_dir, CHECKPOINTS, check_checkpoint_id(checkpoint_id))


def checkpoints_dir(run_dir: str) -> str:
    return join(run_dir, CHECKPOINTS)


def latest(run_dir: str) -> str:
    return join(run_dir, LATEST)


def collection(checkpoint_dir: str) -> str:
    return join(checkpoint_dir, COLLECTION)


def dispatched(run_dir: str) -> str:
    return join(run_dir, "dispatched.jsonl")


def output_lock(output: str) -> str:
    """Beside an output file, while and after a collector with a run directory writes it."""
    return f"{output}.lock"


def collector_pid(run_dir: str) -> str:
    return join(run_dir, "collector.pid")


def serve_pid(run_dir: str) -> str:
    return join(run_dir, "serve.pid")


def run_file(run_dir: str) -> str:
    return join(run_dir, "run.json")
