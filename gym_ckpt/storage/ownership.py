"""A run directory has one live collector, and belongs to one run (INV-95).

Liveness is a lock that ends with its process, never an age, a pid or a clock; the pid in the file is for people. The
run is named by `run.json`, made once. It must not know what a run is.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import MANIFEST_MAX_BYTES
from gym_ckpt.ports import FileSystem, Job, Lock
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import Steps, make_dirs, read_bounded, replace
from gym_ckpt.wire import json


@dataclass(frozen=True, slots=True)
class Ownership:
    """This process owns the directory until `lock.release()` or its end. `fresh`: the run begins here."""

    lock: Lock
    fresh: bool


def claim(run_dir: str, run_id: str, note: str, attempt_token: str) -> Job[Ownership]:
    """Become the one live collector of `run_dir` for the run `run_id`; `note` names this process (pid, host).

    Raises (by the job):
        ConfigError: another collector lives here, or the directory is another run's; the text names it.
        OSError: as the file system says; nothing is owned.
    """

    def job(fs: FileSystem) -> Generator[str, None, Ownership]:
        yield from make_dirs(fs, run_dir, layout.run_file(run_dir))
        yield "claim.sync_parent"
        try:
            fs.fsync_dir(layout.parent_of(run_dir))
        except PermissionError:
            pass  # a parent that we may not read was there before us
        yield "claim.lock"
        pid_file = layout.collector_pid(run_dir)
        lock = fs.try_lock(pid_file, note)
        if lock is None:
            raise ConfigError(f"{run_dir} is in use by another collector ({_note(fs, pid_file)}): stop it first")
        try:
            fresh = yield from _claim_run(fs, run_dir, run_id, attempt_token)
            # Made here, so that no participant has to make and sync a directory of the run itself.
            yield from make_dirs(fs, layout.checkpoints_dir(run_dir), layout.checkpoints_dir(run_dir))
        except Exception:
            lock.release()
            raise
        return Ownership(lock, fresh)

    return job


def claim_output(output: str, note: str) -> Job[Lock]:
    """Become the one live writer of an output file, whatever directory its collector keeps checkpoints in.

    The lock is a file of its own beside it, since the output itself may be removed and begun anew.

    Raises (by the job):
        ConfigError: another collector writes it; the text names it.
        OSError: as the file system says; nothing is owned.
    """

    def job(fs: FileSystem) -> Generator[str, None, Lock]:
        path = layout.output_lock(output)
        yield from make_dirs(fs, layout.parent_of(path), path)
        yield "claim.lock_output"
        lock = fs.try_lock(path, note)
        if lock is None:
            raise ConfigError(f"{output} is being written by another collector ({_note(fs, path)}): stop it first")
        return lock

    return job


def read_run_id(run_dir: str) -> Job[str | None]:
    """Whose directory it is, None if nobody's.

    Raises (by the job):
        ConfigError: `run.json` is damaged.
    """

    def job(fs: FileSystem) -> Generator[str, None, str | None]:
        yield "claim.read"
        return _run_id(fs, run_dir)

    return job


def _claim_run(fs: FileSystem, run_dir: str, run_id: str, attempt_token: str) -> Steps[bool]:
    owner = _run_id(fs, run_dir)
    if owner is None:
        if fs.exists(layout.latest(run_dir)) or fs.exists(layout.checkpoints_dir(run_dir)):
            raise ConfigError(f"{run_dir} holds checkpoints of an unknown run: choose another checkpoint_dir")
        yield from replace(fs, layout.run_file(run_dir), json.dumps({"run_id": run_id}) + b"\n", attempt_token)
        return True
    if owner != run_id:
        raise ConfigError(
            f"{run_dir} belongs to run {owner!r:.200}, not {run_id!r:.200}: choose another checkpoint_dir"
        )
    yield "claim.sync_dir"
    fs.fsync_dir(run_dir)
    return False


def _run_id(fs: FileSystem, run_dir: str) -> str | None:
    path = layout.run_file(run_dir)
    try:
        value: Any = json.loads(read_bounded(fs, path, MANIFEST_MAX_BYTES))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): choose another checkpoint_dir") from None
    if not isinstance(value, dict) or not isinstance(value.get("run_id"), str):
        raise ConfigError(f"{path} names no run: choose another checkpoint_dir")
    run_id: str = value["run_id"]
    return run_id


def _note(fs: FileSystem, path: str) -> str:
    """What the other collector wrote about itself, for a person."""
    try:
        text = read_bounded(fs, path, MANIFEST_MAX_BYTES).decode("utf-8", "replace").strip("\0 \n")
    except OSError:
        text = ""
    return text[:200] or "it left no name"
