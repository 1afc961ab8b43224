"""Rollout collection: tasks in, one row per rollout out, however often the run is preempted.

`collect` puts the parts together: signals from the first line to the last, start-up, restore, the tasks of the run, the
end. Whatever ends a run, rows that finished are in the output file and the checkpoint in force stays restorable.

It runs unchanged in the simulator and must not know which world it is in.
"""

from __future__ import annotations

from dataclasses import replace

import anyio

from gym_ckpt.controller.checkpointer import Checkpointer
from gym_ckpt.controller.housekeeping import Housekeeping
from gym_ckpt.controller.interrupts import Interrupts
from gym_ckpt.controller.outcome import (
    NOTHING_SAVED,
    Outcome,
    Summary,
    all_ended,
    before_dispatch,
    changed,
    cut_short,
    stopped,
    unwritten,
)
from gym_ckpt.controller.progress import Progress
from gym_ckpt.controller.restoring import restore
from gym_ckpt.controller.rollouts import Rollouts
from gym_ckpt.controller.rows import failures_path
from gym_ckpt.controller.settings import check
from gym_ckpt.controller.shared import Coordination, Shared
from gym_ckpt.controller.startup import Started, start
from gym_ckpt.controller.summary import FiguresReader, RowFigures
from gym_ckpt.controller.taking import Taking
from gym_ckpt.core.collection import Collection
from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import ROWS_FLUSH_AT_STOP_S, STOP_REST_S
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.settings import CollectSettings
from gym_ckpt.storage.files import reason
from gym_ckpt.storage.ownership import OwnedDisk
from gym_ckpt.storage.publication import latest
from gym_ckpt.words import counted

__all__ = ["CollectSettings", "Outcome", "collect"]


async def collect(
    settings: CollectSettings,
    coordination: Coordination | None,
    environment_url: str,
    ports: Ports,
    progress: Progress,
) -> Outcome:
    """Collect every rollout of the input, continuing an earlier run where told to.

    Args:
        coordination: drives the servers' checkpoints; None where no server takes part (then no `checkpoint_dir`).
        environment_url: of the server that runs episodes, such as `http://127.0.0.1:8000`.

    Raises:
        ConfigError: refused before anything was changed on a server.
        GymCkptError: a file is damaged, or servers cannot be reached or checkpointed.
        OSError: the files of the run cannot be read or written at its start.
    """
    check(settings, coordination)
    interrupts = Interrupts(
        ports.tracer, settings.one_sigterm_s, lambda text: progress.message(text, event="collector.signal")
    )
    if coordination is not None:
        interrupts.hurry = coordination.hurry
    run = _Run(settings, coordination, environment_url, ports, progress, interrupts)
    if settings.checkpoint_dir is None:
        return await run.whole()
    async with ports.signals.listen() as signals, Tasks() as listening:
        listening.start_soon(interrupts.watch, signals)
        outcome = await run.whole()
        listening.cancel_scope.cancel()
    return outcome


