"""The oracle's checks of the run directory, each before a disk that was made to break one rule."""

from __future__ import annotations

import pytest

from faults import catalogue as faults
from faults.plan import Plan, Setup
from gym_ckpt.storage import layout
from gym_ckpt.storage.pointer import DIGEST, collection_digest
from gym_ckpt.wire import json
from sim.cluster import RUN_DIR
from sim.run import run_seed
from tests.unit.sim.onlooker import MEMBERS, Onlooker, checkpoint

ALL = [f"{kind.value}/{node}" for node, kind in MEMBERS.items()]


def crash(on: Onlooker) -> None:
    """Whoever wrote to the disk loses what was not synced, and the oracle looks."""
    on.world.disk.crash("operator")
    on.emit("controller", "node.crashed", epoch=1)


def directory_of(checkpoint_id: str, node: str = "agent") -> str:
    return layout.participant_dir(layout.checkpoint_dir(RUN_DIR, checkpoint_id), MEMBERS[node], node)


def rewrite(on: Onlooker, path: str, data: bytes) -> None:
    """Replace a file for good, as no part of storage would."""
    on.files.unlink(path)
    file = on.files.create(path)
    file.write(data)
    file.fsync()
    on.files.fsync_dir(layout.parent_of(path))


def test_sound_checkpoints_pass_at_every_crash() -> None:
    on = Onlooker()
    for number in (1, 2):
        on.publish(f"c-{number}", checkpoint())
    crash(on)
    assert on.oracle.violations == []
    assert min(on.checked(48), on.checked(49), on.checked(51)) > 0


def test_a_pointer_to_names_that_are_not_durable_is_seen_before_any_crash() -> None:
    """INV-48: everything reads well, and a power cut at this instant would leave a pointer to nothing."""
    on = Onlooker()
    on.world.disk.end("operator")  # nothing of the set-up is pending
    on.files = on.world.disk.view("operator")
    directory = layout.checkpoint_dir(RUN_DIR, "c-1")
    on.files.mkdir(directory)  # and its name is never synced
    on.write("c-1", checkpoint())
    collection = {"checkpoint_id": "c-1", "sequence": 1, "participants": ALL}
    for name, data in (
        (layout.collection(directory), {**collection, DIGEST: collection_digest(collection)}),
        (
            layout.latest(RUN_DIR),
            {"schema_version": 1, "checkpoint_id": "c-1", "sequence": 1, "published": ["c-1"]},
        ),
    ):
        file = on.files.create(name)
        file.write(json.dumps(data))
        file.fsync()
        file.close()
    on.files.fsync_dir(RUN_DIR)
    on.emit("agent", "commit.exported", kind="agent", checkpoint_id="c-1", episodes=["r"], scope=["r"])
    on.say_published("c-1", ["r"])
    assert on.found == {"INV-48"}
    assert "durable" in on.oracle.violations[0].seen


@pytest.mark.parametrize("what", ["collection", "manifest", "records", "member"])
def test_a_pointer_to_an_incomplete_checkpoint_is_seen(what: str) -> None:
    """INV-48, and with it INV-51: the newest is also the first of those that must be kept."""
    on = Onlooker()
    on.publish("c-1", checkpoint())
    directory = directory_of("c-1")
    records = next(name for name in on.files.listdir(directory) if layout.is_records(name))
    gone = {
        "collection": [layout.collection(layout.checkpoint_dir(RUN_DIR, "c-1"))],
        "manifest": [layout.join(directory, layout.MANIFEST)],
        "records": [layout.join(directory, records)],
        "member": [layout.join(directory, records), layout.join(directory, layout.MANIFEST)],
    }
    for path in gone[what]:
        on.files.unlink(path)
        on.files.fsync_dir(layout.parent_of(path))
    if what == "member":
        on.files.rmdir(directory)
    crash(on)
    assert {"INV-48", "INV-51"} <= on.found <= {"INV-48", "INV-49", "INV-51"}


def test_a_published_checkpoint_that_the_pointer_forgets_is_seen() -> None:
    """INV-48: what was acknowledged is not taken back by a crash."""
    on = Onlooker()
    on.publish("c-1", checkpoint())
    on.files.unlink(layout.latest(RUN_DIR))
    on.files.fsync_dir(RUN_DIR)
    crash(on)
    assert on.found == {"INV-48"}


