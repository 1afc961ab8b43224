"""Which staged tokens a sweep removes: those that no row and no kept checkpoint names, and no other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import Steps
from gym_ckpt.storage.ledger import Swept, append_row, delete, export, retire, sweep, unneeded
from gym_ckpt.storage.ledger.locking import lock_of
from gym_ckpt.storage.tokens import StagedMissing, get, keep, open_store, path_of, stage
from gym_ckpt.types import EpisodeId
from sim.disk import SimFileSystem
from tests.unit.ledger.given import DIR, ep, free, new_disk, restore, row_for, staged
from tests.unit.storage.driver import Tokens, run

TOKENS = f"{DIR}/tokens"
NAME = "policy"


def opened() -> SimFileSystem:
    disk = new_disk()
    run(disk.view("setup"), open_store(TOKENS, NAME))
    return disk


def deliver(disk: SimFileSystem, key: str, call_id: str, token: str) -> str:
    """One call from staging to its row; its staging key."""
    call = staged(call_id, episode=ep(key))
    made = run(disk.view("one"), stage(TOKENS, NAME, call, token))
    free(disk.view("one"), append_row(DIR, ep(key), row_for(call), lambda: False, keep(TOKENS, made)))
    return made.key


def there(disk: SimFileSystem, key: str) -> bool:
    try:
        run(disk.view("reader"), get(TOKENS, key))
    except StagedMissing:
        return False
    return True


def swept(token_dir: str, keep: Collection[str]) -> Job[Swept]:
    """Both halves of a sweep; `kept`: over both."""

    def job(fs: FileSystem) -> Steps[Swept]:
        found = yield from unneeded(DIR, token_dir, keep)(fs)
        done = yield from sweep(DIR, token_dir, found.keys)(fs)
        return replace(done, kept=done.kept + found.kept)

    return job


def test_what_a_row_or_the_caller_names_stays_and_the_rest_goes() -> None:
    disk, fresh = opened(), Tokens()
    kept, retired, deleted, saved = (deliver(disk, key, "c", fresh()) for key in ("a", "b", "c", "d"))
    held = run(disk.view("one"), stage(TOKENS, NAME, staged("held"), fresh()))
    run(disk.view("one"), retire(DIR, [ep("b"), ep("d")]))
    run(disk.view("one"), delete(DIR, [ep("c")]))
    assert all(there(disk, key) for key in (kept, retired, deleted, saved)), "retire and delete leave tokens alone"
    done = run(disk.view("one"), swept(TOKENS, {saved, "nothing"}))
    assert (done.removed, done.kept, done.busy) == (2, 2, 0)
    assert [there(disk, key) for key in (kept, retired, deleted, saved)] == [True, False, False, True]
    run(disk.view("one"), keep(TOKENS, held))
    assert there(disk, held.key), "what waits to be delivered is not looked at"


def test_carried_rows_keep_the_tokens_of_the_attempts_before() -> None:
    disk, fresh = opened(), Tokens()
    key = deliver(disk, "r", "c", fresh())
    saved = run(disk.view("one"), export(DIR, [EpisodeId("r")]))
    restore(disk.view("one"), DIR, [EpisodeId("r")], saved)
    assert run(disk.view("one"), swept(TOKENS, ())).removed == 0 and there(disk, key)
    run(disk.view("one"), retire(DIR, [EpisodeId("r", 1)]))
    assert run(disk.view("one"), swept(TOKENS, ())).removed == 1 and not there(disk, key)


def test_a_call_that_is_delivered_during_the_sweep_keeps_its_tokens() -> None:
    """Its tokens get their name before its row is written, both under the rollout's lock."""
    disk, fresh = opened(), Tokens()
    call = staged("c", episode=ep("r"))
    made = run(disk.view("one"), stage(TOKENS, NAME, call, fresh()))
    row = append_row(DIR, ep("r"), row_for(call), lambda: False, keep(TOKENS, made))(disk.view("one"))
    while next(row) != "ledger.open":
        pass
    assert there(disk, made.key), "kept, and no row yet"
    done = run(disk.view("two"), swept(TOKENS, ()))
    assert (done.removed, done.busy) == (0, 1) and there(disk, made.key)
    list(row)
    assert run(disk.view("two"), swept(TOKENS, ())).kept == 1 and there(disk, made.key)


def test_a_row_that_appears_after_the_rows_were_read_is_seen_under_its_lock() -> None:
    disk, fresh = opened(), Tokens()
    call = staged("c", episode=ep("r"))
    made = run(disk.view("one"), stage(TOKENS, NAME, call, fresh()))
    run(disk.view("one"), keep(TOKENS, made))
    steps = swept(TOKENS, ())(disk.view("two"))
    while next(steps) != "ledger.sweep":
        pass
    free(disk.view("one"), append_row(DIR, ep("r"), row_for(call)))
    list(steps)
    assert there(disk, made.key)


def test_damaged_rows_stop_a_sweep_before_it_removes_anything_and_damaged_tokens_go() -> None:
    disk, fresh = opened(), Tokens()
    orphan = deliver(disk, "a", "c", fresh())
    run(disk.view("one"), retire(DIR, [ep("a")]))
    disk.view("x").create(f"{DIR}/b.lineage.jsonl").write(b"[]\n")
    with pytest.raises(InvalidCheckpointState):
        run(disk.view("one"), swept(TOKENS, ()))
    assert there(disk, orphan)
    run(disk.view("one"), delete(DIR, [ep("b")]))
    disk.flip(path_of(TOKENS, orphan), 3)
    held = disk.view("other").try_lock(lock_of(DIR, "a"), "")
    assert held is not None and run(disk.view("one"), swept(TOKENS, ())).removed == 1
