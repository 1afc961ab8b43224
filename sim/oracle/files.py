"""Checkpoint files as an onlooker reads them: the storage's own readers over a frozen picture of the disk.

Must not know which run the files are of, nor change anything.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.ports import File, Lock
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.publication import read_collection
from gym_ckpt.storage.verify import verify_checkpoint
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from sim.disk import SimFileSystem

Tree = Mapping[str, bytes]


class Picture:
    """A read-only `FileSystem` of the files at one instant."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @cached_property
    def _dirs(self) -> dict[str, set[str]]:
        dirs: dict[str, set[str]] = {"/": set()}
        for path in self._tree:
            at = path
            while at != "/":
                parent, _, name = at.rpartition("/")
                parent = parent or "/"
                names = dirs.setdefault(parent, set())
                if name in names:
                    break  # and so are the directories above it
                names.add(name)
                at = parent
        return dirs

    def size(self, path: str) -> int:
        return len(self._file(path))

    def read_chunks(self, path: str, chunk_bytes: int) -> Iterator[bytes]:
        data = self._file(path)
        return iter([data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)])

    def listdir(self, path: str) -> list[str]:
        if path not in self._dirs:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted(self._dirs[path])

    def is_dir(self, path: str) -> bool:
        return path in self._dirs

    def exists(self, path: str) -> bool:
        return path in self._dirs or path in self._tree

    def _file(self, path: str) -> bytes:
        if path not in self._tree:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._tree[path]

    def _refuse(self, path: str) -> NoReturn:
        raise AssertionError(f"an onlooker changes nothing: {path}")

    def mkdir(self, path: str) -> None:
        self._refuse(path)

    def create(self, path: str) -> File:
        self._refuse(path)

    def append(self, path: str) -> File:
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)

    def link(self, source: str, target: str) -> None:
        self._refuse(target)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def rmdir(self, path: str) -> None:
        self._refuse(path)

    def fsync_dir(self, path: str) -> None:
        self._refuse(path)

    def try_lock(self, path: str, note: str) -> Lock | None:
        self._refuse(path)


def incomplete(tree: Tree, run_dir: str, checkpoint_id: str) -> str | None:
    """Why a checkpoint cannot be restored, None when every byte is right and every participant is there."""
    try:
        picture = Picture(tree)
        collection = finish(picture, read_collection(run_dir, checkpoint_id))
    except InvalidCheckpointState as error:
        return error.detail
    report = finish(picture, verify_checkpoint(layout.checkpoint_dir(run_dir, checkpoint_id)))
    if report.problems:
        return report.problems[0]
    missing = set(collection["participants"]) - {f"{each.kind}/{each.instance}" for each in report.participants}
    return f"the records of {min(missing)} are missing" if missing else None


Member = tuple[str, str]
"""Kind and instance of a participant."""


@dataclass(slots=True)
class Contents:
    """What a checkpoint holds. `records`: by participant the state of each episode; `digests`: of those states."""

    records: dict[Member, dict[EpisodeId, Any]] = field(default_factory=dict)
    digests: dict[Member, dict[EpisodeId, str]] = field(default_factory=dict)
    raw: dict[Member, bytes] = field(default_factory=dict)


def contents_of(disk: SimFileSystem, run_dir: str, checkpoint_id: str) -> Contents:
    """Parse a whole checkpoint as it reads now; what is missing or damaged is left out."""
    contents = Contents()
    root = layout.join(layout.checkpoint_dir(run_dir, checkpoint_id), layout.GYM)
    tree = disk.tree(root)
    for path, data in tree.items():
        parts = path[len(root) + 1 :].split("/")
        if len(parts) != 3 or parts[2] != layout.MANIFEST:
            continue
        member = (parts[0], parts[1])
        try:
            records = tree[layout.join(layout.parent_of(path), json.loads(data)["records_file"])]
            rows = [json.loads(line) for line in records.splitlines()]
        except (ValueError, KeyError):
            continue
        states = {EpisodeId(row["episode"]["rollout_id"], row["episode"]["attempt"]): row["state"] for row in rows}
        contents.raw[member] = records
        contents.records[member] = states
        contents.digests[member] = {each: digest(state) for each, state in states.items()}
    return contents


def digest(state: Any) -> str:
    """As the control plane's events say it."""
    return hashlib.sha256(json.dumps(state, sort_keys=True)).hexdigest()


class Archive:
    """The contents of published checkpoints, each read once, when it is first asked for."""

    def __init__(self, disk: SimFileSystem, run_dir: str) -> None:
        self._disk = disk
        self._run_dir = run_dir
        self._read: dict[str, Contents] = {}

    def contents(self, checkpoint_id: str) -> Contents:
        found = self._read.get(checkpoint_id)
        if found is None:
            found = self._read[checkpoint_id] = contents_of(self._disk, self._run_dir, checkpoint_id)
        return found


__all__ = ["Archive", "Contents", "Member", "Picture", "contents_of", "digest", "incomplete"]
