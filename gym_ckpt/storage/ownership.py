"""A run directory has one live collector, and belongs to one run (INV-95).

Liveness is a lock that ends with its process, never an age, a pid or a clock; the pid in the file is for people. The
run is named by `run.json`, made once; should that be lost or damaged, by the checkpoints. It must not know what a run
is.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gym_ckpt.errors import ConfigError, DirectoryGone, InvalidCheckpointState, TryLater
from gym_ckpt.limits import MANIFEST_MAX_BYTES
from gym_ckpt.ports import Disk, FileSystem, Job, Lock
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import Steps, make_dirs, read_bounded, replace, size_of, there
from gym_ckpt.storage.pointer import checkpoint_names, read_collection_file
from gym_ckpt.wire import json

T = TypeVar("T")
MISSING: Final = "is missing"


@dataclass(frozen=True, slots=True)
class RunName:
    """Which run a directory belongs to. `run_id` decides; `about` tells a person what it was made of."""

    run_id: str
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """`new`: the directory is nobody's yet, else it is this run's. `bereft`: somebody has removed every trace of
    checkpoints: their directory is made, durably, before the dispatch log, and nothing of ours removes it."""

    new: bool
    bereft: bool


class OwnedDisk:
    """`ports.Disk` of a live collector: no job begins on it once another collector has taken over.

    A lock whose file was removed (a cleaner of old files, a person) keeps nobody out any more. It is taken anew, under
    its name, before the next job; who finds another file there must not write another byte (INV-95): somebody else has
    begun since, from what stood in the files then, and may have ended by now.
    """

    def __init__(self, disk: Disk, note: str) -> None:
        self._disk = disk
        self._note = note
        self._locks: dict[str, Lock] = {}
        self._looking = threading.Lock()

    async def claim(self, path: str, job: Job[Lock]) -> None:
        """Take the lock of `path` as the job does. Raises what the job raises."""
        self._locks[path] = await self._disk.run(job)

    async def run(self, job: Job[T]) -> T:
        """As `ports.Disk.run`. Raises also `TryLater`, when another collector has the run, and `DirectoryGone`."""

        def owned(fs: FileSystem) -> Generator[str, None, T]:
            self._look(fs)
            return (yield from job(fs))

        return await self._disk.run(owned)

    def release(self) -> None:
        """Own nothing any more; jobs run as before."""
        for path in list(self._locks):
            self._locks.pop(path).release()

    def _look(self, fs: FileSystem) -> None:
        with self._looking:
            for path, lock in self._locks.items():
                if lock.stands():
                    continue
                again = None if there(fs, path) else self._anew(fs, path)
                if again is None:
                    raise TryLater(f"{path} was removed, and another collector ({_note(fs, path)}) has the run since")
                self._locks[path] = again

    def _anew(self, fs: FileSystem, path: str) -> Lock | None:
        """The lock file was swept away: another, unless somebody has it. With its directory more than that is gone."""
        try:
            return fs.try_lock(path, self._note)
        except FileNotFoundError:
            parent = layout.parent_of(path)
            if there(fs, parent):
                raise
            raise DirectoryGone(
                parent,
                f"{parent} was removed while this run used it: put it back and run this again with --resume; or move "
                "what is left of the run away and begin anew",
            ) from None


def claim_directory(run_dir: str, note: str) -> Job[Lock]:
    """Become the one live collector of `run_dir`; `note` names this process (pid, host). Whose run it is stays open.

    Raises (by the job):
        TryLater: another collector lives here; the text names it.
        OSError: as the file system says; nothing is owned.
    """

    def job(fs: FileSystem) -> Generator[str, None, Lock]:
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
            raise TryLater(f"{run_dir} is in use by another collector ({_note(fs, pid_file)}): stop it first")
        return lock

    return job


def claim_run(run_dir: str, run: RunName, attempt_token: str) -> Job[bool]:
    """Make the directory this run's, if it is nobody's; the caller has its lock. True when the run begins here.

    Raises (by the job):
        ConfigError: it is another run's; the text says what differs.
        OSError: as the file system says.
    """

    def job(fs: FileSystem) -> Generator[str, None, bool]:
        yield "claim.read"
        fresh = yield from _claim_run(fs, run_dir, run, attempt_token)
        # Made here, so that no participant has to make and sync a directory of the run itself.
        yield from make_dirs(fs, layout.checkpoints_dir(run_dir), layout.checkpoints_dir(run_dir))
        return fresh

    return job


def claim_output(output: str, note: str) -> Job[Lock]:
    """Become the one live writer of an output file, whatever directory its collector keeps checkpoints in.

    The lock is a file of its own beside it, since the output itself may be removed and begun anew.

    Raises (by the job):
        TryLater: another collector writes it; the text names it.
        OSError: as the file system says; nothing is owned.
    """

    def job(fs: FileSystem) -> Generator[str, None, Lock]:
        path = layout.output_lock(output)
        yield from make_dirs(fs, layout.parent_of(path), path)
        yield "claim.lock_output"
        lock = fs.try_lock(path, note)
        if lock is None:
            raise TryLater(f"{output} is being written by another collector ({_note(fs, path)}): stop it first")
        return lock

    return job


def look(run_dir: str, run: RunName) -> Job[Found]:
    """What stands there before it is claimed. Changes nothing.

    Raises (by the job):
        ConfigError: it is another run's, or `run.json` is damaged.
    """

    def job(fs: FileSystem) -> Generator[str, None, Found]:
        yield "claim.read"
        new = _is_new(fs, run_dir, run)
        log = layout.dispatched(run_dir)
        begun = not new and there(fs, log) and size_of(fs, log) > 0
        traces = (layout.latest(run_dir), layout.checkpoints_dir(run_dir))
        return Found(new, begun and not any(there(fs, path) for path in traces))

    return job


def _claim_run(fs: FileSystem, run_dir: str, run: RunName, attempt_token: str) -> Steps[bool]:
    fresh = _is_new(fs, run_dir, run)
    if fresh or _read_run(fs, run_dir)[0] is None:
        data = json.dumps({"run_id": run.run_id, "about": dict(run.about)}) + b"\n"
        yield from replace(fs, layout.run_file(run_dir), data, attempt_token)
        return fresh
    yield "claim.sync_dir"
    fs.fsync_dir(run_dir)
    return False


def _is_new(fs: FileSystem, run_dir: str, run: RunName) -> bool:
    found, why = _read_run(fs, run_dir)
    if found is None:
        return _is_nobodys(fs, run_dir, run, why)
    if found["run_id"] != run.run_id:
        raise ConfigError(
            f"{run_dir} belongs to another run{_difference(found.get('about'), run)}: restore what it was, or choose "
            "another checkpoint_dir"
        )
    return False


def _read_run(fs: FileSystem, run_dir: str) -> tuple[dict[str, Any] | None, str]:
    """What `run.json` says; None, and why, where it cannot be used."""
    try:
        value: Any = json.loads(read_bounded(fs, layout.run_file(run_dir), MANIFEST_MAX_BYTES))
    except FileNotFoundError:
        return None, MISSING
    except ValueError as error:
        return None, f"is damaged ({error})"
    if not isinstance(value, dict) or not isinstance(value.get("run_id"), str):
        return None, "names no run"
    return value, ""


def _is_nobodys(fs: FileSystem, run_dir: str, run: RunName, why: str) -> bool:
    """Whether a directory whose `run.json` cannot be used is new. Nothing else is made before that file, and every
    checkpoint says whose it is: if all are this run's, so is the directory."""
    left = (layout.latest(run_dir), layout.checkpoints_dir(run_dir), layout.dispatched(run_dir))
    if why == MISSING and not any(there(fs, path) for path in left):
        return True
    owners = set()
    for checkpoint_id in checkpoint_names(fs, run_dir):
        try:
            owners.add(read_collection_file(fs, run_dir, checkpoint_id).get("run"))
        except InvalidCheckpointState:
            continue
    if owners != {run.run_id}:
        whose = "its checkpoints are not all of this run" if owners else "no checkpoint in it says whose it is"
        raise ConfigError(
            f"{layout.run_file(run_dir)} {why}, and {whose}: put that file back, or choose another checkpoint_dir and "
            "another output"
        )
    return False


def _difference(theirs: Any, run: RunName) -> str:
    """What of the run is not as it was, for a person; empty where the file does not say."""
    before = theirs if isinstance(theirs, dict) else {}
    differing = [
        f"{key} was {before[key]!s:.300} and is {now!s:.300}"
        for key, now in run.about.items()
        if key in before and before[key] != now
    ]
    return f" ({'; '.join(differing)})" if differing else ""


def _note(fs: FileSystem, path: str) -> str:
    """What the other collector wrote about itself, for a person."""
    try:
        text = read_bounded(fs, path, MANIFEST_MAX_BYTES).decode("utf-8", "replace").strip("\0 \n")
    except OSError:
        text = ""
    return text[:200] or "it left no name"
