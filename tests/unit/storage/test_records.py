"""One participant's records: created once (INV-49), abortable (INV-50), verified (every kind of damage is named)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gym_ckpt.errors import ConfigError, InvalidCheckpointState, NotLossless, ScopeMismatch
from gym_ckpt.storage import (
    AbortFlag,
    Manifest,
    ManifestHead,
    WriteAborted,
    layout,
    read_records,
    verify_checkpoint,
    write_records,
)
from gym_ckpt.types import Kind
from gym_ckpt.wire import json
from sim.disk import SimFileSystem
from tests.unit.storage.driver import RUN, Tokens, checkpoint, commit, records, run, temporaries

WHERE = layout.checkpoint_dir(RUN, "c1")
DIRECTORY = layout.participant_dir(WHERE, Kind.MODEL, "policy")
MANIFEST = layout.join(DIRECTORY, layout.MANIFEST)


@pytest.fixture(params=[True, False], ids=["links", "no links"])
def disk(request: pytest.FixtureRequest) -> SimFileSystem:
    made = SimFileSystem(random.Random(1))
    made.links = request.param
    made.make_dirs(RUN)
    return made


def read(disk: SimFileSystem, keep: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[dict[str, Any]]:
    return run(disk.view("reader"), read_records(WHERE, Kind.MODEL, "policy", "c1", keep))[1]


def write(disk: SimFileSystem, token: str = "00000001", **options: Any) -> Manifest:
    return commit(disk, "c1", Kind.MODEL, "policy", token, **options)


def test_what_was_written_is_read_and_only_what_is_in_scope_kept(disk: SimFileSystem) -> None:
    manifest = write(disk)
    assert (manifest.record_count, manifest.checkpoint_id, manifest.kind) == (3, "c1", Kind.MODEL)
    assert [record["n"] for record in read(disk, lambda record: record["n"] != 1)] == [0, 2]
    read_back = run(disk.view("reader"), read_records(WHERE, Kind.MODEL, "policy", None, lambda _: False))
    assert read_back == (manifest, [])
    assert temporaries(disk) == []


def test_records_are_streamed_across_chunks(disk: SimFileSystem) -> None:
    lines = [json.dumps({"n": n, "text": "é" * 300_000}) for n in range(5)]
    write(disk, lines=lines)
    assert [record["n"] for record in read(disk)] == [0, 1, 2, 3, 4]


def test_no_record_at_all_is_a_commit_too(disk: SimFileSystem) -> None:
    assert write(disk, lines=[]).record_count == 0
    assert read(disk) == []


def test_the_same_commit_again_returns_the_manifest_and_changes_nothing(disk: SimFileSystem) -> None:
    first = write(disk)
    before = disk.tree(RUN)
    assert write(disk, "00000002") == first
    assert disk.tree(RUN) == before


def test_another_commit_into_the_directory_is_refused(disk: SimFileSystem) -> None:
    write(disk)
    before = disk.tree(RUN)
    with pytest.raises(ScopeMismatch, match="other records"):
        write(disk, "00000002", lines=records("c1", "other"))
    other = ManifestHead(kind=Kind.MODEL, instance="policy", checkpoint_id="c9")
    with pytest.raises(InvalidCheckpointState, match="belongs to model policy of checkpoint c1"):
        run(disk.view("policy"), write_records(WHERE, other, records("c1", "policy"), AbortFlag(), "00000003"))
    assert disk.tree(RUN) == before


@pytest.mark.parametrize("same", [True, False])
def test_of_two_racing_writers_one_wins_wherever_they_meet(disk: SimFileSystem, same: bool) -> None:
    for meeting in range(40):
        disk = SimFileSystem(random.Random(meeting))
        disk.make_dirs(RUN)
        disk.links = meeting % 2 == 0
        outcomes: list[object] = []

        def rival(_step: str, at: Iterator[int], when: int, on: SimFileSystem, into: list[object]) -> None:
            if next(at) == when:
                into.append(write(on, "00000002", lines=records("c1", "policy" if same else "rival")))

        steps = iter(range(1000))
        try:
            outcomes.append(
                write(disk, between=lambda step, d=disk, o=outcomes, s=steps, m=meeting: rival(step, s, m, d, o))
            )
        except ScopeMismatch as error:
            outcomes.append(error)
        if len(outcomes) == 1:
            assert meeting > 10, "the writers never met"
            return
        assert same == (outcomes[0] == outcomes[1])
        report = run(disk.view("x"), read_records(WHERE, Kind.MODEL, "policy", "c1", lambda _: True))
        assert report[0] == outcomes[0], "the first to publish won"
        left = [path for path in disk.tree(RUN) if not path.endswith(layout.MANIFEST_LOCK)]
        assert len(left) == 2, "a manifest and its records, nothing of the loser"
    raise AssertionError("the race never ended")


def test_an_abort_at_every_step_publishes_nothing(disk: SimFileSystem) -> None:
    links = disk.links
    published = 0
    for step in range(1000):
        disk = SimFileSystem(random.Random(step))
        disk.links = links
        disk.make_dirs(RUN)
        flag = AbortFlag()
        stopped: list[bool] = []

        def stop(_step: str, at: Iterator[int], when: int, f: AbortFlag, into: list[bool]) -> None:
            if next(at) == when:
                into.append(f.abort())

        steps = iter(range(1000))
        try:
            write(disk, abort=flag, between=lambda s, f=flag, o=stopped, i=steps, w=step: stop(s, i, w, f, o))
            if not stopped:
                break
            assert stopped == [False], "a write that was stopped in time went on"
            published += 1
        except WriteAborted:
            assert stopped == [True]
            assert MANIFEST not in disk.tree(RUN)
            assert temporaries(disk) == []
    else:
        raise AssertionError("the write never ended")
    assert published >= 1, "no abort ever came too late"


def test_an_abort_stops_before_the_next_record() -> None:
    disk = SimFileSystem(random.Random(0))
    disk.make_dirs(RUN)
    flag = AbortFlag()
    taken = 0

    def source() -> Iterator[bytes]:
        nonlocal taken
        for record in records("c1", "policy"):
            taken += 1
            yield record
            flag.abort()

    head = ManifestHead(kind=Kind.MODEL, instance="policy", checkpoint_id="c1")
    with pytest.raises(WriteAborted):
        run(disk.view("policy"), write_records(WHERE, head, source, flag, "00000001"))
    assert taken == 2, "it was aborted while it fetched the second of three"


def test_a_record_that_cannot_be_made_leaves_nothing(disk: SimFileSystem) -> None:
    def source() -> Iterator[bytes]:
        yield b"{}"
        raise NotLossless("$.lock", "is not JSON")

    head = ManifestHead(kind=Kind.MODEL, instance="policy", checkpoint_id="c1")
    with pytest.raises(NotLossless, match=r"\$\.lock"):
        run(disk.view("policy"), write_records(WHERE, head, source, AbortFlag(), "00000001"))
    assert disk.tree(RUN) == {}


def test_every_flipped_bit_is_found() -> None:
    disk = SimFileSystem(random.Random(0))
    disk.make_dirs(RUN)
    write(disk)
    for path, content in disk.tree(RUN).items():
        for bit in range(0, 8 * len(content), 3):
            disk.flip(path, bit)
            # No bit of white space or of a digit's case is free to differ: there is none, or the name gives it away.
            with pytest.raises(InvalidCheckpointState, match=DIRECTORY):
                read(disk)
            disk.flip(path, bit)
    assert len(read(disk)) == 3


def test_what_is_missing_or_anothers_is_named_with_its_mend(disk: SimFileSystem) -> None:
    with pytest.raises(InvalidCheckpointState, match=r"manifest\.json: is missing.*put it back from a copy"):
        read(disk)
    manifest = write(disk)
    for kind, instance, checkpoint_id in ((Kind.AGENT, "policy", "c1"), (Kind.MODEL, "other", "c1")):
        with pytest.raises(InvalidCheckpointState, match="is missing"):
            run(disk.view("x"), read_records(WHERE, kind, instance, checkpoint_id, lambda _: True))
    with pytest.raises(InvalidCheckpointState, match="not to model policy of checkpoint c2"):
        run(disk.view("x"), read_records(WHERE, Kind.MODEL, "policy", "c2", lambda _: True))
    records_path = layout.join(DIRECTORY, manifest.records_file)
    fs = disk.view("x")
    fs.append(records_path).write(b'{"more":1}\n')
    with pytest.raises(InvalidCheckpointState, match="do not match the digest"):
        read(disk)
    fs.append(records_path).truncate(10)
    with pytest.raises(InvalidCheckpointState, match="damaged"):
        read(disk)
    fs.unlink(records_path)
    with pytest.raises(InvalidCheckpointState, match=r"records-.*is missing"):
        read(disk)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema version 2 is not 1; use the release that wrote it"),
        ({"record_count": -1}, "record_count is -1"),
        ({"record_count": 2}, "holds 3 records and the manifest says 2"),
        ({"records_file": "../../../../LATEST"}, "do not belong together"),
        ({"surprise": 1}, "is not a manifest"),
        ({"kind": "judge"}, "is not a manifest"),
        ({"checkpoint_id": "../.."}, "checkpoint_id '../..' must start with a letter"),
        ({"checkpoint_id": "c\n1"}, "checkpoint_id"),
        ({"instance": "../policy"}, "server name '../policy' must start with a letter"),
    ],
)
def test_a_manifest_that_lies_is_refused(change: dict[str, Any], message: str) -> None:
    disk = SimFileSystem(random.Random(0))
    disk.make_dirs(RUN)
    write(disk)
    fs = disk.view("liar")
    value = json.loads(disk.tree(RUN)[MANIFEST])
    fs.unlink(MANIFEST)
    fs.create(MANIFEST).write(json.dumps({**value, **change}))
    with pytest.raises(InvalidCheckpointState, match=message):
        read(disk)


def test_the_verifier_says_all_that_is_wrong() -> None:
    disk = SimFileSystem(random.Random(0))
    disk.make_dirs(RUN)
    checkpoint(disk, "c1", Tokens())
    assert run(disk.view("x"), verify_checkpoint(WHERE)).sound
    for path in disk.tree(RUN):
        if "records-" in path:
            disk.flip(path, 40)
    disk.view("x").unlink(layout.collection(WHERE))
    report = run(disk.view("x"), verify_checkpoint(WHERE))
    assert not report.sound
    assert [problem.partition(":")[0].rpartition("/")[2][:8] for problem in report.problems] == [
        "collecti",
        "records-",
        "records-",
    ]


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 101, "é"])
def test_a_server_name_that_is_no_directory_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="server name"):
        layout.participant_dir(WHERE, Kind.MODEL, name)
