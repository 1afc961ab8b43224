"""The patches behind the planted bugs of rollout collection: each breaks one of the collector's rules.

As in `faults.patches`. Knows the implementation from inside.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from faults.patches import Bug, Patches, mutated
from gym_ckpt.controller import environment, rollouts, startup, taking
from gym_ckpt.controller.calls import WayOut
from gym_ckpt.controller.checkpointer import Checkpointer
from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.controller.housekeeping import Housekeeping
from gym_ckpt.controller.interrupts import Interrupts
from gym_ckpt.controller.journal import DispatchLog
from gym_ckpt.controller.rollouts import Rollouts
from gym_ckpt.controller.taking import Taking
from gym_ckpt.core.collection import Collection, RowState
from gym_ckpt.core.collection_restart import DispatchHistory, Restart, plan_restart
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.runtime import groups
from gym_ckpt.storage import layout, ownership, pruning
from gym_ckpt.storage.appendlog import AppendLog
from gym_ckpt.storage.pruning import Pruned


def rows_start_any_time() -> Patches:
    def dispatchable(self: Collection) -> int:
        ready = self._number[RowState.RESTORED] + self._number[RowState.WAITING]
        return max(0, min(ready, self._concurrency - self._number[RowState.IN_FLIGHT]))

    take = mutated(Checkpointer._closed_take, "async with shared.dispatch_gate:", "if True:")
    return [(Collection, "dispatchable", property(dispatchable)), (Checkpointer, "_closed_take", take)]


def retire_beside_checkpoint() -> Patches:
    run = mutated(Housekeeping.run, "async with shared.checkpoint_lock:", "if True:")
    batch = mutated(Collection.retire_batch, "not self._open", "True")
    return [(Housekeeping, "run", run), (Collection, "retire_batch", batch)]


def retire_what_replied() -> Patches:
    old = "verdict = shared.collection.failed(episode, now)"
    return [(Rollouts, "settle", mutated(Rollouts.settle, old, "verdict = shared.collection.lost(episode, now)"))]


def continued_unsaid() -> Patches:
    async def run_episode(*call: Any, **_: Any) -> Any:
        return await environment.run_episode(*call)

    return [(rollouts, "run_episode", run_episode)]


def rows_unsynced() -> Patches:
    old = "durable=settings.checkpoint_dir is not None"
    return [(startup, "_open_rows", mutated(startup._open_rows, old, "durable=False"))]


def rows_not_awaited() -> Patches:
    return [(Taking, "_commit", mutated(Taking._commit, "    await shared.rows.sync()\n", ""))]


def dispatch_unsynced() -> Patches:
    return [(DispatchLog, "_append", mutated(DispatchLog._append, "sync=True", "sync=False"))]


def survivors_left() -> Patches:
    def plan(*args: Any, **kwargs: Any) -> Restart:
        found = plan_restart(*args, **kwargs)
        for row in found.rows:
            if row.state is RowState.RETIRING:
                row.state, row.attempt = RowState.WAITING, row.attempt + 1
        return replace(found, survivors=())

    return [(startup, "plan_restart", plan)]


def same_attempt() -> Patches:
    def plan(*args: Any, **kwargs: Any) -> Restart:
        found = plan_restart(*args, **kwargs)
        for row in found.rows:
            if row.state is RowState.RETIRING:
                row.state = RowState.WAITING
        return replace(found, survivors=())

    return [(startup, "plan_restart", plan)]


def stop_resumes() -> Patches:
    old = "    prepared.leave_closed()\n"
    return [(Taking, "_stay_closed_if_stopping", mutated(Taking._stay_closed_if_stopping, old, ""))]


def failure_stays_closed() -> Patches:
    old = "if not (opened.stays_closed or abandoned()):"
    new = "if opened.live and not (opened.stays_closed or abandoned()):"
    prepared = mutated(inspect.unwrap(Coordination.prepared), old, new)
    return [(Coordination, "prepared", prepared)]


class _Greedy:
    def __init__(self, job: Job[Pruned], run_dir: str) -> None:
        self._job = job
        self._run_dir = run_dir

    def __call__(self, fs: FileSystem) -> Generator[str, None, Pruned]:
        done = yield from self._job(fs)
        own = {"run.json", "collector.pid", "dispatched.jsonl", layout.LATEST, layout.CHECKPOINTS}
        for name in fs.listdir(self._run_dir):
            if name not in own:
                yield "prune.unlink"
                fs.unlink(layout.join(self._run_dir, name))
        return done


def prune_foreign() -> Patches:
    def prune(run_dir: str, keep: int, protect: Sequence[str] = (), failed: Sequence[str] = ()) -> Job[Pruned]:
        return _Greedy(pruning.prune(run_dir, keep, protect, failed), run_dir)

    return [(taking, "prune", prune)]


def commit_retiring() -> Patches:
    old = "held = [*self._in_flight, *self._queues[RowState.RESTORED]]"
    new = "held = [*self._in_flight, *self._queues[RowState.RESTORED], *self._retiring]"
    return [(Collection, "scope", mutated(Collection.scope, old, new))]


def restore_given_up() -> Patches:
    return [(DispatchHistory, "gave_up", lambda self, checkpointed: False)]


def forget_early() -> Patches:
    return [(Housekeeping, "_forget", mutated(Housekeeping._forget, "    await shared.rows.sync()\n", ""))]


def blockers_stay() -> Patches:
    old = "            shared.collection.lost(episode, anyio.current_time())\n"
    return [(Checkpointer, "_take", mutated(Checkpointer._take, old, "            pass\n"))]


def second_sigterm_lost() -> Patches:
    old = "self.killed = True\n        self._end_at_once()"
    new = "return"
    return [(Interrupts, "_sigterm", mutated(Interrupts._sigterm, old, new))]


class _Nobodys:
    """A lock that locks nothing."""

    def release(self) -> None:
        pass

    def stands(self) -> bool:
        return True


def directory_unlocked() -> Patches:
    def claim(run_dir: str, note: str) -> Job[Any]:
        def job(fs: FileSystem) -> Generator[str, None, Any]:
            (yield from ownership.claim_directory(run_dir, note)(fs)).release()
            return _Nobodys()

        return job

    return [(startup, "claim_directory", claim)]


def swept_unseen() -> Patches:
    def look(self: ownership.OwnedDisk, fs: FileSystem) -> None:
        del self, fs

    return [(ownership.OwnedDisk, "_look", look)]


def errors_in_groups() -> Patches:
    return [(groups, "the_one_that_counts", lambda group, cancelled: group)]


def leftovers_stay() -> Patches:
    async def tidy(self: Checkpointer) -> None:
        del self

    return [(Checkpointer, "tidy", tidy)]


def stop_waits() -> Patches:
    return [(WayOut, "hurry", lambda self, rest_s: None)]


def dead_environment_asked() -> Patches:
    old = "if self._open or self._unreached:"
    inside = inspect.getattr_static(Collection, "dispatchable").fget
    return [(Collection, "dispatchable", mutated(inside, old, "if self._open:"))]


def fsync_repeated() -> Patches:
    old = """        if not sound:
            yield from self._cut(fs)
        if self._file is None:
            yield "log.open"
            self._file = fs.append(self.path)
        yield "log.write"
        self._file.write("""
    new = """        whole = not sound and fs.size(self.path) == self._durable + len(self._tail) + len(data)
        if not (sound or whole):
            yield from self._cut(fs)
        if self._file is None:
            yield "log.open"
            self._file = fs.append(self.path)
        yield "log.write"
        self._file.write(b"" if whole else """
    return [(AppendLog, "append", mutated(AppendLog.append, old, new))]


BUGS: tuple[Bug, ...] = (
    Bug(
        "fsync-repeated",
        "after a failed fsync of a log only the fsync is repeated",
        "INV-94",
        fsync_repeated,
    ),
    Bug(
        "stop-waits-for-silent-servers",
        "what a stop has to undo on servers gets as much time as ever, whether they answer or not",
        "INV-96",
        stop_waits,
    ),
    Bug(
        "rows-for-a-dead-environment",
        "rows go on being sent when the environment cannot be reached",
        "INV-93",
        dead_environment_asked,
    ),
)
