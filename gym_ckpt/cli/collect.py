"""`gym-ckpt collect`: rollout collection in this process, as the controller of a gym that runs already."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

import anyio
import msgspec

from gym_ckpt.adapters.host import (
    die_with_parent,
    ignore,
    let_through,
    log_through,
    log_to_stderr,
    one_output,
    open_files_allowed,
    shield_from_interrupt,
)
from gym_ckpt.adapters.posix import ThreadDisk
from gym_ckpt.adapters.system import LISTENED, NOTABLE, LogTracer, production_ports
from gym_ckpt.cli.config import load
from gym_ckpt.cli.config_checks import check_open_files
from gym_ckpt.cli.config_files import check_writable
from gym_ckpt.cli.endings import Said, cause_of, ending_of
from gym_ckpt.cli.left_closed import FreshCoordination
from gym_ckpt.cli.tell import tell
from gym_ckpt.controller.collect import Outcome, collect
from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.controller.outcome import lines_of
from gym_ckpt.controller.progress import EventProgress, PlainProgress, RichProgress
from gym_ckpt.errors import ConfigError, TryLater
from gym_ckpt.ports import Disk, Tracer
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.settings import CollectSettings, GymSettings
from gym_ckpt.wire.messages import encode
from gym_ckpt.words import counted

TOLD: Final = frozenset(
    {
        "collector.checkpoint_failed", "collector.exit", "collector.failure", "collector.lost", "collector.published",
        "collector.restored", "collector.signal",
    }
)  # fmt: skip
"""Trace events that people are told of in words. Whoever asks for JSON is a program: it finds them in the log."""
LOGGED: Final = NOTABLE | TOLD | {"collector.progress", "collector.says"}
"""Trace events that may stand in the collector's log."""


def run_collect(config: str, *, resume: bool | None, as_json: bool) -> int:
    """Collect, print how it ended, and return the exit status; with `as_json` one object, however it ended.

    Raises `ConfigError` and what `collect` raises; with `as_json`, `Said` from it.
    """
    try:
        outcome = _run(config, resume, as_json)
    except (Exception, KeyboardInterrupt) as error:
        failed = _failed(error)
        if as_json:  # on standard error it is an event already
            tell(encode(_summary(failed)).decode())
            raise Said(failed.exit_code) from error
        if not one_output():  # whoever runs the command says it on standard error
            tell(failed.message)
        raise
    if as_json:
        if not tell(encode(_summary(outcome)).decode()):
            tell("gym-ckpt: the summary cannot be written to standard output", err=True)
    else:
        _print(outcome)
        if not one_output():
            tell(outcome.message, err=True)
    return outcome.exit_code


def _run(config: str, resume: bool | None, as_json: bool) -> Outcome:
    # Whoever supervises a collector supervises its servers, too: without them it could only try in vain.
    supervised = die_with_parent()
    if supervised:
        shield_from_interrupt()
    tracer = LogTracer(LOGGED if as_json else NOTABLE)
    progress = _progress(as_json, tracer)
    if isinstance(progress, RichProgress):
        log_through(progress.message)  # what its events say, its messages say for people
    else:
        log_to_stderr()
    listened = LISTENED if supervised else (*LISTENED, signal.SIGINT)
    try:
        settings, wanted = _settings(config, resume)
        if wanted.checkpoint_dir is None:
            let_through(LISTENED)  # nobody listens
        return anyio.run(functools.partial(_collect, settings, wanted, progress, tracer, listened))
    except (Exception, KeyboardInterrupt) as error:
        failed = _failed(error)
        tracer.emit("collector.exit", status=failed.exit_code, message=failed.message)
        raise


def _settings(config: str, resume: bool | None) -> tuple[GymSettings, CollectSettings]:
    """The configuration, and its `[collect]` with what the command line changes. Raises `ConfigError`."""
    settings = load(config).settings
    if settings.collect is None:
        raise ConfigError(f"{config}: has no [collect] table; collect needs environment, input and output")
    wanted = settings.collect
    if resume is not None:
        if resume and wanted.checkpoint_dir is None:
            raise ConfigError("--resume: needs collect.checkpoint_dir")
        wanted = msgspec.structs.replace(wanted, resume_from_cache=resume)
    check_writable(wanted)
    check_open_files(settings, open_files_allowed())
    return settings, wanted


def _failed(error: BaseException) -> Outcome:
    """How a run ended that an error ended: as `gym_ckpt.cli.main` says it."""
    status, message = ending_of(error)
    return Outcome(status, message, later=isinstance(cause_of(error), TryLater))


def _progress(as_json: bool, tracer: Tracer) -> PlainProgress | RichProgress:
    if as_json:
        return EventProgress(tracer, logged=TOLD)
    if sys.stderr.isatty() and sys.stdout.isatty():
        return RichProgress()
    return PlainProgress(lambda line: tell(line, err=True))


async def _collect(
    settings: GymSettings,
    wanted: CollectSettings,
    progress: PlainProgress | RichProgress,
    tracer: Tracer,
    listened: Sequence[signal.Signals],
) -> Outcome:
    async with production_ports(tracer, listened) as ports, Tasks() as tasks:
        tasks.start_soon(progress.run)
        coordination: Coordination | None = None
        if wanted.checkpoint_dir is not None:
            assert settings.control_token is not None, "the loader refuses [checkpoint] without a token"
            servers = {name: server.url for name, server in settings.participants().items()}
            coordination = FreshCoordination(servers, settings.control_token, ports)
            progress.waits = functools.partial(_waits, coordination, ports.disk)
        try:
            outcome = await collect(wanted, coordination, settings.url(wanted.environment), ports, progress)
        finally:
            ignore(LISTENED)
        tasks.cancel_scope.cancel()
        return outcome


def _waits(coordination: Coordination, disk: Disk) -> str:
    """For people: which servers, and whether the disk, have not answered for a while; or nothing."""
    assert isinstance(disk, ThreadDisk), "of production_ports"
    return ", ".join(who for who in (coordination.waits(), disk.waits()) if who)


def _summary(outcome: Outcome) -> dict[str, Any]:
    own = {"exit_code": outcome.exit_code, "complete": outcome.summary.complete, "message": outcome.message}
    own["later"] = outcome.later
    return {**own, **msgspec.to_builtins(outcome.summary)}


def _print(outcome: Outcome) -> None:
    tell(outcome.message)
    summary = outcome.summary
    if summary.began:
        for line in lines_of(summary):
            tell(f"  {line}")
    for name, metric in summary.figures.metrics.items() if summary.figures is not None else ():
        if metric.mean is not None:
            between = f"{metric.low:.6g} to {metric.high:.6g}"
            tell(f"  {name}: mean {metric.mean:.6g}, {between} over {counted(metric.count, 'row')}")
