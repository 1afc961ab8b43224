"""From files to the first row: own the directory, read what earlier runs left, decide what each row does next.

Nothing is dispatched here, and nothing on the servers changes (INV-94); a crash at any step leaves what was there, or
less of what the run was told to forget. A run that starts over keeps its dispatch log: attempts of the forgotten run
may still be running, and the new ones must be later (INV-38).

A run of which every row has ended needs no server and no checkpoint: it is begun without either, so that its figures
can be had whenever somebody asks.

It must not know how a checkpoint is restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio

from gym_ckpt.controller.input import Input, read_input
from gym_ckpt.controller.journal import DispatchLog, HistoryReader, episode_of
from gym_ckpt.controller.published import Source, newest_valid
from gym_ckpt.controller.rows import RowFiles, failures_path
from gym_ckpt.core.collection import RowState
from gym_ckpt.core.collection_restart import DispatchHistory, FailureHistory, Restart, plan_restart
from gym_ckpt.errors import ConfigError, InvalidCheckpointState, TryLater
from gym_ckpt.limits import CLAIM_AGAIN_S, READ_CHUNK_BYTES
from gym_ckpt.ports import FileSystem, Job, Ports
from gym_ckpt.settings import CollectSettings
from gym_ckpt.storage import layout
from gym_ckpt.storage.appendlog import AppendLog, Pick, open_log, read_lines
from gym_ckpt.storage.files import chunks_of, size_of, there
from gym_ckpt.storage.ownership import OwnedDisk, RunName, claim_directory, claim_output, claim_run, look
from gym_ckpt.storage.pruning import forget_all
from gym_ckpt.words import counted

Say = Callable[[str], None]
ENDED = frozenset({RowState.FINISHED, RowState.FAILED})


@dataclass(frozen=True, slots=True)
class Started:
    """A run that may begin. `run`: fingerprint of input and output; `owned`, `journal`: with a checkpoint_dir only."""

    input: Input
    run: str
    rows: RowFiles
    restart: Restart
    source: Source | None
    journal: DispatchLog | None
    owned: OwnedDisk | None = None

    @property
    def over(self) -> bool:
        """Every row had ended before, and no server was waited for."""
        return self.owned is not None and all(row.state in ENDED for row in self.restart.rows)


async def start(
    settings: CollectSettings, ports: Ports, run_id: str, say: Say, servers_ready: Callable[[], Awaitable[object]]
) -> Started:
    """Everything before the first row or a restore. With a `checkpoint_dir`, `servers_ready` is awaited once this
    process owns directory and output, unless every row has ended: whom the servers refuse has changed nothing but two
    lock files.

    Raises:
        ConfigError: the input, the output or the directory cannot be used as configured.
        TryLater: another collector has the directory or the output.
        InvalidCheckpointState: a file is damaged, or no checkpoint is valid.
        GymCkptError: what `servers_ready` raises.
        OSError: as the file system says.
    """
    read = await ports.disk.run(read_input(settings.input, settings.repeats))
    run = run_name(settings, read)
    if settings.checkpoint_dir is None:
        await ports.disk.run(refuse_existing(settings.output))
        rows = await _open_rows(settings, ports, _FinishedReader(settings.output, read), say)
        return Started(read, run.run_id, rows[0], plan(read, *rows[1:], DispatchHistory(), None), None, None)
    owned = OwnedDisk(ports.disk, f"{ports.pid}\n")
    ports = replace(ports, disk=owned)
    try:
        await _claim_both(settings, settings.checkpoint_dir, owned, f"{ports.pid}\n", read, run, say)
        if not (settings.resume_from_cache and await ports.disk.run(all_ended(settings.output, read))):
            await servers_ready()
        await ports.disk.run(claim_run(settings.checkpoint_dir, run, ports.entropy.token()))
        started = await _owned(settings, settings.checkpoint_dir, ports, read, run.run_id, run_id, say)
        return replace(started, owned=owned)
    except BaseException:
        owned.release()
        raise


def run_name(settings: CollectSettings, read: Input) -> RunName:
    """The run that this input and output make: rows of two runs must never mix (INV-95)."""
    about = {
        "collect.output": settings.output,
        "collect.input": settings.input,
        "collect.repeats": str(settings.repeats),
        "its content": f"{counted(len(read.tasks), 'rollout')}, SHA-256 {read.digest[:16]}",
    }
    return RunName(hashlib.sha256(f"{read.digest} {settings.output}".encode()).hexdigest(), about)


async def _claim_both(
    settings: CollectSettings, run_dir: str, disk: OwnedDisk, note: str, read: Input, run: RunName, say: Say
) -> None:
    """Own directory and output. A new directory becomes this run's only once nobody else's rows are in the output."""
    beside = layout.output_lock(settings.output)
    found = await disk.run(look(run_dir, run))
    if found.bereft and settings.resume_from_cache and not await disk.run(all_ended(settings.output, read)):
        _miss_checkpoints(settings, run_dir, say)
    if found.new:
        await disk.claim(beside, claim_output(settings.output, note))
        await disk.run(refuse_existing(settings.output))
    try:
        await disk.claim(layout.collector_pid(run_dir), claim_directory(run_dir, note))
    except TryLater:
        await anyio.sleep(CLAIM_AGAIN_S)
        await disk.claim(layout.collector_pid(run_dir), claim_directory(run_dir, note))
    if not found.new:
        await disk.claim(beside, claim_output(settings.output, note))


def _miss_checkpoints(settings: CollectSettings, run_dir: str, say: Say) -> None:
    """Rows are not started over in silence where checkpoints may have been. Raises `InvalidCheckpointState`."""
    gone = f"{layout.checkpoints_dir(run_dir)} and {layout.latest(run_dir)} are gone, and this run had begun"
    if not settings.start_over:
        raise InvalidCheckpointState(
            f"{gone}: put them back; or set collect.start_over to run unfinished rows from their input, or begin again "
            "from nothing with --no-resume"
        )
    say(f"{gone}: unfinished rows start from input, as told; finished ones stay")


async def _owned(
    settings: CollectSettings, run_dir: str, ports: Ports, read: Input, run: str, run_id: str, say: Say
) -> Started:
    if not settings.resume_from_cache:
        await ports.disk.run(forget_all(run_dir))
        await ports.disk.run(_remove([failures_path(settings.output), settings.output]))
    rows, finished, failures = await _open_rows(settings, ports, _FinishedReader(settings.output, read), say)
    history = HistoryReader(layout.dispatched(run_dir))
    log = await ports.disk.run(open_log(layout.dispatched(run_dir), history))
    if log.repair is not None:
        say(log.repair)
    journal = DispatchLog(ports.disk, log.log)
    await journal.compact(history.history, history.lines, ports.entropy.token())
    await journal.began(run_id)
    source = None
    if not _none_left(read, finished, failures):
        source = await newest_valid(ports.disk, run_dir, run, start_over=settings.start_over, say=say)
    return Started(read, run, rows, plan(read, finished, failures, history.history, source), source, journal)


def _none_left(read: Input, finished: Mapping[str, int], failures: Mapping[str, FailureHistory]) -> bool:
    """Whether every row has ended."""
    given_up = (name for name, history in failures.items() if history.final and name in read.tasks)
    return len(read.tasks) == len({*finished, *given_up})


def all_ended(output: str, read: Input) -> Job[bool]:
    """Whether every row is in the output or given up; as `_owned` will find it, and changing nothing.

    Raises (by the job):
        InvalidCheckpointState: one of both files is damaged, or holds what it must not.
        OSError: as the file system says.
    """

    def job(fs: FileSystem) -> Generator[str, None, bool]:
        finished, failed = _FinishedReader(output, read), _FailureReader(failures_path(output))
        yield from read_lines(failures_path(output), failed)(fs)
        given_up = sum(history.final for history in failed.histories.values())
        yield "start.look"
        if given_up + _lines(fs, output) < len(read.tasks):
            return False  # a long output is not parsed twice for that
        yield from read_lines(output, finished)(fs)
        return _none_left(read, finished.attempts, failed.histories)

    return job


def _lines(fs: FileSystem, path: str) -> int:
    """Of a file that may be missing; one that is not whole counts."""
    lines, last = 0, b"\n"
    for chunk in chunks_of(fs, path, READ_CHUNK_BYTES) if there(fs, path) else ():
        lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    return lines + (last != b"\n")


def plan(
    read: Input,
    finished: dict[str, int],
    failures: dict[str, FailureHistory],
    history: DispatchHistory,
    source: Source | None,
) -> Restart:
    """What each row does next."""
    return plan_restart(
        read.tasks,
        finished=finished,
        failures=failures,
        log=history,
        checkpointed=() if source is None else source.continued,
    )


class _FinishedReader:
    """Folds output rows into the attempt of each."""

    def __init__(self, path: str, read: Input) -> None:
        self.attempts: dict[str, int] = {}
        self._path = path
        self._tasks = read.tasks

    def __call__(self, row: dict[str, Any]) -> bool | None:
        episode = episode_of(row, self._path)
        if episode.rollout_id not in self._tasks:
            name = episode.rollout_id
            raise InvalidCheckpointState(f"{self._path}: a row of {name}, which the input lacks; remove it")
        if episode.rollout_id in self.attempts:  # no crash makes one: whoever put it there knows which is right (INV-2)
            raise InvalidCheckpointState(f"{self._path}: two rows of {episode.rollout_id}; remove one")
        self.attempts[episode.rollout_id] = episode.attempt
        return None


class _FailureReader:
    """Folds failure rows into the history of each rollout."""

    def __init__(self, path: str) -> None:
        self.histories: dict[str, FailureHistory] = {}
        self._path = path

    def __call__(self, row: dict[str, Any]) -> bool | None:
        episode = episode_of(row, self._path)
        self.histories.setdefault(episode.rollout_id, FailureHistory()).add(episode.attempt, row.get("final") is True)
        return None


async def _open_rows(
    settings: CollectSettings, ports: Ports, finished: _FinishedReader, say: Say
) -> tuple[RowFiles, dict[str, int], dict[str, FailureHistory]]:
    """Repair, read and open the output and the failure file."""
    failed = _FailureReader(failures_path(settings.output))
    opened: list[AppendLog] = []
    readers: list[tuple[str, Pick[bool]]]
    readers = [(settings.output, finished), (failures_path(settings.output), failed)]
    for path, reader in readers:
        log = await ports.disk.run(open_log(path, reader))
        if log.repair is not None:
            say(log.repair)
        opened.append(log.log)
    rows = RowFiles(ports, opened[0], opened[1], durable=settings.checkpoint_dir is not None)
    return rows, finished.attempts, failed.histories


def refuse_existing(output: str) -> Job[None]:
    """Raise (by the job) `ConfigError` when there are rows that this run did not write (INV-95)."""

    def job(fs: FileSystem) -> Generator[str, None, None]:
        yield "start.look"
        for path in (output, failures_path(output)):
            if there(fs, path) and size_of(fs, path) > 0:
                raise ConfigError(
                    f"{path} exists and is not of this run: is collect.checkpoint_dir the right one? If so, move the "
                    "file away or choose another collect.output"
                )

    return job


def _remove(paths: list[str]) -> Job[None]:
    def job(fs: FileSystem) -> Generator[str, None, None]:
        for path in paths:
            yield "start.forget"
            try:
                fs.unlink(path)
            except FileNotFoundError:
                continue
            yield "start.sync_dir"
            fs.fsync_dir(layout.parent_of(path))

    return job
