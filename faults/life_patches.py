"""Patches of what outlives a process: leases, restores, published checkpoints, restarts. As in `faults.patches`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import anyio

from faults.patches import Bug, Patches, mutated
from gym_ckpt.controller import collect, startup
from gym_ckpt.controller import restoring as starting
from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.controller.rollouts import Rollouts
from gym_ckpt.controller.taking import Taking
from gym_ckpt.core import collection_restart, phases
from gym_ckpt.core.collection import Collection as Rows
from gym_ckpt.participants.agent import AgentParticipant
from gym_ckpt.runtime import control, importing, transfer
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.importing import Imports
from gym_ckpt.runtime.participant import Record
from gym_ckpt.storage import appendlog, manifest, records, verify
from gym_ckpt.storage.ledger import restoring
from gym_ckpt.types import EpisodeId


def owner_not_asked() -> Patches:
    old = "continued = tuple(sorted(committed.episodes))"
    return [(Taking, "_commit", mutated(Taking._commit, old, "continued = tuple(sorted(scope))"))]


def manifest_replaced() -> Patches:
    old = "if there is not None:"
    return [
        (transfer, "write_records", mutated(records.write_records, old, "if False:")),
        (manifest, "create_once", _rename),
    ]


def unchanged_left_out() -> Patches:
    real = AgentParticipant.export

    async def export(self: Any, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        now = await real(self, scope, stop)
        before = getattr(self, "exported_before", ())
        self.exported_before = now
        return [record for record in now if record not in before]

    return [(AgentParticipant, "export", export)]


def _rename(fs: Any, temp: str, target: str) -> Any:
    yield "records.manifest"
    fs.rename(temp, target)


def wall_clock_lease() -> Patches:
    async def watch(self: ControlPlane, checkpoint_id: str) -> None:
        wall = self._ports.clock.wall
        ahead = wall() - anyio.current_time()
        while self._open(checkpoint_id):
            assert self._state.lease_until is not None, "an open checkpoint has a lease"
            left_s = self._state.lease_until - (wall() - ahead)
            if left_s <= 0:
                self._apply(phases.LeaseCheck(self._state.lease_until))
                return
            with anyio.move_on_after(left_s):
                await self._admission.until(lambda: not self._open(checkpoint_id))

    return [(ControlPlane, "_watch_lease", watch)]


def lease_adds_up() -> Patches:
    old, new = "state.lease_until or until)", "(state.lease_until or until - 3.0) + 3.0)"
    return [(phases, "_leased", mutated(phases._leased, old, new))]


def served_restore() -> Patches:
    return [(phases, "_restore", mutated(phases._restore, "if event.served:", "if False:"))]


def target_not_cleared() -> Patches:
    old = "if attempt > episode.attempt:"
    new = "if attempt > episode.attempt + 1 or (attempt > episode.attempt and ending is not Ending.POISON):"
    return [(restoring, "_clear", mutated(restoring._clear, old, new))]


def fence_only_the_last() -> Patches:
    old = "for attempt in range(episode.attempt + 1):"
    return [(restoring, "_retire", mutated(restoring._retire, old, "for attempt in [episode.attempt]:"))]


def rows_of_dead_not_cut() -> Patches:
    old = "if len(there) > len(rows):"
    return [(restoring, "_take_over", mutated(restoring._take_over, old, "if False:"))]


def finished_restored() -> Patches:
    real = collection_restart.plan_restart

    def plan(rollouts: Any, *, finished: Any, checkpointed: Any, **others: Any) -> collection_restart.Restart:
        held = list(checkpointed)
        names = {episode.rollout_id for episode in held}
        left = {name: attempt for name, attempt in finished.items() if name not in names}
        return real(rollouts, finished=left, checkpointed=held, **others)

    return [(startup, "plan_restart", plan)]


def failed_import_opens() -> Patches:
    old = "            ended(False)\n"
    new = old + "            self._admission.open()\n"
    return [(Imports, "_import", mutated(Imports._import, old, new))]


def resume_all_but_one() -> Patches:
    real = Coordination._resume_all

    async def resume(self: Coordination, checkpoint_id: str, stays_closed: Collection[str] = (), **how: bool) -> Any:
        skipped = self._members[-1].name if self._members else ""
        return await real(self, checkpoint_id, {*stays_closed, skipped}, **how)

    return [(Coordination, "_resume_all", resume)]


def late_reply_settles() -> Patches:
    real = Rollouts.settle

    def settle(self: Rollouts, episode: EpisodeId, outcome: Any) -> None:
        collection = self._shared.collection
        for row in collection.rows():
            if row.rollout_id == episode.rollout_id and row.attempt > episode.attempt:
                episode = row.episode
        real(self, episode, outcome)

    return [(Rollouts, "settle", settle)]


def lost_rows_end() -> Patches:
    old = "    self._move(row, RowState.RETIRING)\n"
    return [(Rows, "lost", mutated(Rows.lost, old, "    self._move(row, RowState.FINISHED)\n"))]


def torn_end_kept() -> Patches:
    old = "                file.truncate(scan.end)\n"
    return [(startup, "open_log", mutated(appendlog.open_log, old, "                pass\n"))]


def digest_not_checked() -> Patches:
    old = "if digest.hexdigest() != named.records_sha256:"
    unread = mutated(records.verified_records, old, "if False:")
    return [(records, "verified_records", unread), (verify, "verified_records", unread)]


def attempts_not_raised() -> Patches:
    """A restore installs under the attempt that the checkpoint holds."""
    old = 'record = Record(_episode_of(row, each).next(), row["state"])'
    new = 'record = Record(_episode_of(row, each), row["state"])'
    return [(transfer, "_read", mutated(transfer._read, old, new))]


def rows_read_while_written() -> Patches:
    old = """    await ports.probe("commit.exported")
