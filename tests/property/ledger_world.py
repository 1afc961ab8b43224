"""Several servers on one ledger, beside a model that fits on a page: plans of operations, interleavings and crashes.

An operation is a job that may be left standing at a step while others go on; a lock makes its moment that of its end
(of its last locked step, for those that sync after it). The model knows what is certain: rows acknowledged, fences,
markers. After a power cut it asks only for what was promised to be durable. INV-16, 19, 36, 38, 42, 43, 62, 63, 64, 65.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from gym_ckpt.core.lineage import LedgerRow, Poison, Reason, RowConflict
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage import ledger
from gym_ckpt.storage.ledger import BUSY, Appended, Discarded, Exported, Start
from gym_ckpt.types import EpisodeId
from sim.disk import SimFileSystem
from tests.unit.ledger.given import DIR, a_row, changed
from tests.unit.storage.driver import run

SERVERS = ("one", "two")
ROLLOUTS = ("r", "r-1", "r-a2x", "r-a2x-b")
ATTEMPTS = 5


@dataclass(frozen=True)
class Op:
    """`back`: how many attempts before the present one. `stay`: steps after which the job is left standing.

    `others`: steps that every job left standing then takes. `fault`: step at which the file system fails.
    """

    what: str
    server: int = 0
    rollout: int = 0
    back: int = 0
    call: int = 0
    stay: int | None = None
    others: int = 0
    fault: int | None = None


@dataclass
class Key:
    """What is certain about one capture key."""

    rows: dict[str, LedgerRow] = field(default_factory=dict)
    poison: set[str] = field(default_factory=set)
    fenced: bool = False
    started: bool = False
    durable: bool = True
    """Rows outlive a power cut: false between an import and the first row after it."""
    open: set[str] = field(default_factory=set)
    """Calls whose row a crash left undecided."""
    unsynced: set[str] = field(default_factory=set)
    """Calls whose row is there to be seen and was never acknowledged."""


@dataclass
class Running:
    op: Op
    episode: EpisodeId
    steps: Generator[str, None, Any]
    taken: int = 0
    removed: bool = False
    settled: bool = False
    """Its effect is in the model already."""


class World:
    """The ledger under test and its model."""

    def __init__(self, seed: int, journalled: bool) -> None:
        self.disk = SimFileSystem(random.Random(seed), journalled=journalled)
        self.disk.make_dirs("/shared")
        self.files: dict[str, FileSystem] = {}
        self.keys: dict[EpisodeId, Key] = {}
        self.attempt = dict.fromkeys(ROLLOUTS, 0)
        self.standing: list[Running] = []
        self.saved: tuple[list[EpisodeId], list[Exported]] | None = None
        self.restored: set[EpisodeId] = set()
        self.boot()

    def boot(self) -> None:
        for server in SERVERS:
            self.files[server] = self.view(server)
            run(self.files[server], ledger.open_ledger(DIR))

    def view(self, server: str) -> FileSystem:
        return self.disk.view(server)

    def key(self, episode: EpisodeId) -> Key:
        return self.keys.setdefault(episode, Key())

    def of(self, rollout_id: str) -> list[EpisodeId]:
        return [EpisodeId(rollout_id, attempt) for attempt in range(ATTEMPTS + 1)]

    # ------------------------------------------------------------------------------------------- operations

    def step(self, op: Op) -> None:
        rollout_id = ROLLOUTS[op.rollout]
        episode = EpisodeId(rollout_id, max(0, self.attempt[rollout_id] - op.back))
        if op.what == "save":
            self.save(op)
        elif op.what == "restore":
            self.restore(op)
        elif op.what == "end":
            self.end(SERVERS[op.server])
        else:
            jobs: dict[str, Job[Any]] = {
                "append": ledger.append_row(DIR, episode, self.row(episode, op)),
                "retire": ledger.retire(DIR, [episode]),
                "start": ledger.start(DIR, episode),
                "discard": ledger.discard_unstarted(DIR, [episode]),
                "forget": ledger.forget(DIR, [episode]),
            }
            if op.what == "forget" and not self.key(episode).fenced:
                return  # only what is over is forgotten
            if op.what == "discard" and episode not in self.restored:
                return
            self.standing.append(Running(op, episode, jobs[op.what](self.files[SERVERS[op.server]])))
            self.advance(self.standing[-1], op.stay)
        for job in list(self.standing):
            self.advance(job, op.others)

    def row(self, episode: EpisodeId, op: Op) -> LedgerRow:
        row = a_row(f"c{op.call % 4}", episode)
        return changed(row, response_id="another") if op.call >= 8 else row

    def advance(self, job: Running, steps: int | None) -> None:
        while job in self.standing and (steps is None or steps > 0):
            steps = None if steps is None else steps - 1
            job.taken += 1
            try:
                if job.op.fault == job.taken and job.op.what == "append":
                    name = job.steps.throw(OSError(errno.EIO, "I/O"))
                else:
                    name = next(job.steps)
            except StopIteration as stop:
                self.standing.remove(job)
                self.ended(job, stop.value)
            except RowConflict:
                self.standing.remove(job)
                known = self.key(job.episode)
                assert known.rows.get(f"c{job.op.call % 4}") != self.row(job.episode, job.op) and not known.fenced
            except OSError:
                self.standing.remove(job)
                self.failed(job)
            else:
                job.removed = job.removed or name == "ledger.remove"
                if name == "ledger.sync_dir" and job.op.what in ("retire", "forget") and job.removed:
                    self.settle(job)

    def settle(self, job: Running) -> None:
        job.settled = True
        for attempt in range(job.episode.attempt + 1):
            self.keys[EpisodeId(job.episode.rollout_id, attempt)] = Key(fenced=job.op.what == "retire")

    def ended(self, job: Running, result: Any) -> None:
        known = self.key(job.episode)
        if result is BUSY or result == [job.episode] or (isinstance(result, Discarded) and result.busy):
            assert self.standing or result is not BUSY, "a lock is held by nobody"
            return
        if job.op.what == "append":
            row = self.row(job.episode, job.op)
            if known.fenced:
                assert result is Appended.FENCED, "INV-36, INV-38: a row of a retired attempt"
            elif row.model_call_id in known.poison:
                assert result is Appended.POISONED
            elif row.model_call_id in known.open:
                assert result in (Appended.WRITTEN, Appended.REPEATED)
            else:
                there = known.rows.get(row.model_call_id)
                assert result is (Appended.REPEATED if there else Appended.WRITTEN), "write-once, and no fence (INV-62)"
                assert there in (None, row), "a different row was taken for the same"
            if result in (Appended.WRITTEN, Appended.REPEATED):
                known.rows[row.model_call_id] = row
                known.open.discard(row.model_call_id)
                known.durable = True
                known.unsynced.clear()
        elif job.op.what == "start":
            expected = Start.RETIRED if known.fenced else Start.AGAIN if known.started else Start.STARTED
            assert result is expected, "INV-43"
            known.started = known.started or not known.fenced
        elif job.op.what == "discard":
            assert (result.started == [job.episode]) == known.started, "INV-42: started, and deleted"
            if not known.started:
                self.keys[job.episode] = Key(fenced=known.fenced)
        else:
            assert job.settled
        self.look(job.episode)

    def failed(self, job: Running) -> None:
        """An append met an error: its call is poisoned, and there is no row of it (INV-19)."""
        call_id = f"c{job.op.call % 4}"
        known = self.key(job.episode)
        poison = Poison(call_id, Reason.ROW_WRITE_FAILED)
        done = run(self.files[SERVERS[job.op.server]], ledger.append_poison(DIR, job.episode, poison))
        if done in (Appended.WRITTEN, Appended.REPEATED):
            known.poison.add(call_id)
            known.rows.pop(call_id, None)
            known.open.discard(call_id)
        self.look(job.episode)

    def look(self, episode: EpisodeId) -> None:
        """What a reader sees is what the model says."""
        known = self.key(episode)
        seen = {row.model_call_id: row for row in run(self.view("reader"), ledger.read_lineage(DIR, episode)).rows}
        if self.standing:
            return  # somebody else may be at it
        unknown = set(seen) - set(known.rows)
        assert unknown <= known.open, f"rows of nobody under {episode}"
        assert all(seen.get(call_id) == row for call_id, row in known.rows.items()), f"rows lost under {episode}"
        for call_id in unknown:
            known.rows[call_id] = seen[call_id]
            known.unsynced.add(call_id)
        known.open.clear()

    # -------------------------------------------------------------------------- checkpoints, crashes, restores

    def finish(self) -> None:
        for job in list(self.standing):
            self.advance(job, None)
        assert not self.standing

    def save(self, op: Op) -> None:
        self.finish()
        scope = [EpisodeId(name, self.attempt[name]) for at, name in enumerate(ROLLOUTS) if op.call >> at & 1]
        scope = [each for each in scope if not self.key(each).fenced and each.attempt < ATTEMPTS]
        found = run(self.files[SERVERS[op.server]], ledger.export(DIR, scope))
        told = {each.episode: {row.model_call_id: row for row in each.rows} for each in found}
        for episode in scope:
            self.look(episode)
            assert told.get(episode, {}) == self.key(episode).rows, "an export is what was delivered (INV-17)"
        self.saved = (scope, found)

    def end(self, server: str) -> None:
        """The process dies and comes back; the host lives, and so does what was written."""
        for job in list(self.standing):
            if SERVERS[job.op.server] == server:
                self.standing.remove(job)
                job.steps.close()
                self.left_open(job)
        self.disk.end(server)
        self.files[server] = self.view(server)
        run(self.files[server], ledger.open_ledger(DIR))

    def left_open(self, job: Running) -> None:
        """A job stopped somewhere: an append may have happened; anything else is done again, as its caller does."""
        if job.op.what == "append":
            known = self.key(job.episode)
            if not known.fenced and f"c{job.op.call % 4}" not in known.rows:
                known.open.add(f"c{job.op.call % 4}")
        elif job.op.what in ("retire", "forget"):
            again = Running(Op(job.op.what, 1 - job.op.server), job.episode, iter(()))  # type: ignore[arg-type]
            maker = ledger.retire if job.op.what == "retire" else ledger.forget
            again.steps = maker(DIR, [job.episode])(self.files[SERVERS[1 - job.op.server]])
            self.finish()
            self.disk.end(SERVERS[job.op.server])
            self.standing.append(again)
            self.finish()
        else:  # a marker that may stand, or an attempt half deleted: nobody relies on it any more
            self.disk.end(SERVERS[job.op.server])
            self.finish()
            self.wipe(job.episode.rollout_id)

    def wipe(self, rollout_id: str) -> None:
        run(self.view("janitor"), ledger.forget(DIR, [EpisodeId(rollout_id, ATTEMPTS)]))
        self.keys = {each: known for each, known in self.keys.items() if each.rollout_id != rollout_id}

    def power_cut(self) -> None:
        for job in self.standing:
            job.steps.close()
            self.lost(job)
        self.standing.clear()
        for server in (*SERVERS, "reader", "janitor"):
            self.disk.crash(server)
        for episode, known in sorted(self.keys.items()):
            seen = {row.model_call_id for row in run(self.view("reader"), ledger.read_lineage(DIR, episode)).rows}
            if known.fenced:
                name = f"{DIR}/{episode.key}.lineage.fence"
                assert self.disk.tree(DIR).get(name) == b"" and not seen, "a retire did not last (INV-36)"
            elif known.durable:
                assert set(known.rows) - known.unsynced <= seen, "an acknowledged row is gone (INV-16)"
                assert seen <= set(known.rows) | known.open, "a row of nobody"
        self.boot()

    def lost(self, job: Running) -> None:
        """Power went in the middle of a job: nothing that it did was promised."""
        if job.op.what == "append":
            self.key(job.episode).open.add(f"c{job.op.call % 4}")
        else:
            for attempt in range(job.episode.attempt + 1):
                self.keys.pop(EpisodeId(job.episode.rollout_id, attempt), None)

    def restore(self, op: Op) -> None:
        """Everything dies and comes back; both servers restore, in step; the power may go once more in between."""
        self.power_cut()
        scope, records = self.saved or ([], [])
        for name in ROLLOUTS:
            if name not in {episode.rollout_id for episode in scope}:
                self.wipe(name)  # it starts from its input
                self.attempt[name] = 0
        if op.stay is not None:
            self.both_restore(scope, records, op.others, cut=op.stay)
            for server in SERVERS:
                self.disk.crash(server)
            self.boot()
        self.both_restore(scope, records, op.others, cut=None)
        self.restored = {episode.next() for episode in scope}
        rows = {record.episode: record for record in records}
        for episode in scope:
            expected: dict[str, bytes] = {
                f"{EpisodeId(episode.rollout_id, n).key}.lineage.fence": b"" for n in range(episode.attempt + 1)
            }
            record = rows.get(episode)
            if record is not None:
                expected[f"{episode.next().key}.lineage.jsonl"] = b"".join(row.encode() + b"\n" for row in record.rows)
            there = {
                path.rpartition("/")[2]: data
                for path, data in self.disk.tree(DIR).items()
                if path.rpartition("/")[2].partition(".lineage.")[0]
                in {each.key for each in self.of(episode.rollout_id)}
            }
            assert {n: d for n, d in there.items() if not n.endswith("poison")} == expected, "INV-62, 63, 64, 65"
            for each in self.of(episode.rollout_id):
                self.keys[each] = Key(fenced=each.attempt <= episode.attempt)
            known = self.key(episode.next())
            known.rows = {row.model_call_id: row for row in record.rows} if record else {}
            known.durable = False
            self.attempt[episode.rollout_id] = episode.attempt + 1

    def both_restore(self, scope: list[EpisodeId], records: list[Exported], lead: int, cut: int | None) -> None:
        steps = [self.restoring(server, scope, records) for server in SERVERS]
        turn = 0
        taken = 0
        while steps and taken != cut:
            at = 0 if turn < lead else turn % len(steps)
            turn += 1
            taken += 1
            if next(steps[at], "ended") == "ended":
                steps.pop(at)
        for left in steps:
            left.close()

    def restoring(self, server: str, scope: list[EpisodeId], records: list[Exported]) -> Generator[str, None, None]:
        work = yield from ledger.begin_restore(DIR, scope, records)(self.files[server])
        while True:
            yield from ledger.continue_restore(work)(self.files[server])
            if not work.episodes:
                return
