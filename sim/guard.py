"""While simulated code runs, a stray use of a real clock or of real chance raises instead of breaking determinism.

Looks at the calling thread, so that a test runner's own threads are left alone, and at the calling module: logging may
stamp its records. Worker threads do not exist in simulation: what is sent to one runs inline.

Not seen: `datetime.now()`, whose type cannot be changed, and files that are only read.

Must not know trio's private names.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import anyio._backends._trio as anyio_trio
import trio

_FORBIDDEN: tuple[tuple[ModuleType | type, tuple[str, ...], str], ...] = (
    (
        time,
        (
            "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
            "process_time_ns", "thread_time", "thread_time_ns", "sleep",
        ),
        "the Clock port, anyio.current_time() or anyio.sleep()",
    ),
    (
        random,
        (
            "random", "uniform", "randint", "randrange", "getrandbits", "randbytes", "choice", "choices", "shuffle",
            "sample", "gauss", "expovariate", "seed",
        ),
        "the Entropy port",
    ),
    (uuid, ("uuid1", "uuid4"), "the Entropy port"),
    (os, ("urandom",), "the Entropy port"),
    (os, ("fork", "system"), "what a node can reach by HTTP"),
    (subprocess.Popen, ("__init__",), "what a node can reach by HTTP"),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice"), "the Entropy port"),
)  # fmt: skip
_MAY = frozenset({"logging", "threading", "warnings", "linecache"})
"""Modules whose use of these has no effect on a run."""


class StrayUse(AssertionError):
    """Simulated code used a real clock or real chance: the run would not be the same twice."""


@contextmanager
def guarded() -> Iterator[None]:
    """Make every forbidden function raise `StrayUse` in this thread until the context ends."""
    thread = threading.get_ident()
    with ExitStack() as stack:
        for module, names, instead in _FORBIDDEN:
            for name in names:
                real = getattr(module, name)
                stack.callback(setattr, module, name, real)
                where = module.__name__ if isinstance(module, ModuleType) else f"{module.__module__}.{module.__name__}"
                setattr(module, name, refusing(f"{where}.{name}", real, instead, thread))
        stack.callback(setattr, random.Random, "seed", random.Random.seed)
        setattr(random.Random, "seed", _seeding(random.Random.seed, thread))  # noqa: B010 - as below
        for opening in (builtins, io):
            stack.callback(setattr, opening, "open", vars(opening)["open"])
            setattr(opening, "open", _reading(vars(opening)["open"], thread))  # noqa: B010 - as below
        for threads in (anyio_trio, trio.to_thread):
            stack.callback(setattr, threads, "run_sync", vars(threads)["run_sync"])
            setattr(threads, "run_sync", _run_inline)  # noqa: B010 - mypy would see a reassigned function
        yield


def refusing(name: str, real: Callable[..., Any], instead: str, thread: int) -> Callable[..., Any]:
    """In its place: raises `StrayUse` in this thread, for whoever may not use it."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or sys._getframe(1).f_globals.get("__name__") in _MAY:
            return real(*args, **kwargs)
        raise StrayUse(f"{name} was used inside the simulator; use {instead}")

    return refused


def _seeding(real: Callable[..., None], thread: int) -> Callable[..., None]:
    """In place of `random.Random.seed`: without a seed the machine's own chance is taken."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and threading.get_ident() == thread:
            raise StrayUse("random.Random() was made without a seed inside the simulator; use the Entropy port")
        real(self, a, version)

    return seed


def _reading(real: Callable[..., Any], thread: int) -> Callable[..., Any]:
    """In place of `open`: what is written to the machine's disk outlives the run, and no crash touches it."""

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        mine = threading.get_ident() == thread and sys._getframe(1).f_globals.get("__name__") not in _MAY
        if mine and not isinstance(file, int) and not {*mode}.isdisjoint("wax+"):
            raise StrayUse(f"open({file!r}, {mode!r}) was used inside the simulator; use the Disk port")
        return real(file, mode, *args, **kwargs)

    return opened


async def _run_inline(sync_fn: Callable[..., Any], *args: Any, **_: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)
