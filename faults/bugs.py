"""Planted bugs: each one line of intent and a patch of one behaviour of the implementation.

The ordinary campaign must find every one of them (`gym-ckpt sim bugs`). One that nobody finds is a hole in the faults
or in the oracle; the mend belongs there, never here.

Must not know: which invariant notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from faults import call_patches, field_patches, life_patches, patches, resources_patches
from faults import collector_patches as collector
from faults import ledger_patches as ledger
from faults.patches import Bug, unlike
from gym_ckpt.errors import ConfigError

BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(
            "directory-fsync-before-pointer",
            "the pointer is moved before the names of the checkpoint's files are durable",
            "INV-48",
            patches.no_directory_fsync,
        ),
        Bug(
            "keep-later-attempts-at-restore",
            "a restore leaves what dead executions left of the target and later attempts, marks included",
            "INV-62",
            patches.keep_later_attempts,
        ),
        Bug(
            "mark-after-stop",
            "a retire marks the attempt only after its work was stopped and has left",
            "INV-32",
            patches.mark_after_stop,
        ),
        Bug(
            "deliver-held-responses",
            "a response that is ready while admission is closed is delivered all the same",
            "INV-11",
            patches.deliver_held_responses,
        ),
        Bug(
            "no-retire-after-failed-restore",
            "after a failed restore everything is resumed without retiring what was installed",
            "INV-60",
            patches.no_retire_after_failed_restore,
        ),
        Bug(
            "admit-while-closed",
            "work that arrives at closed admission is admitted",
            "INV-14",
            patches.admit_while_closed,
        ),
        Bug(
            "undelivered-call-exported",
            "a model call gets its row when its answer is ready, not when it may be delivered",
            "INV-17",
            patches.row_before_leave,
        ),
        Bug(
            "row-dropped-on-restart",
            "a restarted collection forgets rows that were in flight and in no checkpoint",
            "INV-1",
            patches.drop_survivors,
        ),
        Bug(
            "pointer-before-collection",
            "the pointer names a checkpoint before its collection is there",
            "INV-48",
            patches.pointer_first,
        ),
        Bug(
            "resume-does-not-reopen",
            "a resume ends the checkpoint and leaves admission closed",
            "INV-5",
            patches.stay_closed,
        ),
        Bug(
            "finished-rows-run-again",
            "a restarted collection does not look which rows have finished",
            "INV-2",
            patches.forget_finished,
        ),
        Bug(
            "tool-idempotency-off",
            "a tool call whose reply was lost is done again",
            "INV-3",
            patches.no_idempotency,
        ),
        Bug(
            "scope-ignored-on-export",
            "a participant exports every episode that it holds",
            "INV-40",
            patches.export_everything,
        ),
        Bug(
            "abort-flag-ignored",
            "a write in progress goes on after the checkpoint was resumed",
            "INV-50",
            patches.ignore_abort,
        ),
        Bug("restore-leaves-open", "a restore does not close admission", "INV-66", patches.restore_open),
        Bug("retire-takes-the-next", "a retire of attempt N marks N+1 too", "INV-31", patches.mark_next),
        Bug(
            "retire-in-checkpoint", "attempts are retired while a checkpoint is open", "INV-30", patches.retire_any_time
        ),
        Bug("lease-never-ends", "a participant whose controller is gone stays closed", "INV-5", patches.no_lease),
        Bug(
            "prune-one-too-many",
            "one published checkpoint fewer is kept than was asked for",
            "INV-51",
            patches.prune_more,
        ),
        Bug(
            "half-a-restore-continues",
            "a restore counts as done although a participant installed nothing",
            "INV-60",
            patches.believe_half_restore,
        ),
        Bug(
            "rows-start-in-checkpoint",
            "rows are sent while a checkpoint is open",
            "INV-90",
            collector.rows_start_any_time,
        ),
        Bug(
            "retire-beside-checkpoint",
            "the collector retires lost rows without waiting for an open checkpoint's end",
            "INV-93",
            collector.retire_beside_checkpoint,
        ),
        Bug(
            "replied-row-retired",
            "a row whose attempt replied with a failure is retired as if it had not",
            "INV-93",
            collector.retire_what_replied,
        ),
        Bug(
            "output-not-synced",
            "finished rows are not durable when the checkpoint that leaves them out is published",
            "INV-91",
            collector.rows_unsynced,
        ),
        Bug(
            "dispatch-log-not-durable",
            "an attempt is sent before the dispatch log says so for certain",
            "INV-38",
            collector.dispatch_unsynced,
        ),
        Bug(
            "survivors-not-retired",
            "a restart starts rows again without retiring the attempts that may still run",
            "INV-38",
            collector.survivors_left,
        ),
        Bug(
            "survivors-keep-their-attempt",
            "a restart starts rows again under the attempt that may still run",
            "INV-38",
            collector.same_attempt,
        ),
        Bug(
            "stop-resumes",
            "a run that stops resumes its servers, which then work on for nobody",
            "INV-92",
            collector.stop_resumes,
        ),
        Bug(
            "failed-checkpoint-stays-closed",
            "a checkpoint that failed does not resume the servers",
            "INV-92",
            collector.failure_stays_closed,
        ),
        Bug(
            "leftovers-stay",
            "a completed run leaves the partial directories of its failed checkpoints",
            "INV-51",
            collector.leftovers_stay,
        ),
        Bug(
            "foreign-files-pruned",
            "whatever stands in the run's directory and is not the run's own is removed",
            "INV-95",
            collector.prune_foreign,
        ),
        Bug(
            "checkpoint-without-blockers-rows",
            "rows that are about to be retired are committed all the same",
            "INV-91",
            collector.commit_retiring,
        ),
        Bug(
            "started-over-rows-restored",
            "rows that an earlier run gave up and started over are taken from the older checkpoint",
            "INV-38",
            collector.restore_given_up,
        ),
        Bug(
            "continued-attempt-from-input",
            "an environment that died after the restore begins a continued attempt from its input",
            "INV-3",
            collector.continued_unsaid,
        ),
        Bug(
            "restored-attempts-not-retired",
            "a restore forgets that the attempts which it continues are dead",
            "INV-63",
            patches.no_marks_at_restore,
        ),
        Bug(
            "row-at-staging",
            "a row is written when an answer's tokens are staged, and counts for every server that shares the ledger",
            "INV-17",
            ledger.row_at_staging,
        ),
        Bug(
            "row-after-first-chunk",
            "a row is written after its answer has been sent",
            "INV-16",
            ledger.row_after_first_chunk,
        ),
        Bug(
            "failed-row-answered",
            "an answer is sent although its row could not be written",
            "INV-19",
            ledger.answer_failed_write,
        ),
        Bug(
            "row-write-cut-short",
            "a cancellation ends the writing of a row",
            "INV-20",
            ledger.cut_row_write_short,
        ),
        Bug(
            "capture-failure-unsaid",
            "a call that could not be staged is served, and its rollout passes for sound",
            "INV-4",
            ledger.silent_capture_failure,
        ),
        Bug(
            "parent-consumed",
            "a request takes its parent out of the books, and its repetition finds none",
            "INV-67",
            ledger.consume_parents,
        ),
        Bug(
            "started-without-marker",
            "the first call of a restored attempt leaves no marker",
            "INV-43",
            ledger.no_marker,
        ),
        Bug(
            "delete-without-marker-check",
            "a commit deletes restored attempts out of its scope without asking who has begun",
            "INV-43",
            ledger.marker_not_checked,
        ),
        Bug(
            "fence-not-cleared",
            "a restore leaves the fences of dead executions",
            "INV-62",
            ledger.fence_not_cleared,
        ),
        Bug(
            "cleared-only-with-rows",
            "a restore clears only what it has rows for",
            "INV-62",
            ledger.rows_without_records_not_cleared,
        ),
        Bug(
            "restore-without-fences",
            "a restore fences none of the attempts before",
            "INV-63",
            ledger.no_fences_at_restore,
        ),
        Bug(
            "carried-rows-restamped",
            "a carried row gets the key of the attempt that continues it",
            "INV-64",
            ledger.restamp_carried_rows,
        ),
        Bug(
            "two-owners-of-a-ledger",
            "every server that shares a ledger exports all of it",
            "INV-46",
            ledger.everybody_owns,
        ),
        Bug(
            "staged-tokens-not-durable",
            "staged tokens are not durable when their row is",
            "INV-46",
            ledger.tokens_not_synced,
        ),
        Bug(
            "held-tokens-left",
            "a call that leaves while it is held leaves its staged tokens",
            "INV-5",
            ledger.held_tokens_left,
        ),
        Bug(
            "dead-servers-tokens-left",
            "a server that comes up leaves what its last life had staged",
            "INV-5",
            ledger.dead_servers_tokens_left,
        ),
        Bug(
            "fences-outlive-forget",
            "a forgotten rollout leaves its fences",
            "INV-39",
            ledger.fences_stay,
        ),
        Bug(
            "unclaimed-not-exported",
            "restored attempts that nobody has called are left out of the next checkpoint",
            "INV-42",
            ledger.restored_not_exported,
        ),
        Bug(
            "silent-continuation",
            "a restored attempt that makes no further model call tells no model server that it goes on",
            "INV-42",
            ledger.no_claim,
        ),
        Bug(
            "errors-leave-in-groups",
            "an error that ends a task group leaves it wrapped in an exception group",
            "INV-92",
            collector.errors_in_groups,
        ),
        Bug(
            "forgotten-before-durable",
            "rollouts are forgotten whose rows are not durable yet",
            "INV-38",
            collector.forget_early,
        ),
        Bug(
            "blockers-not-retired",
            "a missed checkpoint is tried again while its blockers still run",
            "INV-96",
            collector.blockers_stay,
        ),
        Bug(
            "second-sigterm-ignored",
            "a second SIGTERM waits for the checkpoint that the first asked for",
            "INV-96",
            collector.second_sigterm_lost,
        ),
        Bug(
            "directory-not-locked",
            "a collector takes a directory and keeps nobody else out of it",
            "INV-95",
            collector.directory_unlocked,
        ),
        Bug(
            "swept-lock-unseen",
            "a collector does not look whether its lock files are still there",
            "INV-95",
            collector.swept_unseen,
        ),
        *collector.BUGS,
        *ledger.BUGS,
        *call_patches.BUGS,
        *life_patches.BUGS,
        *field_patches.BUGS,
        *resources_patches.BUGS,
    )
}


@contextmanager
def planted(name: str) -> Iterator[Bug]:
    """The bug is in force until the context ends. Raises `ConfigError` when there is no such bug."""
    if name not in BUGS:
        raise ConfigError(f"there is no planted bug {name!r}: choose one of {', '.join(BUGS)}")
    bug = BUGS[name]
    with ExitStack() as stack:
        for owner, attribute, value in bug.patch():
            # From the class's own dictionary, so that a static method comes back as one.
            real = vars(owner)[attribute] if attribute in vars(owner) else getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, real)
            setattr(owner, attribute, value)
        yield bug


def unplantable(name: str) -> str | None:
    """Why the bug cannot be planted any more, as where the code that it changes has changed itself."""
    try:
        misfits = (unlike(getattr(owner, attribute), value) for owner, attribute, value in BUGS[name].patch())
        return next(filter(None, misfits), None)
    except (AssertionError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
