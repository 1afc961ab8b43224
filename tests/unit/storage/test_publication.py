"""Publication at every crash point and with every error at every call (INV-48, INV-51)."""

from __future__ import annotations

import errno
import os
import random

import pytest

from gym_ckpt.errors import CheckpointConflict, ConfigError, InvalidCheckpointState
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import files, forget_all, latest, layout, prune, publish, published, read_collection
from gym_ckpt.storage.publication import Published
from gym_ckpt.types import Kind
from sim.disk import SimFileSystem
from tests.unit.storage.driver import (
    CONTROLLER,
    PARTICIPANTS,
    RUN,
    PowerCut,
    Tokens,
    assert_records_stand_behind_manifests,
    assert_sound,
    calm,
    checkpoint,
    commit,
    run,
    strike,
    temporaries,
)

NODES = [instance for _, instance in PARTICIPANTS] + [CONTROLLER]
ALL_CALLS = 10_000


def with_first(seed: int, *, journalled: bool, links: bool = True) -> tuple[SimFileSystem, Tokens]:
    """A disk with one published checkpoint, c1, durable."""
    disk = SimFileSystem(random.Random(seed), journalled=journalled)
    disk.links = links
    disk.make_dirs(RUN)
    tokens = Tokens()
    checkpoint(disk, "c1", tokens)
    return disk, tokens


def second(disk: SimFileSystem, tokens: Tokens) -> None:
    checkpoint(disk, "c2", tokens)
    run(disk.view(CONTROLLER), prune(RUN, keep=2))


def pointed_at(disk: SimFileSystem) -> str | None:
    return run(disk.view("checker"), latest(RUN))


def recover(disk: SimFileSystem, tokens: Tokens) -> None:
    """What must hold after any trouble in `second`, and the next checkpoint."""
    calm(disk)
    assert_records_stand_behind_manifests(disk)
    newest = pointed_at(disk)
    assert newest in ("c1", "c2")
    assert_sound(disk, "c1")
    assert_sound(disk, newest)
    checkpoint(disk, "c3", tokens)
    run(disk.view(CONTROLLER), prune(RUN, keep=1))
    assert pointed_at(disk) == "c3"
    assert_sound(disk, "c3")
    assert temporaries(disk) == []
    left = {path.split("/")[4] for path in disk.tree(layout.checkpoints_dir(RUN))}
    assert left == {"c3"}, "exactly the kept checkpoints remain (INV-51)"
    for node in NODES:
        disk.crash(node)
    assert pointed_at(disk) == "c3"
    assert_sound(disk, "c3")


def crash_everywhere(*, journalled: bool, links: bool, seeds: int) -> int:
    """A power cut before and after every call of `second`; returns how many calls it has."""
    calls = 0
    for after in (False, True):
        for call in range(ALL_CALLS):
            struck = True
            for seed in range(seeds):
                disk, tokens = with_first(seed, journalled=journalled, links=links)
                hit = strike(disk, call, after=after, error=PowerCut)
                try:
                    second(disk, tokens)
                except PowerCut:
                    for node in NODES:
                        disk.crash(node)
                    recover(disk, tokens)
                struck = hit()
            if not struck:
                break
            calls += 1
    return calls


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("journalled", [True, False])
def test_a_power_cut_at_every_call_leaves_the_pointer_on_a_complete_checkpoint(journalled: bool, links: bool) -> None:
    assert crash_everywhere(journalled=journalled, links=links, seeds=3) > 80


@pytest.mark.parametrize("journalled", [True, False])
def test_a_crash_before_every_step_of_one_publication(journalled: bool) -> None:
    steps = 0
    for step in range(ALL_CALLS):
        disk, tokens = with_first(step, journalled=journalled)
        for kind, instance in PARTICIPANTS:
            commit(disk, "c2", kind, instance, tokens())
        work = publish(RUN, "c2", {"rows": ["c2"]}, tokens())(disk.view(CONTROLLER))
        if sum(1 for _ in zip(range(step + 1), work, strict=False)) <= step:
            break
        for node in NODES:
            disk.crash(node)
        work.close()
        recover(disk, tokens)
        steps += 1
    assert steps > 10


def plant_without_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: nothing but the pointer's own directory is ever synced."""
    real = SimFileSystem.view

    def view(disk: SimFileSystem, owner: str) -> FileSystem:
        fs = real(disk, owner)
        honest = fs.fsync_dir
        monkeypatch.setattr(fs, "fsync_dir", lambda path: honest(path) if path == RUN else None)
        return fs

    monkeypatch.setattr(SimFileSystem, "view", view)


def test_without_directory_syncs_before_the_pointer_the_crash_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_without_directory_sync(monkeypatch)
    with pytest.raises((AssertionError, InvalidCheckpointState)):
        crash_everywhere(journalled=False, links=True, seeds=4)


def test_without_file_syncs_the_crash_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsynced(fs: FileSystem, path: str, data: bytes) -> files.Steps[None]:
        yield "files.create"
        file = fs.create(path)
        file.write(data)
        file.close()

    monkeypatch.setattr(files, "write_new", unsynced)
    with pytest.raises((AssertionError, InvalidCheckpointState)):
        crash_everywhere(journalled=True, links=True, seeds=4)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("links", [True, False])
