"""Clock, entropy, signals and tracing of a real process, and the `Ports` made of all the adapters."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import resource
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import anyio

from gym_ckpt.adapters.host import let_through, open_files_allowed
from gym_ckpt.adapters.http_client import HttpxClient, ScalingTransport
from gym_ckpt.adapters.posix import ThreadDisk
from gym_ckpt.adapters.uvicorn_server import UvicornServer
from gym_ckpt.limits import FILES_PER_ROLLOUT, FILES_RESERVED
from gym_ckpt.ports import Ports, Tracer

LISTENED: Final = (signal.SIGTERM, signal.SIGUSR1)
LOGGER: Final = "gym_ckpt"
NOTABLE: Final = frozenset(
    {
        "coordination.renew_failed", "coordination.restore_lapsed", "coordination.resume_failed",
        "coordination.undo_failed", "gate.broken", "lease.expired", "restore.discarded",
    }
)  # fmt: skip
"""Events that an operator asks about afterwards."""
GC_THRESHOLDS: Final = (50_000, 20, 20)


class SystemClock:
    """`ports.Clock`."""

    def wall(self) -> float:
        return time.time()


class SystemEntropy:
    """`ports.Entropy`."""

    def __init__(self) -> None:
        self._chance = random.Random()

    def token(self, nbytes: int = 8) -> str:
        return secrets.token_hex(nbytes)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._chance.random()


class _Names(AsyncIterator[str]):
    def __init__(self, received: AsyncIterator[signal.Signals]) -> None:
        self._received = received

    async def __anext__(self) -> str:
        return (await anext(self._received)).name


class ProcessSignals:
    """`ports.Signals`. Only in the main thread, as Python demands; what is not `listened` to stays Python's."""

    def __init__(self, listened: Sequence[signal.Signals] = LISTENED) -> None:
        self._listened = listened

    def listen(self) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        return self._listen()

    @asynccontextmanager
    async def _listen(self) -> AsyncIterator[AsyncIterator[str]]:
        with anyio.open_signal_receiver(*self._listened) as received:
            let_through(self._listened)
            yield _Names(received)


class LogTracer:
    """`ports.Tracer`: one log record per event, `event {"field": value}`, on the logger `gym_ckpt`.

    Events named in `notable` are logged as INFO, with the number of entries in place of a list (a checkpoint names
    thousands of rows); the others as DEBUG, whole. Costs a level check when nobody listens.
    """

    def __init__(self, notable: Iterable[str] = NOTABLE) -> None:
        self._notable = frozenset(notable)
        self._log = logging.getLogger(LOGGER)

    def emit(self, event: str, **fields: Any) -> None:
        level = logging.INFO if event in self._notable else logging.DEBUG
        if self._log.isEnabledFor(level):
            shown = {name: _counted(value) for name, value in fields.items()} if level == logging.INFO else fields
            try:
                self._log.log(level, "%s %s", event, json.dumps(shown, default=repr))
            except Exception:  # INV-100: tracing never fails what it traces
                self._log.log(level, "%s (fields cannot be shown)", event)


def _counted(value: Any) -> Any:
    return len(value) if isinstance(value, (list, tuple, set, frozenset)) else value


class NoProbes:
    """`ports.Probes`."""

    async def __call__(self, point: str) -> None:
        return


def prepare_process() -> None:
    """Set what is the process's own for thousands of calls in flight: open files, and the garbage collector.

    Each parked call is a few hundred live objects; with Python's own thresholds, looking at all of them again and again
    was two thirds of the time of a call at 8,000 in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS allows less than it reports: what was in force stays so
        pass


@asynccontextmanager
async def production_ports(
    tracer: Tracer | None = None, listened: Sequence[signal.Signals] = LISTENED
) -> AsyncIterator[Ports]:
    """The real world for one process, on anyio's asyncio back end. Leaving it closes the idle connections."""
    prepare_process()
    # As `config_checks.check_open_files` counts: each rollout's call comes in, and makes one.
    open_max = (open_files_allowed() - FILES_RESERVED) / FILES_PER_ROLLOUT
    async with HttpxClient(ScalingTransport(open_max=open_max)) as http, HttpxClient() as control:
        yield Ports(
            clock=SystemClock(),
            entropy=SystemEntropy(),
            disk=ThreadDisk(),
            http=http,
            control=control,
            server=UvicornServer(),
            signals=ProcessSignals(listened),
            tracer=tracer or LogTracer(),
            probe=NoProbes(),
            pid=os.getpid(),
        )