"""
    new = old + "    records = await participant.export(frozenset(participant.live()), target.stop)\n"
    return [(control, "export_scope", mutated(transfer.export_scope, old, new))]


def ended_import_counts() -> Patches:
    return [(importing, "import_scope", mutated(transfer.import_scope, "if ended():", "if False:"))]


def waiting_outlive_restore() -> Patches:
    old = "participant.admission.stop(target.scope)"
    new = mutated(transfer.import_scope, old, "marks.mark(scope)")
    discard = mutated(Imports._discard, "self._admission.stop(", "self._admission.book.marks.mark(")
    return [(importing, "import_scope", new), (Imports, "_discard", discard)]


def lapsed_restore_stands() -> Patches:
    return [(phases, "refuse_lapsed", lambda state, restore_id: None)]


def lapsed_restore_continues() -> Patches:
    old = "    except RestoreLapsed as error:\n"
    new = "    except ZeroDivisionError as error:\n"
    return [(collect, "restore", mutated(starting.restore, old, new))]


def open_while_importing() -> Patches:
    return [(ControlPlane, "_act", mutated(ControlPlane._act, "if self._imports.running:", "if False:"))]


BUGS: tuple[Bug, ...] = (
    Bug(
        "opens-while-importing",
        "a server whose restore was ended opens while a thread still imports",
        "INV-66",
        open_while_importing,
    ),
    Bug(
        "continued-without-owner",
        "a checkpoint says that it continues its whole scope, whoever exported what",
        "INV-41",
        owner_not_asked,
    ),
    Bug("manifest-replaced", "a commit that comes again writes its files again", "INV-49", manifest_replaced),
    Bug(
        "unchanged-sessions-left-out",
        "a session that stands where it stood in the last checkpoint is left out of the next",
        "INV-23",
        unchanged_left_out,
    ),
    Bug("lease-adds-up", "every call that renews a lease adds to what is left of it", "INV-53", lease_adds_up),
    Bug("lease-on-the-wall-clock", "a lease runs on the wall clock", "INV-53", wall_clock_lease),
    Bug("served-servers-restore", "a server that has served restores all the same", "INV-61", served_restore),
    Bug(
        "poison-of-the-target-kept",
        "a restore leaves the poison of the attempt that it installs",
        "INV-65",
        target_not_cleared,
    ),
    Bug(
        "only-the-last-attempt-fenced",
        "a restore fences the attempt in the checkpoint and none before it",
        "INV-63",
        fence_only_the_last,
    ),
    Bug(
        "rows-of-the-dead-kept",
        "a restore takes a dead execution's file over with the rows that came after the checkpoint",
        "INV-65",
        rows_of_dead_not_cut,
    ),
    Bug(
        "finished-rows-restored",
        "a row that has finished is continued from the checkpoint",
        "INV-94",
        finished_restored,
    ),
    Bug(
        "failed-import-opens",
        "a server whose import has failed opens before the restore is undone",
        "INV-66",
        failed_import_opens,
    ),
    Bug("resume-all-but-one", "the last participant is not resumed", "INV-92", resume_all_but_one),
    Bug(
        "late-reply-settles-retry",
        "the reply of an attempt that was given up ends the attempt after it",
        "INV-38",
        late_reply_settles,
    ),
    Bug("lost-rows-end", "a row whose server is lost counts as ended", "INV-1", lost_rows_end),
    Bug("torn-end-kept", "a torn line at the end of a log is appended to", "INV-1", torn_end_kept),
    Bug("digest-not-checked", "records are used without a look at their digest", "INV-60", digest_not_checked),
    Bug(
        "restored-under-the-old-attempt",
        "a restore installs the attempt that the checkpoint holds, not the next",
        "INV-60",
        attempts_not_raised,
    ),
    Bug(
        "export-of-all-that-lives",
        "while records are written all that lives is taken, whatever the scope",
        "INV-40",
        rows_read_while_written,
    ),
    Bug(
        "ended-import-counts",
        "what a thread installs when its restore has ended counts as installed",
        "INV-66",
        ended_import_counts,
    ),
    Bug(
        "waiting-calls-outlive-restore",
        "a restore does not reach calls of survivors that wait at closed admission",
        "INV-63",
        waiting_outlive_restore,
    ),
    Bug(
        "lapsed-restore-resumed",
        "a restore that its lease has ended is resumed as if it stood",
        "INV-60",
        lapsed_restore_stands,
    ),
    Bug(
        "lapsed-restore-continued",
        "a controller that is told that its restore has lapsed goes on with it",
        "INV-60",
        lapsed_restore_continues,
    ),
)
