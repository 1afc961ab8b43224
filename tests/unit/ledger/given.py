"""Calls, rows and ledgers for tests, in a few words."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, TypeVar

from gym_ckpt.core.fingerprints import EMPTY, Asked
from gym_ckpt.core.lineage import Context, Generated, LedgerRow, row_of, stage
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.ledger import BUSY, Busy, Exported, begin_restore, continue_restore, open_ledger
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.digests import StagedCall, staging_digest
from sim.disk import SimFileSystem
from tests.unit.storage.driver import run

T = TypeVar("T")
DIR = "/shared/ledger"
R0 = EpisodeId("r", 0)
ROOT = Asked(EMPTY, None)


def ep(text: str) -> EpisodeId:
    return EpisodeId.from_key(text)


def staged(
    call_id: str = "c0",
    *,
    episode: EpisodeId = R0,
    parent: LedgerRow | None = None,
    before: tuple[int, ...] = (),
    prompt: tuple[int, ...] = (1, 2),
    generated: tuple[int, ...] = (3, 4),
) -> StagedCall:
    """A call on top of the tokens `before` (its parent's)."""
    made = Generated((*before, *prompt), generated, tuple(-0.5 for _ in generated), 7, {"finish": "stop"})
    return stage(episode, call_id, parent, made)


def row_for(call: StagedCall, conversation: str = "f" * 64, response_id: str | None = None) -> LedgerRow:
    digest = staging_digest(call)
    return row_of(call, digest, digest, Context(12.5, response_id, EMPTY, conversation))


def a_row(call_id: str = "c0", episode: EpisodeId = R0) -> LedgerRow:
    return row_for(staged(call_id, episode=episode))


def chain(
    episode: EpisodeId, length: int, *, name: str = "c"
) -> tuple[list[LedgerRow], dict[str, StagedCall], list[int]]:
    """A lineage of `length` calls in a row: rows, staged calls by key, and the tokens of the whole conversation."""
    rows: list[LedgerRow] = []
    calls: dict[str, StagedCall] = {}
    tokens: tuple[int, ...] = ()
    for at in range(length):
        call = staged(
            f"{name}{at}",
            episode=episode,
            parent=rows[-1] if rows else None,
            before=tokens,
            prompt=(10 * at + 1,) * (at + 1),
        )
        tokens += call.delta
        rows.append(row_for(call, f"{at:064x}"))
        calls[rows[-1].staging_key] = call
    return rows, calls, list(tokens)


def changed(row: LedgerRow, **fields: Any) -> LedgerRow:
    return LedgerRow(**{**{name: getattr(row, name) for name in row.__struct_fields__}, **fields})


def broken(call: StagedCall, **fields: Any) -> StagedCall:
    return replace(call, **fields)


def new_disk(seed: int = 0, *, journalled: bool = False) -> SimFileSystem:
    disk = SimFileSystem(random.Random(seed), journalled=journalled)
    disk.make_dirs("/shared")
    run(disk.view("setup"), open_ledger(DIR))
    return disk


def free(fs: FileSystem, job: Job[T | Busy]) -> T:
    """Run a job whose lock must be free."""
    result = run(fs, job)
    assert result is not BUSY
    return result


def restore(fs: FileSystem, directory: str, scope: list[EpisodeId], records: list[Exported]) -> None:
    work = run(fs, begin_restore(directory, scope, records))
    run(fs, continue_restore(work))
    assert not work.episodes


def files(disk: SimFileSystem) -> dict[str, bytes]:
    """Everything in the ledger but its locks, by name."""
    return {
        path.removeprefix(DIR + "/"): data
        for path, data in disk.tree(DIR).items()
        if not path.startswith(DIR + "/locks/")
    }


def names(disk: SimFileSystem) -> list[str]:
    return sorted(files(disk))
