"""A trivial driver for jobs, and a small cluster's checkpoint in the words of storage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import AbortFlag, Manifest, ManifestHead, layout, publish, verify_checkpoint, write_records
from gym_ckpt.types import Kind
from gym_ckpt.wire import json
from sim.disk import SimFileSystem

T = TypeVar("T")
RUN = "/shared/run"
PARTICIPANTS = ((Kind.ENVIRONMENT, "env"), (Kind.MODEL, "policy"))
CONTROLLER = "controller"


class PowerCut(BaseException):
    """The simulated machine stops here."""


class Tokens:
    """Attempt tokens: fresh over all of a test."""

    def __init__(self) -> None:
        self._made = 0

    def __call__(self) -> str:
        self._made += 1
        return f"{self._made:016x}"


def run(fs: FileSystem, job: Job[T], *, between: Callable[[str], None] | None = None) -> T:
    """Run a job to its end; `between` sees the name of each step before it is taken."""
    steps = job(fs)
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if between is not None:
            between(step)


def strike(disk: SimFileSystem, call: int, *, after: bool, error: Callable[[], BaseException]) -> Callable[[], bool]:
    """Raise `error` at the `call`-th call from now (0 is the next), or after its effect; returns whether it struck."""
    seen = -1
    struck = False

    def hook(_owner: str, _op: str, _path: str) -> None:
        nonlocal seen, struck
        seen += 1
        if seen == call and not struck:
            struck = True
            raise error()

    if after:
        disk.on_done = hook
    else:
        disk.on_op = hook
    return lambda: struck


def calm(disk: SimFileSystem) -> None:
    """No more faults."""
    disk.on_op = disk.on_done = None


def records(checkpoint_id: str, instance: str, count: int = 3) -> list[bytes]:
    return [json.dumps({"checkpoint": checkpoint_id, "of": instance, "n": n}) for n in range(count)]


def commit(
    disk: SimFileSystem,
    checkpoint_id: str,
    kind: Kind,
    instance: str,
    token: str,
    *,
    lines: list[bytes] | None = None,
    abort: AbortFlag | None = None,
    between: Callable[[str], None] | None = None,
) -> Manifest:
    """One participant's commit, on a node of its own."""
    job = write_records(
        layout.checkpoint_dir(RUN, checkpoint_id),
        ManifestHead(kind=kind, instance=instance, checkpoint_id=checkpoint_id),
        records(checkpoint_id, instance) if lines is None else lines,
        abort or AbortFlag(),
        token,
    )
    return run(disk.view(instance), job, between=between)


def checkpoint(disk: SimFileSystem, checkpoint_id: str, tokens: Tokens, about: Mapping[str, str] | None = None) -> int:
    """Commit every participant and publish."""
    for kind, instance in PARTICIPANTS:
        commit(disk, checkpoint_id, kind, instance, tokens())
    return run(disk.view(CONTROLLER), publish(RUN, checkpoint_id, {"rows": [checkpoint_id], **(about or {})}, tokens()))


def assert_sound(disk: SimFileSystem, checkpoint_id: str) -> None:
    """Every byte of a published checkpoint is there and right."""
    report = run(disk.view("checker"), verify_checkpoint(layout.checkpoint_dir(RUN, checkpoint_id)))
    assert report.problems == []
    assert report.checkpoint_id == checkpoint_id
    assert [(p.kind, p.instance, p.record_count) for p in report.participants] == [
        (kind.value, instance, 3) for kind, instance in PARTICIPANTS
    ]


def temporaries(disk: SimFileSystem) -> list[str]:
    return [path for path in disk.tree(RUN) if path.endswith(".tmp")]


def assert_records_stand_behind_manifests(disk: SimFileSystem) -> None:
    """Whatever directory has a manifest has the records that it names, whole (INV-48)."""
    tree = disk.tree(RUN)
    for path, data in tree.items():
        if path.endswith("/" + layout.MANIFEST):
            named = json.loads(data)
            found = tree.get(layout.join(layout.parent_of(path), named["records_file"]))
            assert found is not None, f"{path} names records that are not there"
            assert hashlib.sha256(found).hexdigest() == named["records_sha256"], f"{path} names other records"
