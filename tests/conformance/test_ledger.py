"""One life of a shared ledger, on the simulated disk and on real files: the same files at the end, byte by byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.core.lineage import Poison
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage.ledger import (
    Appended,
    Start,
    append_poison,
    append_row,
    delete,
    discard_unstarted,
    export,
    forget,
    manifest,
    open_ledger,
    retire,
    start,
)
from gym_ckpt.storage.ledger.names import LOCKS
from sim.disk import SimFileSystem
from tests.unit.ledger.given import chain, ep, free, restore
from tests.unit.storage.driver import run


def a_life(one: FileSystem, two: FileSystem, root: str) -> list[object]:
    """Two servers use a ledger; what each step said."""
    seen: list[object] = []
    directory = f"{root}/ledger"
    for fs in (one, two):
        run(fs, open_ledger(directory))
    rows, _, _ = chain(ep("r"), 3)
    for fs, row in zip((one, two, one), rows, strict=True):
        seen.append(free(fs, append_row(directory, ep("r"), row)))
    seen.append(free(two, append_row(directory, ep("r"), rows[0])))
    seen.append(free(one, append_poison(directory, ep("r"), Poison("c1", "parent_ambiguous"))))
    saved = run(two, export(directory, [ep("r"), ep("q-a1"), ep("s")]))
    seen.append([record.state() for record in saved])
    run(one, retire(directory, [ep("s-a1")]))
    for fs in (one, two):
        restore(fs, directory, [ep("r"), ep("q-a1"), ep("s")], saved)
    seen.append(free(one, start(directory, ep("r-a1"))))
    seen.append(free(two, start(directory, ep("r-a1"))))
    done = run(two, discard_unstarted(directory, [ep("r-a1"), ep("s-a1")]))
    seen.append((done.deleted, done.started, done.failed))
    seen.append(free(two, append_row(directory, ep("r"), rows[0])))
    late, _, _ = chain(ep("q-a2"), 1, name="late")
    seen.append(free(two, append_row(directory, ep("q-a2"), late[0])))
    run(two, delete(directory, [ep("q-a2")]))
    run(two, forget(directory, [ep("s-a1")]))
    seen.append([(listed.episode.key, len(listed.rows), listed.fenced) for listed in run(one, manifest(directory))[0]])
    return seen


def content(fs: FileSystem, directory: str) -> dict[str, bytes]:
    names = [name for name in fs.listdir(directory) if name != LOCKS]
    return {name: b"".join(fs.read_chunks(f"{directory}/{name}", 4096)) for name in names}


def test_both_worlds_say_and_hold_the_same(tmp_path: Path) -> None:
    disk = SimFileSystem(random.Random(0))
    disk.make_dirs("/root")
    real: Callable[[], FileSystem] = PosixFileSystem
    simulated = a_life(disk.view("one"), disk.view("two"), "/root")
    assert simulated == a_life(real(), real(), str(tmp_path))
    assert content(disk.view("x"), "/root/ledger") == content(real(), f"{tmp_path}/ledger")
    assert simulated[0] is Appended.WRITTEN
    assert Start.STARTED in simulated and Start.AGAIN in simulated and Appended.FENCED in simulated
    assert simulated[-1] == [("q", 0, True), ("q-a1", 0, True), ("r", 0, True), ("r-a1", 3, False)]
