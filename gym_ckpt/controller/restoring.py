"""Putting a checkpoint's rows back on the servers, before anything is dispatched (INV-94).

All or nothing (INV-60): after a failure the attempts that the rows would have had are retired everywhere, and the rows
start from input one attempt later. So they do where a server's lease ended the restore before it was resumed. But where
a server refuses the state of a whole checkpoint, the run is refused, for nobody asked to give that work up. A restored
attempt is in the dispatch log before the servers are opened. It must not know how a checkpoint was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from gym_ckpt.controller.outcome import saved_words
from gym_ckpt.controller.published import Source
from gym_ckpt.controller.shared import Coordination, Shared
from gym_ckpt.errors import AlreadyServing, GymCkptError, InvalidCheckpointState, ParticipantFailed, RestoreLapsed
from gym_ckpt.limits import COLLECT_RETRY_FIRST_S
from gym_ckpt.storage.files import reason
from gym_ckpt.types import EpisodeId, keys
from gym_ckpt.words import counted


async def restore(shared: Shared, coordination: Coordination, source: Source, wanted: tuple[EpisodeId, ...]) -> None:
    """Restore `wanted` (the attempts that `source` holds) and open the servers; the collection knows the result.

    Raises:
        InvalidCheckpointState: a server refuses their state, and the run was not told to `start_over`.
    """
    ports = shared.ports
    restore_id = f"{shared.run_id}-restore"
    began = anyio.current_time()
    await ports.probe("collector.before_restore")
    if not await _logged(shared, [episode.next() for episode in wanted], source):
        _start_over(shared, [episode.next() for episode in wanted])
        return
    try:
        installed = await coordination.restore(
            restore_id, source.checkpoint_dir, wanted, shared.settings.checkpoint_timeout_s
        )
    except GymCkptError as error:
        _check_may_start_over(shared, error, source, len(wanted))
        _start_over(shared, [episode.next() for episode in wanted])
        shared.progress.message(f"{_refused(error)}: {counted(len(wanted), 'row')} of it from input again")
        return
    await ports.probe("collector.restore_installed")
    missing = {episode.next() for episode in wanted} - installed
    if missing:
        _start_over(shared, sorted(missing))
        shared.progress.message(f"not in the checkpoint after all, so from input again: {counted(len(missing), 'row')}")
    saved = dict(coordination.saved)
    restore_s = round(anyio.current_time() - began, 6)
    ports.tracer.emit(
        "collector.restored",
        checkpoint_id=source.checkpoint_id,
        restore_id=restore_id,
        installed=keys(installed),
        restore_s=restore_s,
        saved=saved,
    )
    try:
        await coordination.resume(restore_id)
    except RestoreLapsed as error:
        _start_over(shared, sorted(installed))
        again = f"{counted(len(installed), 'row')} of it from input again"
        shared.progress.message(f"the restored state was gone before it could be used ({error}): {again}")
        return
    except GymCkptError as error:
        shared.progress.message(f"not every server could be opened after the restore, its lease will: {error}")
    shared.restored, shared.saved = len(installed), saved
    saves = f", which saves {saved_words(shared.saved)}" if shared.saved else ""
    text = f"{counted(len(installed), 'row')} restored from checkpoint {source.checkpoint_id}{saves}"
    shared.progress.message(text, event="collector.restored")


def _check_may_start_over(shared: Shared, error: GymCkptError, source: Source, rows: int) -> None:
    """Raise `InvalidCheckpointState` where the servers understood a whole checkpoint and will not have its state: most
    likely the gym has changed, which can be undone, while the work of its rows could not be had back."""
    if not (isinstance(error, ParticipantFailed) and isinstance(error.error, InvalidCheckpointState)):
        return
    if shared.settings.start_over:
        return
    raise InvalidCheckpointState(
        f"checkpoint {source.checkpoint_id} is whole, and a server refuses its state ({error}): nothing was sent or "
        "removed; bring back the gym that took it, and run this again; or set collect.start_over to run "
        f"{counted(rows, 'row')} of it from input"
    )


def _start_over(shared: Shared, attempts: Sequence[EpisodeId]) -> None:
    shared.collection.restore_failed(attempts)
    shared.begun_before.update(episode.rollout_id for episode in attempts)


async def _logged(shared: Shared, attempts: Sequence[EpisodeId], source: Source) -> bool:
    """Whether the dispatch log holds these attempts, durably. Before the servers hear of them, and not after: a restore
    that fails retires them, and a later run that does not know would send the same ones again (INV-38)."""
    assert shared.journal is not None, "a run that restores has a dispatch log"
    failure: OSError | None = None
    with anyio.move_on_after(shared.settings.checkpoint_timeout_s):
        while True:
            try:
                await shared.journal.restored(attempts, source.checkpoint_id)
                return True
            except OSError as error:
                failure = error
                await anyio.sleep(COLLECT_RETRY_FIRST_S)
    why_not = "it takes too long" if failure is None else reason(failure)
    shared.progress.message(
        f"{shared.journal.path} cannot be written ({why_not}): {counted(len(attempts), 'row')} from input again"
    )
    return False


def _refused(error: GymCkptError) -> str:
    """One line: why nothing was restored."""
    if isinstance(error, ParticipantFailed) and isinstance(error.error, AlreadyServing):
        return f"the servers stayed up over the restart and cannot take a checkpoint back; restart them too ({error})"
    return f"the checkpoint could not be restored ({error})"