class _Run:
    """One call of `collect`."""

    def __init__(
        self,
        settings: CollectSettings,
        coordination: Coordination | None,
        environment_url: str,
        ports: Ports,
        progress: Progress,
        interrupts: Interrupts,
    ) -> None:
        self._settings = settings
        self._coordination = coordination
        self._url = environment_url
        self._ports = ports
        self._progress = progress
        self._interrupts = interrupts
        self._run_id = ports.entropy.token(6)
        self._owned: OwnedDisk | None = None
        self._in_force: str | None = None
        """The checkpoint that a restart would use, as far as is known."""
        self._restored = False
        """Servers were told to restore."""
        self._shared: Shared | None = None
        """Once rows may be sent."""
        self._checkpointer: Checkpointer | None = None

    async def whole(self) -> Outcome:
        """The run; however it ends, the directory is free and the screen is whole."""
        outcome = None
        try:
            with self._interrupts.everything:
                outcome = await self._from_start_to_end()
        except (GymCkptError, OSError):
            if not self._interrupts.cut_short:  # else: told to stop at once, whatever goes wrong in the same instant
                raise
        finally:
            self._progress.stop()
            if self._owned is not None:
                self._owned.release()
        if self._interrupts.cut_short:
            shared = self._shared
            outcome = cut_short(
                shared.collection.counts() if shared is not None else None,
                self._in_force,
                interrupted=self._interrupts.interrupted,
                restored=self._restored,
                unwritten=shared.rows.unwritten if shared is not None else 0,
            )
            outcome = await self._summarized(outcome)
        assert outcome is not None, "only a second SIGTERM and SIGINT cancel a run"
        self._ports.tracer.emit("collector.exit", status=outcome.exit_code, message=outcome.message)
        return outcome

    async def _from_start_to_end(self) -> Outcome:
        started = None
        with self._interrupts.abortable():
            started = await self._start()
        if started is None:
            return before_dispatch(self._in_force, restored=False)
        shared = self._share(started)
        if self._coordination is not None and started.source is not None and started.restart.to_restore:
            self._restored = True
            with self._interrupts.abortable():
                await restore(shared, self._coordination, started.source, started.restart.to_restore)
        self._interrupts.unstoppable()
        if self._interrupts.stopping:
            return before_dispatch(self._in_force, restored=self._restored)
        return await self._send_rows(shared, started)

    async def _start(self) -> Started:
        await self._ports.probe("collector.start")
        started = await start(self._settings, self._ports, self._run_id, self._progress.message, self._servers_ready)
        self._owned = started.owned
        if started.over:
            await self._look_at_pointer()
        else:
            self._in_force = started.source.checkpoint_id if started.source else None
        return started

    async def _servers_ready(self) -> None:
        if self._coordination is None:
            return
        if self._settings.resume_from_cache:
            await self._look_at_pointer()
        await self._coordination.discover(self._progress.message, self._settings.servers_wait_s)

    async def _look_at_pointer(self) -> None:
        """For what is said where no checkpoint is looked for, or not yet."""
        assert self._settings.checkpoint_dir is not None, (
            "without one there is nothing to wait for, and nothing is over"
        )
        try:
            self._in_force = await self._ports.disk.run(latest(self._settings.checkpoint_dir))
        except (GymCkptError, OSError):
            self._in_force = None  # told about once it is needed

    async def _send_rows(self, shared: Shared, started: Started) -> Outcome:
        self._shared = shared
        counts = shared.collection.counts()
        self._progress.start(counts)
        self._progress.message(
            f"{counted(counts.rows, 'row')}: {counts.finished} finished before, {counts.restored} restored, "
            f"{len(shared.begun_before)} from input again, {counts.failed} failed"
        )
        housekeeping = Housekeeping(shared)
        checkpointer = None
        try:
            async with Tasks() as tasks:
                tasks.start_soon(started.rows.run, shared.fail, self._progress.message)
                if not shared.over:
                    tasks.start_soon(housekeeping.run)
                tasks.start_soon(Rollouts(shared, self._url).run)
                if self._settings.checkpoint_dir is not None and self._coordination is not None:
                    run_dir, in_force = self._settings.checkpoint_dir, self._in_force
                    taking = Taking(shared, self._coordination, run_dir, started.run, in_force)
                    checkpointer = self._checkpointer = Checkpointer(shared, taking, housekeeping)
                    tasks.start_soon(checkpointer.run)
                shared.changed()
                await shared.ended.wait()
                why = await self._end(shared, housekeeping, checkpointer)
                tasks.cancel_scope.cancel()
        finally:  # after the tasks: a publication under way is not cut short, and may name another one still
            self._in_force = checkpointer.previous if checkpointer is not None else None
        return await self._outcome(shared, checkpointer, why)

    def _share(self, started: Started) -> Shared:
        settings = self._settings
        shared = Shared(
            settings,
            self._ports if started.owned is None else replace(self._ports, disk=started.owned),
            self._coordination,
            run=started.run,
            run_id=self._run_id,
            collection=Collection(
                started.restart.rows, concurrency=settings.concurrency, max_attempts=settings.max_attempts
            ),
            tasks=started.input.tasks,
            rows=started.rows,
            journal=started.journal,
            interrupts=self._interrupts,
            progress=self._progress,
        )
        counts = shared.collection.counts()
        shared.over = started.over
        shared.finished_before = counts.finished + counts.failed
        shared.begun_before.update(started.restart.over)
        return shared

    async def _end(self, shared: Shared, housekeeping: Housekeeping, checkpointer: Checkpointer | None) -> str | None:
        """Let an open checkpoint end, forget and remove what is left, make rows durable; returns why some are not."""
        if shared.collection.done:
            async with shared.checkpoint_lock:
                closed = shared.left_closed
                if checkpointer is not None:
                    await checkpointer.tidy()
            if not closed:
                await housekeeping.forget_rest()
        began, why = anyio.current_time(), None
        in_time_s = self._settings.checkpoint_timeout_s + STOP_REST_S
        with self._interrupts.bookkeeping(ROWS_FLUSH_AT_STOP_S, in_time_s) as limit:
            why = await self._write_rest(shared, limit)
        if limit.cancelled_caught:
            why = f"writing takes longer than {anyio.current_time() - began:.3g} s"
            self._progress.message(
                f"{why}: this run ends when the disk of {self._settings.output} answers, or by SIGKILL; rows that are "
                "not there by then run again"
            )
        return why

    async def _write_rest(self, shared: Shared, limit: anyio.CancelScope) -> str | None:
        """Make rows durable; returns why some are not. A run that may go on for ever tries anew after an error."""
        while True:
            try:
                await shared.rows.sync()
                await shared.rows.close()
                return None
            except GymCkptError as error:
                return str(error)
            except OSError as error:
                if not shared.collection.done or shared.fatal is not None or self._interrupts.stopping:
                    return reason(error)
                limit.deadline = anyio.current_time() + ROWS_FLUSH_AT_STOP_S

    async def _outcome(self, shared: Shared, checkpointer: Checkpointer | None, why: str | None) -> Outcome:
        """`why`: some finished rows are not written."""
        counts = shared.collection.counts()
        if shared.fatal is not None:
            outcome = Outcome(1, shared.fatal)
        elif why is not None:
            outcome = unwritten(counts, self._in_force, self._settings.output, why, shared.rows.unwritten)
        elif shared.collection.done or checkpointer is None:
            outcome = all_ended(counts, failures_path(self._settings.output), resumable=checkpointer is not None)
        else:
            outcome = stopped(counts, checkpointer.previous, checkpointer.failure, checkpointer.nothing_to_save)
        return await self._summarized(outcome)

    async def _figures(self) -> RowFigures | None:
        """Figures over the whole output; None where a stop has no time for reading more of it."""
        interrupts, began = self._interrupts, anyio.current_time()
        reader = FiguresReader(self._settings.output)
        while True:
            figures = await self._ports.disk.run(reader.more())
            if figures is not None or interrupts.cut_short:
                return figures
            until = min(began, interrupts.told + self._settings.checkpoint_timeout_s) + STOP_REST_S
            if interrupts.stopping and anyio.current_time() >= until:
                return None

    async def _summarized(self, outcome: Outcome) -> Outcome:
        """With its figures, if rows could be sent."""
        shared, checkpointer = self._shared, self._checkpointer
        if shared is None:
            return outcome
        figures, counts, written = None, shared.collection.counts(), shared.rows.written
        complete = shared.collection.done and written
        try:
            figures = await self._figures()
            if figures is None:
                outcome = replace(outcome, message=f"{outcome.message}; no figures: the output is too long for a stop")
            elif written and figures.rows != counts.finished:
                complete, outcome = False, changed(outcome, counts, figures.rows, self._settings.output)
        except (OSError, ValueError) as error:
            complete, message = False, f"{outcome.message}; no figures: {error}"
            outcome = replace(outcome, exit_code=outcome.exit_code or 1, message=message)
        continued = shared.collection.continued()
        summary = Summary(
            figures=figures,
            counts=counts,
            complete=complete,
            began=True,
            finished_before=shared.finished_before,
            restored=shared.restored,
            continued=continued,
            lost=len(shared.lost),
            begun_again=len(shared.begun_again),
            restarted=shared.restarted,
            unwritten=shared.rows.unwritten,
            saved={**NOTHING_SAVED, **(shared.saved if continued else {})},
            checkpoints=tuple(taken.checkpoint_id for taken in checkpointer.taken) if checkpointer is not None else (),
        )
        return replace(outcome, summary=summary)