def test_an_error_at_every_call_harms_neither_the_previous_checkpoint_nor_the_next(
    code: int, after: bool, links: bool
) -> None:
    failures = 0
    for call in range(ALL_CALLS):
        disk, tokens = with_first(call, journalled=False, links=links)
        hit = strike(disk, call, after=after, error=lambda: OSError(code, os.strerror(code)))
        try:
            second(disk, tokens)
        except (OSError, InvalidCheckpointState):
            failures += 1
        if not hit():
            break
        recover(disk, tokens)
    assert failures > 20


def test_an_error_that_lasts_and_a_crash_after_it() -> None:
    failures = 0
    for call in range(0, 120, 3):
        disk, tokens = with_first(call, journalled=False)
        seen = 0

        def full(_owner: str, op: str, _path: str, last: int = call) -> None:
            nonlocal seen
            seen += 1
            if seen > last and op in ("write", "create", "mkdir", "fsync", "link"):
                raise OSError(errno.ENOSPC, "no space")

        disk.on_op = full
        try:
            second(disk, tokens)
        except OSError:
            failures += 1
        for node in NODES:
            disk.crash(node)
        recover(disk, tokens)
    assert failures > 15


def test_the_pointer_waits_for_directories_that_a_failed_attempt_left_unsynced() -> None:
    outcomes = set()
    for call in range(ALL_CALLS):
        struck = False
        for seed in range(12):
            disk = SimFileSystem(random.Random(seed), journalled=False)
            disk.make_dirs(RUN)
            disk.view("failed").mkdir(layout.checkpoints_dir(RUN))
            hit = strike(disk, call, after=False, error=PowerCut)
            try:
                checkpoint(disk, "c1", Tokens())
            except PowerCut:
                pass
            calm(disk)
            for node in ("failed", *NODES):
                disk.crash(node)
            named = pointed_at(disk)
            outcomes.add(named)
            if named is not None:
                assert_sound(disk, named)
            struck = hit()
        if not struck:
            break
    assert outcomes == {None, "c1"}


def test_published_are_listed_newest_first_whatever_their_names() -> None:
    disk, tokens = with_first(0, journalled=True)
    for name in ("z", "a", "m"):
        checkpoint(disk, name, tokens)
    assert run(disk.view("x"), published(RUN)).checkpoint_ids == ("m", "a", "z", "c1")
    sequences = [run(disk.view("x"), read_collection(RUN, name))["sequence"] for name in ("c1", "z", "a", "m")]
    assert sequences == [1, 2, 3, 4]


@pytest.mark.parametrize("bit", [0, 1, 4, 5])
def test_a_collection_of_which_any_bit_has_flipped_is_damaged_and_not_another_runs(bit: int) -> None:
    """It may still be JSON, and say another run, another row, another attempt (INV-51)."""
    disk, _ = with_first(0, journalled=True)
    path = layout.collection(layout.checkpoint_dir(RUN, "c1"))
    fs = disk.view("x")
    whole = b"".join(fs.read_chunks(path, 1 << 20))
    for at in range(len(whole) - 1):  # but the end of its line
        torn = bytes([*whole[:at], whole[at] ^ (1 << bit), *whole[at + 1 :]])
        fs.unlink(path)
        file = fs.create(path)
        file.write(torn)
        file.close()
        with pytest.raises(InvalidCheckpointState):
            run(fs, read_collection(RUN, "c1"))


def test_publishing_again_is_the_same_publication() -> None:
    disk, tokens = with_first(0, journalled=True)
    before = disk.tree(RUN)
    assert run(disk.view(CONTROLLER), publish(RUN, "c1", {"rows": ["c1"]}, tokens())) == 1
    assert disk.tree(RUN) == before
    with pytest.raises(CheckpointConflict, match="another collection"):
        run(disk.view(CONTROLLER), publish(RUN, "c1", {"rows": []}, tokens()))
    checkpoint(disk, "c2", tokens)
    with pytest.raises(CheckpointConflict, match="before c2"):
        run(disk.view(CONTROLLER), publish(RUN, "c1", {"rows": ["c1"]}, tokens()))


def test_a_participant_without_a_manifest_is_not_published() -> None:
    disk, tokens = with_first(0, journalled=True)
    commit(disk, "c2", Kind.MODEL, "policy", tokens())
    disk.make_dirs(layout.participant_dir(layout.checkpoint_dir(RUN, "c2"), Kind.AGENT, "worker"))
    with pytest.raises(InvalidCheckpointState, match="did not commit"):
        run(disk.view(CONTROLLER), publish(RUN, "c2", {}, tokens()))
    assert pointed_at(disk) == "c1"


