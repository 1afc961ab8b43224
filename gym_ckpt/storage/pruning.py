"""What may go: published checkpoints beyond those kept, partial directories, temporary files; nothing else (INV-51).

Only files that this package may have written are removed, by name; a foreign file keeps its directory (INV-95). A file
that cannot be removed is reported and left for the next time. It must run while no checkpoint is being written into
a directory that is not protected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass

from gym_ckpt.errors import ConfigError, InvalidCheckpointState
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import Steps, dir_there, listed, reason, there
from gym_ckpt.storage.pointer import checkpoint_names, read_pointer, rebuilt, still_there


@dataclass(frozen=True, slots=True)
class Pruned:
    """Checkpoint ids whose directory is gone, and `path: reason` of what could not be removed. `again`: another try may
    do better; it cannot where the pointer is damaged."""

    removed: tuple[str, ...]
    failed: tuple[str, ...]
    again: bool = True


def prune(run_dir: str, keep: int, protect: Collection[str] = (), failed: Collection[str] = ()) -> Job[Pruned]:
    """Remove all but the newest `keep` published checkpoints and the ids in `protect` (untouched, such as an open one).

    With a damaged pointer nothing is removed: what is published cannot be told. One that was lost says what its
    checkpoints say, as for a restart; `failed`: ids whose publication failed, which it cannot have named.
    """
    assert keep >= 1, "the newest checkpoint is always kept"

    def job(fs: FileSystem) -> Generator[str, None, Pruned]:
        sweep = _Sweep(fs)
        yield "prune.look"
        try:
            pointer = read_pointer(fs, run_dir)
        except InvalidCheckpointState as error:
            return Pruned((), (error.detail,), again=isinstance(error.__cause__, OSError))
        pointer = pointer or rebuilt(fs, run_dir, failed)
        published = pointer.published if pointer else []
        kept = {*published[:1], *still_there(fs, run_dir, published)[:keep]}
        removed = []
        for name in checkpoint_names(fs, run_dir):
            directory = layout.checkpoint_dir(run_dir, name)
            if name in protect:
                continue
            if name in kept:
                yield from sweep.participants(directory, layout.is_temporary)
                yield from sweep.files(directory, layout.is_temporary)
            elif (yield from sweep.checkpoint(directory)):
                removed.append(name)
        yield from sweep.files(run_dir, layout.is_temporary)
        return Pruned(tuple(removed), tuple(sweep.failed))

    return job


def forget_all(run_dir: str) -> Job[Pruned]:
    """Remove every checkpoint of a run that starts over, the pointer first.

    Raises (by the job):
        ConfigError: a checkpoint is still there whole, so that a restart would continue it.
        OSError: the pointer could not be removed durably; then nothing else was.
    """

    def job(fs: FileSystem) -> Generator[str, None, Pruned]:
        sweep = _Sweep(fs)
        if there(fs, layout.latest(run_dir)):
            yield "prune.unlink_pointer"
            fs.unlink(layout.latest(run_dir))
            yield "prune.sync_pointer"
            fs.fsync_dir(run_dir)
        removed = []
        for name in checkpoint_names(fs, run_dir):
            if (yield from sweep.checkpoint(layout.checkpoint_dir(run_dir, name))):
                removed.append(name)  # noqa: PERF401  (a comprehension cannot yield)
        left = rebuilt(fs, run_dir)
        if left is not None:
            where = layout.checkpoint_dir(run_dir, left.checkpoint_id)
            why = f" ({sweep.failed[0]})" if sweep.failed else ""
            raise ConfigError(f"{where} cannot be removed{why}: to start over, remove it, or choose another directory")
        yield from sweep.files(run_dir, layout.is_temporary)
        return Pruned(tuple(removed), tuple(sweep.failed))

    return job


def _ours_in_participant(name: str) -> bool:
    return name in (layout.MANIFEST, layout.MANIFEST_LOCK) or layout.is_records(name) or layout.is_temporary(name)


class _Sweep:
    """Removes by name, going on past what cannot be removed."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.failed: list[str] = []

    def checkpoint(self, directory: str) -> Steps[bool]:
        """Remove a checkpoint; whether its directory is gone. Its collection goes first, so that a rest is partial."""
        before = len(self.failed)
        yield from self.files(directory, lambda name: name == layout.COLLECTION)
        if len(self.failed) > before:
            return False
        yield from self._try(directory, "prune.sync", self._fs.fsync_dir)
        # A manifest without its records must not exist, not even in a directory that is going (INV-48).
        yield from self.participants(directory, lambda name: name == layout.MANIFEST, sync=True)
        yield from self.participants(directory, _ours_in_participant)
        gym = layout.join(directory, layout.GYM)
        for kind in self._names(gym):
            for instance in self._names(layout.join(gym, kind)):
                yield from self._rmdir(layout.join(gym, kind, instance))
            yield from self._rmdir(layout.join(gym, kind))
        yield from self._rmdir(gym)
        yield from self.files(directory, layout.is_temporary)
        yield from self._rmdir(directory)
        yield from self._try(layout.parent_of(directory), "prune.sync", self._fs.fsync_dir)
        return not there(self._fs, directory)

    def participants(self, directory: str, which: Callable[[str], bool], *, sync: bool = False) -> Steps[None]:
        gym = layout.join(directory, layout.GYM)
        for kind in self._names(gym):
            for instance in self._names(layout.join(gym, kind)):
                participant = layout.join(gym, kind, instance)
                yield from self.files(participant, which)
                if sync and dir_there(self._fs, participant):
                    yield from self._try(participant, "prune.sync", self._fs.fsync_dir)

    def files(self, directory: str, which: Callable[[str], bool]) -> Steps[None]:
        for name in self._names(directory):
            if which(name):
                yield from self._try(layout.join(directory, name), "prune.unlink", self._fs.unlink)

    def _rmdir(self, path: str) -> Steps[None]:
        if dir_there(self._fs, path) and not self._names(path):
            yield from self._try(path, "prune.rmdir", self._fs.rmdir)

    def _try(self, path: str, step: str, call: Callable[[str], None]) -> Steps[None]:
        yield step
        try:
            call(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.failed.append(f"{path}: {reason(error)}")

    def _names(self, path: str) -> list[str]:
        try:
            return listed(self._fs, path)
        except OSError as error:
            self.failed.append(f"{path}: {reason(error)}")
            return []
