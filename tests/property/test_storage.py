"""Storage against a small model, under plans of commits, publications, crashes, errors and aborts.

A plan is data: operations, each with at most one fault, and a tape from which the disk reads what a crash spares. The
model knows which manifests and which pointer are certain and which are possible, no more. INV-48, 49, 50, 51.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gym_ckpt.errors import InvalidCheckpointState, ScopeMismatch
from gym_ckpt.storage import (
    AbortFlag,
    ManifestHead,
    WriteAborted,
    latest,
    layout,
    prune,
    publish,
    published,
    read_records,
    verify_checkpoint,
    write_records,
)
from gym_ckpt.types import Kind
from gym_ckpt.wire import json
from sim.disk import SimFileSystem
from tests.unit.storage.driver import (
    CONTROLLER,
    PARTICIPANTS,
    RUN,
    PowerCut,
    Tokens,
    assert_records_stand_behind_manifests,
    calm,
    run,
    strike,
)

NODES = (*(instance for _, instance in PARTICIPANTS), CONTROLLER)
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES)


class Tape(random.Random):
    """Chance read from a list, so that it shrinks; all is lost once the list is over."""

    def __init__(self, fates: Sequence[int]) -> None:
        super().__init__(0)
        self._fates = list(fates)

    def _next(self) -> int:
        return self._fates.pop(0) if self._fates else 0

    def random(self) -> float:
        return 1 - self._next() / 256  # 1 is "lost"

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is None and step == 1
        return self._next() % start

    def randint(self, a: int, b: int) -> int:
        return a + self._next() % (b - a + 1)

    def choice(self, seq: Any) -> Any:
        return seq[self._next() % len(seq)]


@dataclass(frozen=True)
class Fault:
    """At the `call`-th file-system call of an operation; for an abort, at that step of it."""

    what: str
    call: int
    after: bool
    alone: bool
    """Only the node at work crashes; otherwise all do."""
    code: int


@dataclass(frozen=True)
class Op:
    """One checkpoint attempt (`commit`s, then a publication, then pruning), or a commit repeated."""

    what: str
    sizes: tuple[int, int]
    fault: Fault | None


FAULTS = st.builds(
    Fault,
    what=st.sampled_from(["crash", "error", "abort"]),
    call=st.integers(0, 130),
    after=st.booleans(),
    alone=st.booleans(),
    code=st.sampled_from(ERRORS),
)
OPS = st.builds(
    Op,
    what=st.sampled_from(["checkpoint", "checkpoint", "same commit", "other commit"]),
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    fault=st.none() | FAULTS,
)


@dataclass
class Attempt:
    """What is known of one checkpoint id."""

    checkpoint_id: str
    lines: dict[str, list[bytes]]
    published: bool = False


@dataclass
class World:
    """The system under test beside its model."""

    disk: SimFileSystem
    keep: int
    tokens: Tokens = field(default_factory=Tokens)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    certain: str | None = None
    """The last checkpoint whose publication was acknowledged or observed after a crash."""
    unsure: str | None = None
    """The one that the pointer names, where a crash may yet bring back the pointer before."""
    failed: set[str] = field(default_factory=set)
    """What the controller remembers of publications that failed, in this life."""
    order: list[str] = field(default_factory=list)
    """Published ids, oldest first, as the pointer says; without one, as a restart would say."""
    fixed: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of acknowledged commits by participant directory: they never change (INV-49)."""
    busy: str = CONTROLLER

    def step(self, op: Op) -> None:
        fault = op.fault
        if fault is not None and fault.what != "abort":

            def error() -> BaseException:
                return PowerCut() if fault.what == "crash" else OSError(fault.code, os.strerror(fault.code))

            strike(self.disk, fault.call, after=fault.after, error=error)
        maybe: str | None = None
        cut: list[str] = []
        try:
            if op.what == "checkpoint":
                maybe = f"c{len(self.attempts)}"
                self.take(maybe, op)
            else:
                self.again(op)
        except PowerCut:
            event("crash")
            cut = [self.busy] if fault is not None and fault.alone else list(NODES)
            for node in cut:
                self.disk.crash(node)
        except (OSError, InvalidCheckpointState) as trouble:
            event(f"failed: {type(trouble).__name__}")
            assert fault is not None and fault.what == "error", "trouble without a fault"
        except WriteAborted:
            event("aborted")
        calm(self.disk)
        self.observe(maybe, restarted=CONTROLLER in cut)

    def take(self, checkpoint_id: str, op: Op) -> None:
        lines = {
            instance: [json.dumps({"id": checkpoint_id, "of": instance, "n": n}) for n in range(size)]
            for (_, instance), size in zip(PARTICIPANTS, op.sizes, strict=True)
        }
        self.attempts[checkpoint_id] = Attempt(checkpoint_id, lines)
        abort_at = op.fault.call % 24 if op.fault is not None and op.fault.what == "abort" else None
        for kind, instance in PARTICIPANTS:
            self.commit(checkpoint_id, kind, instance, lines[instance], abort_at)
        self.busy = CONTROLLER
        run(
            self.disk.view(CONTROLLER),
            publish(RUN, checkpoint_id, {"rows": [checkpoint_id]}, self.tokens(), self.failed),
        )
        self.certain, self.unsure = checkpoint_id, None
        pruned = run(self.disk.view(CONTROLLER), prune(RUN, self.keep, failed=self.failed))
        if not pruned.failed:
            kept = run(self.disk.view(CONTROLLER), published(RUN)).checkpoint_ids
            left = {path.split("/")[4] for path in self.disk.tree(layout.checkpoints_dir(RUN))}
            assert left == set(kept), "partial directories are gone, published ones are not (INV-51)"
            assert len(kept) == min(self.keep, len({*self.order, checkpoint_id})), "exactly those kept remain (INV-51)"
            assert not [path for path in self.disk.tree(RUN) if path.endswith(".tmp")]

    def commit(self, checkpoint_id: str, kind: Kind, instance: str, lines: list[bytes], abort_at: int | None) -> None:
        self.busy = instance
        where = layout.checkpoint_dir(RUN, checkpoint_id)
        directory = layout.participant_dir(where, kind, instance)
        flag, stopped, steps = AbortFlag(), False, 0

        def between(_step: str) -> None:
            nonlocal stopped, steps
            if steps == abort_at:
                stopped = flag.abort()
            steps += 1

        head = ManifestHead(kind=kind, instance=instance, checkpoint_id=checkpoint_id)
        try:
            made = run(
                self.disk.view(instance), write_records(where, head, lines, flag, self.tokens()), between=between
            )
        except WriteAborted:
            assert stopped
            assert layout.join(directory, layout.MANIFEST) not in self.disk.tree(RUN), "INV-50"
            raise
        assert not stopped, "INV-50"
        files = (layout.join(directory, layout.MANIFEST), layout.join(directory, made.records_file))
        self.fixed[directory] = {path: self.disk.durable_tree(RUN)[path] for path in files}

    def again(self, op: Op) -> None:
        """A commit repeated into a published checkpoint, with the same records or with others."""
        if self.certain is None:
            return
        (kind, instance), attempt = PARTICIPANTS[op.sizes[0] % 2], self.attempts[self.certain]
        lines = attempt.lines[instance]
        if op.what == "same commit":
            self.commit(self.certain, kind, instance, lines, None)
            event("same commit")
        else:
            with pytest.raises((ScopeMismatch, OSError, InvalidCheckpointState)) as caught:
                self.commit(self.certain, kind, instance, [*lines, b'{"more":1}'], None)
            event(f"other commit: {caught.type.__name__}")
            if not isinstance(caught.value, ScopeMismatch):
                raise caught.value

    def observe(self, maybe: str | None, *, restarted: bool) -> None:
        """What must hold once the faults are over; what was uncertain becomes known when the controller restarts."""
        fs = self.disk.view("observer")
        named = run(fs, latest(RUN))
        assert named in {self.certain, self.unsure, maybe} or (named is None and self.certain is None), "INV-48"
        if maybe is not None and named != maybe:
            assert self.certain != maybe, "an acknowledged publication was lost"
            self.failed.add(maybe)
        present = run(fs, published(RUN)).checkpoint_ids
        if restarted:
            self.certain, self.unsure = named, None
            self.failed.clear()
        else:
            self.unsure = None if named == self.certain else named
        if named is not None:
            self.order = (
                [*self.order[: self.order.index(named)], named] if named in self.order else [*self.order, named]
            )
        elif restarted:
            self.order = list(reversed(present))
        sound = [name for name in present if run(fs, verify_checkpoint(layout.checkpoint_dir(RUN, name))).sound]
        expected = list(reversed(self.order))[: self.keep]
        if named is None:
            # A crash before the first pointer may leave a collection: its checkpoint is whole, and a restart uses it.
            assert sound == list(present) and sound[: self.keep][: len(expected)] == expected
        else:
            assert sound[:1] == [named]
            assert sound[: self.keep] == expected, "a failed checkpoint never harms those before it (INV-51)"
        for name in expected:
            for kind, instance in PARTICIPANTS:
                read = run(fs, read_records(layout.checkpoint_dir(RUN, name), kind, instance, name, lambda _: True))
                assert [json.dumps(record) for record in read[1]] == self.attempts[name].lines[instance]
        assert_records_stand_behind_manifests(self.disk)
        tree = self.disk.tree(RUN)
        for directory, files in self.fixed.items():
            if directory.split("/")[4] in expected:
                assert {path: tree.get(path) for path in files} == files, "INV-49"


@given(
    plan=st.lists(OPS, min_size=1, max_size=6),
    tape=st.lists(st.integers(0, 255), max_size=60),
    journalled=st.booleans(),
    links=st.booleans(),
    keep=st.integers(1, 3),
)
@settings(max_examples=300, deadline=None)
def test_a_plan_of_checkpoints_crashes_and_errors(
    plan: list[Op], tape: list[int], journalled: bool, links: bool, keep: int
) -> None:
    disk = SimFileSystem(Tape(tape), journalled=journalled)
    disk.links = links
    disk.make_dirs(layout.checkpoints_dir(RUN))
    world = World(disk, keep)
    for op in plan:
        world.step(op)
    # Whatever happened, the next checkpoint is possible, and outlives a crash of everything.
    world.step(Op("checkpoint", (2, 1), None))
    assert world.certain == f"c{len(world.attempts) - 1}"
    for node in NODES:
        disk.crash(node)
    world.observe(None, restarted=True)