def test_a_rotten_pointer_is_said_rebuilt_and_never_pruned_by() -> None:
    disk, tokens = with_first(0, journalled=True)
    checkpoint(disk, "c2", tokens)
    disk.flip(layout.latest(RUN), 7)
    found = run(disk.view("x"), published(RUN))
    assert found.checkpoint_ids == ("c2", "c1")
    assert found.damage is not None and "LATEST" in found.damage
    assert run(disk.view("x"), prune(RUN, keep=1)).removed == ()
    checkpoint(disk, "c3", tokens)
    assert run(disk.view("x"), published(RUN)).checkpoint_ids == ("c3", "c2", "c1")


def test_prune_leaves_foreign_files_and_protected_checkpoints_alone() -> None:
    disk, tokens = with_first(0, journalled=True)
    for name in ("c2", "c3"):
        checkpoint(disk, name, tokens)
    commit(disk, "open", Kind.MODEL, "policy", tokens())
    commit(disk, "partial", Kind.MODEL, "policy", tokens())
    foreign = [f"{RUN}/notes.tmp", f"{layout.checkpoint_dir(RUN, 'c1')}/README", f"{layout.checkpoints_dir(RUN)}/.keep"]
    for path in foreign:
        disk.view("user").create(path).write(b"mine")
    disk.view("dead").create(layout.temporary(layout.latest(RUN), "00000000ffffffff")).write(b"torn")
    done = run(disk.view(CONTROLLER), prune(RUN, keep=2, protect={"open"}))
    assert (done.removed, done.failed) == (("partial",), ())
    tree = disk.tree(RUN)
    assert all(path in tree for path in foreign)
    assert temporaries(disk) == [f"{RUN}/notes.tmp"]
    assert layout.collection(layout.checkpoint_dir(RUN, "c1")) not in tree
    assert {path.split("/")[4] for path in tree if "/gym/" in path} == {"c2", "c3", "open"}


def test_a_lost_pointer_is_said_and_rebuilt() -> None:
    disk, tokens = with_first(0, journalled=True)
    checkpoint(disk, "c2", tokens)
    commit(disk, "c3", Kind.MODEL, "policy", tokens())
    disk.view("x").unlink(layout.latest(RUN))
    found = run(disk.view("x"), published(RUN))
    assert found.checkpoint_ids == ("c2", "c1"), "not c3, which has no collection"
    assert found.damage is not None and "LATEST: is missing" in found.damage


def test_a_lost_pointer_takes_no_kept_checkpoint_with_it() -> None:
    disk, tokens = with_first(0, journalled=True)
    checkpoint(disk, "c2", tokens)
    disk.view("x").unlink(layout.latest(RUN))
    assert run(disk.view("x"), prune(RUN, keep=2)).removed == (), "a run that takes none of its own tidies up, too"
    checkpoint(disk, "c0", tokens)
    assert run(disk.view("x"), published(RUN)) == Published(("c0", "c2", "c1"))
    assert run(disk.view("x"), prune(RUN, keep=2)).removed == ("c1",)
    assert_sound(disk, "c2")
    disk.view("x").unlink(layout.latest(RUN))
    checkpoint(disk, "c0", tokens)
    assert run(disk.view("x"), published(RUN)) == Published(("c0", "c2")), "published again, it is the same publication"


def test_a_publication_that_is_known_to_have_failed_is_not_what_a_lost_pointer_said() -> None:
    disk, tokens = with_first(0, journalled=True)
    disk.view("x").unlink(layout.latest(RUN))  # so c1 is as a failed publication leaves it: a collection, no pointer
    for kind, instance in PARTICIPANTS:
        commit(disk, "c2", kind, instance, tokens())
    assert run(disk.view("x"), publish(RUN, "c2", {"of": "c2"}, tokens(), failed={"c1"})) == 2
    assert run(disk.view("x"), published(RUN)) == Published(("c2",))
    disk.view("x").unlink(layout.latest(RUN))
    assert run(disk.view("x"), prune(RUN, keep=2, failed={"c1"})).removed == ("c1",)


def test_before_the_first_publication_nothing_is_amiss() -> None:
    disk = SimFileSystem(random.Random(0))
    disk.make_dirs(RUN)
    assert run(disk.view("x"), published(RUN)) == Published(())
    commit(disk, "c1", Kind.MODEL, "policy", Tokens()())
    assert run(disk.view("x"), published(RUN)) == Published(())


def test_who_starts_over_is_told_of_a_checkpoint_that_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart would continue it."""
    disk, _ = with_first(0, journalled=True)
    view = disk.view(CONTROLLER)
    unlink = view.unlink

    def denied(path: str) -> None:
        if path.endswith(layout.COLLECTION):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        unlink(path)

    monkeypatch.setattr(view, "unlink", denied)
    with pytest.raises(ConfigError, match=r"c1 cannot be removed .*Permission denied"):
        run(view, forget_all(RUN))


def test_starting_over_forgets_the_pointer_first() -> None:
    disk, tokens = with_first(0, journalled=True)
    checkpoint(disk, "c2", tokens)
    assert run(disk.view(CONTROLLER), forget_all(RUN)).removed == ("c1", "c2")
    assert disk.tree(RUN) == {}
    assert pointed_at(disk) is None