@pytest.mark.parametrize("wrong", [False, True])
def test_who_says_committed_has_durable_records(wrong: bool) -> None:
    """INV-48: each participant's part, before the pointer."""
    on = Onlooker()
    on.close("agent")
    on.phase("agent", "preparing", "prepared", "c-1", "Ready")
    on.write("c-1", {"agent": {} if wrong else {"r": {}}})
    if wrong:
        on.files.unlink(layout.join(directory_of("c-1"), layout.MANIFEST))
        on.files.fsync_dir(directory_of("c-1"))
    on.phase("agent", "prepared", "committed", "c-1", "CommitWritten")
    assert on.found == ({"INV-48"} if wrong else set())


@pytest.mark.parametrize("wrong", [False, True])
def test_a_manifest_that_changes_is_seen(wrong: bool) -> None:
    """INV-49. The new manifest is sound in itself, as a second commit's would be."""
    on = Onlooker()
    on.publish("c-1", checkpoint())
    if wrong:
        directory = directory_of("c-1")
        path = layout.join(directory, layout.MANIFEST)
        manifest = json.loads(on.world.disk.tree(directory)[path])
        rewrite(on, path, json.dumps(manifest, sort_keys=True))
    crash(on)
    assert on.found == ({"INV-49"} if wrong else set())


@pytest.mark.parametrize("wrong", [False, True])
def test_a_manifest_after_the_resume_is_seen(wrong: bool) -> None:
    """INV-50."""
    on = Onlooker()
    on.close("agent")
    on.phase("agent", "preparing", "prepared", "c-1", "Ready")
    if not wrong:
        on.write("c-1", {"agent": {}})  # published before the resume: it had won
    on.open("agent")
    on.emit("agent", "resume.done", checkpoint_id="c-1")
    if wrong:
        on.write("c-1", {"agent": {}})
    on.close("agent", "c-2")
    assert on.found == ({"INV-50"} if wrong else set())


@pytest.mark.parametrize("wrong", [False, True])
def test_harm_to_the_checkpoint_before_is_seen(wrong: bool) -> None:
    """INV-51: two are kept, and the older is no less restorable."""
    on = Onlooker(keep=2)
    on.publish("c-1", checkpoint())
    on.publish("c-2", checkpoint())
    if wrong:
        directory = layout.checkpoint_dir(RUN_DIR, "c-1")
        on.files.unlink(layout.collection(directory))
        on.files.fsync_dir(directory)
    crash(on)
    assert on.found == ({"INV-51"} if wrong else set())


@pytest.mark.parametrize("there", [2, 3])
def test_more_checkpoints_than_are_kept_are_seen_at_the_end(there: int) -> None:
    """INV-51: nobody pruned."""
    on = Onlooker(keep=2)
    for number in range(there):
        on.publish(f"c-{number + 1}", checkpoint())
    on.oracle.run_directory.kept()
    assert on.found == ({"INV-51"} if there > 2 else set())


def test_a_checkpoint_that_no_pointer_ever_named_is_not_counted_at_the_end() -> None:
    """INV-51: its `collection.json` was written, and then the disk failed; no other one was taken to sweep it."""
    on = Onlooker(keep=2)
    on.publish("c-1", checkpoint())
    on.write("c-2", checkpoint())
    on.files.create(layout.collection(layout.checkpoint_dir(RUN_DIR, "c-2"))).write(b"{}")
    on.oracle.run_directory.kept()
    assert on.found == set()
    failing = faults.DiskError("controller", "EIO", 2, 1, "files.sync_dir")  # the only checkpoint of this run
    verdict = run_seed(47, plan=Plan(setup=Setup(workload=6, every_s=1.3), chaos_s=3.2, faults=(failing,)))
    assert verdict.ok and verdict.faults == {"disk_error": 1}, verdict.violations


def test_a_pointer_is_looked_at_as_soon_as_it_is_durable() -> None:
    """INV-48: no crash has come, and nobody has said that anything is published."""
    on = Onlooker()
    on.write("c-1", checkpoint())
    on.emit("controller", "disk.step", step="files.sync_dir")
    assert on.found == set()
    pointer = {"schema_version": 1, "checkpoint_id": "c-1", "sequence": 1, "published": ["c-1"]}
    file = on.files.create(layout.latest(RUN_DIR))
    file.write(json.dumps(pointer))
    file.fsync()
    on.emit("controller", "disk.step", step="files.sync_dir")
    assert on.found == set(), "its name is not durable yet"
    on.files.fsync_dir(RUN_DIR)
    on.emit("policy", "disk.step", step="ledger.write")
    assert on.found == set(), "somebody else's step"
    on.emit("controller", "disk.step", step="files.create")
    assert "INV-48" in on.found
