"""The input of a run: a JSON-lines file of tasks, and the rollouts that it and `repeats` stand for.

Everything wrong with the file is found before the first row starts, and named with its line. A row is
`{"id": "...", "task": {...}}`; its rollout id is the id, or `<id>.r<k>` (k from 0) when rows are repeated.

It must not know how rollouts are run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from gym_ckpt.errors import ConfigError, InvalidRolloutId, NotLossless, TryLater
from gym_ckpt.limits import LOG_LINE_MAX_BYTES, READ_CHUNK_BYTES, TASK_DEPTH_MAX, TASK_MAX_BYTES
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import chunks_of, may_pass, reason
from gym_ckpt.storage.lines import LineTooLong, split_lines
from gym_ckpt.types import check_rollout_id
from gym_ckpt.wire import json


@dataclass(frozen=True, slots=True)
class Input:
    """`tasks`: encoded task of each rollout, in input order. `digest`: SHA-256 over ids and tasks, after `repeats`."""

    tasks: Mapping[str, bytes]
    digest: str


def read_input(path: str, repeats: int) -> Job[Input]:
    """Read the tasks.

    Raises (by the job):
        ConfigError: the file or one of its lines cannot be used; names the line.
        TryLater: its disk fails.
    """

    def job(fs: FileSystem) -> Generator[str, None, Input]:
        yield "input.read"
        try:
            return _read(fs, path, repeats)
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such input file; collect.input names it") from None
        except LineTooLong as error:
            raise ConfigError(f"{path}: {error}") from None
        except OSError as error:
            kind = TryLater if may_pass(error) else ConfigError
            raise kind(f"{path}: cannot be read ({reason(error)})") from error

    return job


def _read(fs: FileSystem, path: str, repeats: int) -> Input:
    tasks: dict[str, bytes] = {}
    first_at: dict[str, int] = {}
    digest = hashlib.sha256()
    for number, (line, _) in enumerate(split_lines(chunks_of(fs, path, READ_CHUNK_BYTES), LOG_LINE_MAX_BYTES), 1):
        if not line.strip():
            continue
        row_id, task = _row(line, f"{path}:{number}")
        for name in [row_id] if repeats == 1 else [f"{row_id}.r{k}" for k in range(repeats)]:
            try:
                check_rollout_id(name)
            except InvalidRolloutId as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
            if name in tasks:
                raise ConfigError(f"{path}:{number}: rollout {name!r} comes twice, first on line {first_at[name]}")
            tasks[name] = task
            first_at[name] = number
            digest.update(b"%d:%s%d:%s" % (len(name), name.encode(), len(task), task))
    if not tasks:
        raise ConfigError(f"{path}: holds no task")
    return Input(tasks, digest.hexdigest())


def _row(line: bytes, where: str) -> tuple[str, bytes]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not isinstance(value, dict) or set(value) != {"id", "task"}:
        raise ConfigError(f'{where}: a row is {{"id": "...", "task": {{...}}}} and nothing else')
    row_id, task = value["id"], value["task"]
    if not isinstance(row_id, str):
        raise ConfigError(f"{where}: id must be a string")
    if not isinstance(task, dict):
        raise ConfigError(f"{where}: task must be an object")
    try:
        encoded = json.dumps(task, depth_max=TASK_DEPTH_MAX)
    except NotLossless as error:
        raise ConfigError(f"{where}: task {error}") from None
    if len(encoded) > TASK_MAX_BYTES:
        raise ConfigError(f"{where}: task of {len(encoded)} bytes, and {TASK_MAX_BYTES} are the most")
    return row_id, encoded
