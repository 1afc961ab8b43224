"""Two of trio's inner workings, done for less: a world opens hundreds of cancel scopes and takes thousands of turns.

What they do is the same; `check` fails loudly when a new trio does something else there. Like `sim.determinism`, and
nothing besides, this file touches trio's private names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from trio import CancelScope
from trio._core import _run

_SCOPE: Any = CancelScope
_REGISTERS = "_might_change_registered_deadline"
_NO_INSTRUMENTS: Mapping[str, object] = {}
"""Asked several times per turn whether it holds a hook: trio's own mapping is a class in Python, which takes longer."""


def check() -> None:
    """Raises `AssertionError` naming what this file relies on and this trio does not have."""
    names = set(getattr(_SCOPE, _REGISTERS).__wrapped__.__code__.co_names)
    known = {"_registered_deadline", "_cancel_status", "_cancel_called", "inf", "_deadline", "GLOBAL_RUN_CONTEXT"}
    known |= {"runner", "is_guest", "deadlines", "next_deadline", "remove", "add", "force_guest_tick_asap"}
    assert names == known, f"trio's {_REGISTERS} does something else now: {names ^ known}; mend sim/quicker.py"


def install(stack: ExitStack) -> None:
    """In force until `stack` is closed."""
    stack.callback(setattr, _SCOPE, _REGISTERS, getattr(_SCOPE, _REGISTERS))
    setattr(_SCOPE, _REGISTERS, _registering)


def forget_instruments() -> None:
    """In a run: nobody instruments it."""
    runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
    runner.instruments = _NO_INSTRUMENTS


def _registering(scope: Any) -> _Registering:
    return _Registering(scope)


class _Registering:
    """Within it a scope's deadline may change, and is registered again on the way out. A generator costs thrice."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope = self._scope
        old = scope._registered_deadline
        new = math.inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = _run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != math.inf:
                deadlines.remove(old, scope)
            if new != math.inf:
                deadlines.add(new, scope)
