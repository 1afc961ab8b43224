"""The ledger under plans of operations by two servers, with processes that die and power that goes.

Each promise that the plans check is broken once, and is then found broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from gym_ckpt.core.lineage import LedgerRow
from gym_ckpt.ports import File, FileSystem
from gym_ckpt.storage.ledger import Start, restoring, retiring, rows
from gym_ckpt.storage.ledger.names import Ending, attempt_in, path_of
from gym_ckpt.types import EpisodeId
from tests.property.ledger_world import ATTEMPTS, ROLLOUTS, Op, World
from tests.unit.ledger.given import changed

OPS = st.builds(
    Op,
    what=st.sampled_from(
        ["append"] * 6
        + ["retire", "start", "start", "discard", "discard", "forget", "save", "restore", "restore", "end"]
    ),
    server=st.integers(0, 1),
    rollout=st.integers(0, len(ROLLOUTS) - 1),
    back=st.sampled_from([0, 0, 0, 1, 2]),
    call=st.integers(0, 15),
    stay=st.none() | st.integers(0, 12),
    others=st.integers(0, 4),
    fault=st.none() | st.integers(1, 9),
)
PLANS = st.tuples(st.lists(OPS, min_size=1, max_size=25), st.integers(0, 2**16), st.booleans())
Plan = tuple[list[Op], int, bool]


def follow(plan: Plan, world: type[World] = World) -> None:
    ops, seed, journalled = plan
    made = world(seed, journalled)
    for op in ops:
        made.step(op)
        event(op.what)
    made.finish()
    for name in ROLLOUTS:
        for episode in made.of(name):
            made.look(episode)
    assert max(made.attempt.values()) <= ATTEMPTS
    made.step(Op("save", call=15))
    made.step(Op("restore"))


@given(PLANS)
@settings(max_examples=400, deadline=None)
def test_two_servers_share_a_ledger(plan: Plan) -> None:
    follow(plan)


# ----------------------------------------------------------------------------------------------------- ablations


class Sloppy:
    """A file system that forgets one duty."""

    def __init__(self, inner: FileSystem, duty: str) -> None:
        self._inner = inner
        self._duty = duty

    def __getattr__(self, name: str) -> Any:
        if name == self._duty:
            return lambda *_: None
        return getattr(self._inner, name)

    def append(self, path: str) -> File:
        file = self._inner.append(path)
        if self._duty == "fsync":
            file.fsync = lambda: None  # type: ignore[method-assign]
        return file

    def try_lock(self, path: str, note: str) -> Any:
        if self._duty == "lock":
            return Unlocked()
        return self._inner.try_lock(path, note)


class Unlocked:
    def release(self) -> None:
        pass


def sloppy(duty: str) -> type[World]:
    class SloppyWorld(World):
        def view(self, server: str) -> FileSystem:
            return Sloppy(super().view(server), duty)

    return SloppyWorld


Patch = Callable[[pytest.MonkeyPatch], None]


def fences_stay(patch: pytest.MonkeyPatch) -> None:
    real = retiring.unlink
    patch.setattr(restoring, "unlink", lambda fs, path: None if path.endswith(Ending.FENCE) else real(fs, path))


def clearing_stops_at_the_target(patch: pytest.MonkeyPatch) -> None:
    def clear(fs: FileSystem, work: restoring.Restore, episode: EpisodeId) -> None:
        for attempt, ending in work.found[episode.rollout_id]:
            if attempt == episode.attempt + 1:
                retiring.unlink(fs, path_of(work.directory, episode.next(), ending))

    patch.setattr(restoring, "_clear", clear)


def look_alikes_are_cleared(patch: pytest.MonkeyPatch) -> None:
    real = attempt_in
    patch.setattr(restoring, "attempt_in", lambda key: ("r", 2) if key.startswith("r-a2x") else real(key))


def keys_are_rewritten(patch: pytest.MonkeyPatch) -> None:
    real = LedgerRow.encode

    def put(fs: FileSystem, work: restoring.Restore, episode: EpisodeId) -> None:
        record = work.records.get(episode)
        if record is not None:
            moved = [changed(row, capture_key=episode.next().key) for row in record.rows]
            data = b"".join(real(row) + b"\n" for row in moved)
            restoring._put(fs, path_of(work.directory, episode.next(), Ending.ROWS), data)

    patch.setattr(restoring, "_import", put)


def no_marker(directory: str, episode: EpisodeId, marked: Any = None) -> Any:
    def job(fs: FileSystem) -> Any:
        yield "ledger.start"
        return Start.STARTED

    return job


ABLATIONS: dict[str, Patch] = {
    "rows are taken in spite of a fence": lambda patch: patch.setattr(rows, "_refused", lambda *_: None),
    "a retire makes no fence": lambda patch: patch.setattr(retiring, "fence", lambda *_: None),
    "a restore retires nothing": lambda patch: patch.setattr(restoring, "_retire", lambda *_: None),
    "a restore leaves fences at the target": fences_stay,
    "a restore leaves later attempts": clearing_stops_at_the_target,
    "a restore takes look-alikes for its own": look_alikes_are_cleared,
    "a restore gives rows a new key": keys_are_rewritten,
    "rows are written twice": lambda patch: patch.setattr(rows, "written_before", lambda *_: False),
    "no marker is made": lambda patch: patch.setattr("gym_ckpt.storage.ledger.start", no_marker),
    "poison hides nothing": lambda patch: patch.setattr(rows, "_hidden", lambda _: set()),
}


def found_broken(world: type[World] = World) -> None:
    hunt = settings(
        max_examples=1500,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(PLANS)(lambda plan: follow(plan, world)))
    with pytest.raises(BaseException) as caught:
        hunt()
    assert isinstance(caught.value, (AssertionError, ExceptionGroup)), repr(caught.value)


@pytest.mark.parametrize("case", ABLATIONS)
def test_each_promise_broken_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ABLATIONS[case](monkeypatch)
    found_broken()


@pytest.mark.parametrize("duty", ["fsync", "fsync_dir", "lock"])
def test_each_duty_to_the_disk_left_out_is_found(duty: str) -> None:
    found_broken(sloppy(duty))
