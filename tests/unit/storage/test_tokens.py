"""The token store on files: what was put comes back, whatever else happens; damage shows. Both file systems."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import Steps
from gym_ckpt.storage.tokens import (
    StagedDamaged,
    StagedMissing,
    decode,
    drop,
    encode,
    get,
    keep,
    open_store,
    path_of,
    stage,
    take_over,
)
from gym_ckpt.wire.digests import InvalidStaging, StagedCall, staging_digest
from sim.disk import SimFileSystem
from tests.unit.ledger.given import broken, staged
from tests.unit.storage.driver import PowerCut, Tokens, calm, run, strike
from tests.unit.wire.test_staging_digests import calls

DIRECTORY = "/shared/tokens"
ONE, TWO = "policy", "policy2"


def put(directory: str, call: StagedCall, token: str) -> Job[str]:
    """Stage and keep, as one call does."""

    def job(fs: FileSystem) -> Steps[str]:
        staged = yield from stage(directory, ONE, call, token)(fs)
        yield from keep(directory, staged)(fs)
        return staged.key

    return job


def waiting(fs: FileSystem, directory: str, instance: str = ONE) -> list[str]:
    return fs.listdir(f"{directory}/staged/{instance}")


def opened(seed: int) -> SimFileSystem:
    disk = SimFileSystem(random.Random(seed), journalled=False)
    disk.make_dirs("/shared")
    for name in (ONE, TWO):
        run(disk.view("setup"), open_store(DIRECTORY, name))
    return disk


@pytest.fixture(params=["simulated", "real"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FileSystem, str]]:
    if request.param == "real":
        run(PosixFileSystem(), open_store(str(tmp_path / "tokens"), ONE))
        yield PosixFileSystem(), str(tmp_path / "tokens")
    else:
        yield opened(0).view("one"), DIRECTORY


def test_put_twice_is_one_file_and_get_gives_it_back(store: tuple[FileSystem, str]) -> None:
    fs, directory = store
    tokens = Tokens()
    call = staged()
    key = run(fs, put(directory, call, tokens()))
    assert run(fs, put(directory, call, tokens())) == key == staging_digest(call)
    assert run(fs, get(directory, key)) == call
    other = run(fs, put(directory, staged("c1"), tokens()))
    assert other != key and run(fs, get(directory, other)) == staged("c1")
    assert waiting(fs, directory) == []


def test_what_is_staged_is_found_by_nobody_until_it_is_kept_and_can_be_dropped(store: tuple[FileSystem, str]) -> None:
    fs, directory = store
    tokens = Tokens()
    one, two = (run(fs, stage(directory, ONE, staged(), tokens())) for _ in range(2))
    assert one.key == two.key and one.path != two.path and len(waiting(fs, directory)) == 2
    with pytest.raises(StagedMissing):
        run(fs, get(directory, one.key))
    run(fs, keep(directory, one))
    run(fs, drop(two))
    run(fs, drop(one))
    assert waiting(fs, directory) == [] and run(fs, get(directory, one.key)) == staged()


def test_a_dead_servers_staged_calls_go_with_its_next_life_and_a_living_ones_stay() -> None:
    for journalled in (False, True):
        disk = SimFileSystem(random.Random(1), journalled=journalled)
        disk.make_dirs("/shared")
        tokens = Tokens()
        for name in (ONE, TWO, "gone"):
            run(disk.view(name), open_store(DIRECTORY, name))
            run(disk.view(name), take_over(DIRECTORY, name))
            run(disk.view(name), stage(DIRECTORY, name, staged(), tokens()))
        kept = run(disk.view(ONE), put(DIRECTORY, staged("c1"), tokens()))
        with pytest.raises(OSError, match="another server"):
            run(disk.view("impostor"), take_over(DIRECTORY, ONE))
        for name in (ONE, "gone"):
            disk.crash(name)
        run(disk.view(ONE), open_store(DIRECTORY, ONE))
        run(disk.view(ONE), take_over(DIRECTORY, ONE))
        left = {name: len(waiting(disk.view("x"), DIRECTORY, name)) for name in (ONE, TWO, "gone")}
        assert left == {ONE: 0, TWO: 1, "gone": 0}
        disk.crash(ONE)
        assert waiting(disk.view("x"), DIRECTORY, "gone") == [], "its directory may have a new owner: gone is gone"
        assert run(disk.view("x"), get(DIRECTORY, kept)) == staged("c1")


@pytest.mark.parametrize("key", ["", "x", "../../etc/passwd", "0" * 64, "A" * 64])
def test_a_key_that_is_none_of_ours_is_missing(store: tuple[FileSystem, str], key: str) -> None:
    fs, directory = store
    with pytest.raises(StagedMissing):
        run(fs, get(directory, key))


def test_what_breaks_a_rule_is_not_kept(store: tuple[FileSystem, str]) -> None:
    fs, directory = store
    with pytest.raises(InvalidStaging):
        run(fs, put(directory, broken(staged(), log_probabilities=(0.0, 0.0, -1.0, float("-inf"))), "0" * 16))
    assert waiting(fs, directory) == []


@given(calls())
@settings(max_examples=60)
def test_any_call_survives_its_bytes(call: StagedCall) -> None:
    assert decode(encode(call), staging_digest(call)) == call


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    call = staged()
    data, key = encode(call), staging_digest(call)
    for at in range(len(data)):
        for bit in (0, 6):
            spoiled = bytearray(data)
            spoiled[at] ^= 1 << bit
            with pytest.raises(StagedDamaged):
                decode(bytes(spoiled), key)
        with pytest.raises(StagedDamaged):
            decode(data[:at], key)
    with pytest.raises(StagedDamaged):
        decode(data + b"\0", key)


def test_damage_at_rest_is_mended_by_staging_again() -> None:
    disk = opened(0)
    key = run(disk.view("one"), put(DIRECTORY, staged(), "0" * 16))
    disk.flip(path_of(DIRECTORY, key), 1000)
    with pytest.raises(StagedDamaged):
        run(disk.view("one"), get(DIRECTORY, key))
    run(disk.view("one"), put(DIRECTORY, staged(), "1" * 16))
    assert run(disk.view("one"), get(DIRECTORY, key)) == staged()


@pytest.mark.parametrize("what", ["crash", "error"])
def test_a_put_that_fails_at_any_call_can_be_repeated_and_an_acknowledged_one_stays(what: str) -> None:
    struck = 0
    for call in range(24):
        for after in (False, True):
            disk = opened(call)
            tokens = Tokens()
            error = PowerCut if what == "crash" else (lambda: OSError(errno.ENOSPC, "no space"))
            hit = strike(disk, call, after=after, error=error)
            try:
                run(disk.view("one"), put(DIRECTORY, staged(), tokens()))
                acknowledged = True
            except (PowerCut, OSError):
                acknowledged = False
            calm(disk)
            struck += hit()
            if not acknowledged and what == "crash":
                disk.crash("one")
            if not acknowledged:
                run(disk.view("one"), put(DIRECTORY, staged(), tokens()))
            disk.crash("one")
            assert run(disk.view("two"), get(DIRECTORY, staging_digest(staged()))) == staged()
    assert struck >= 10
