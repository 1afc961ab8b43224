"""Stops a run that is played again: before its end, or in a debugger in the middle of the code that emitted an event.

Must not know what the events mean.
"""

from __future__ import annotations

import pdb
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import click

from sim.trace import Row
from sim.world import World

Watch = Callable[[World], None]
OURS = ("sim.trace", "sim.world", "sim.ports", "sim.stop", "sim.keeper", "sim.oracle*", "faults.*")
"""Modules between an event and the code that emitted it, as globs: the debugger does not stop in them."""


class Stopped(Exception):
    """The run was to end here."""


@dataclass(frozen=True, slots=True)
class Until:
    """An event by its number in the trace, from 1, or a moment in virtual seconds."""

    event: int | None = None
    t: float | None = None

    def words(self) -> str:
        return f"event {self.event}" if self.event is not None else f"{self.t:g} s"

    def is_over(self, number: int, row: Row) -> bool:
        """Whether the row with this number comes after what is wanted."""
        return number > self.event if self.event is not None else self.t is not None and row.t > self.t

    def count(self, rows: tuple[Row, ...], first: int) -> int:
        """How many of these rows, the first of which has the number `first`, are wanted."""
        return sum(not self.is_over(first + index, row) for index, row in enumerate(rows))


class UntilType(click.ParamType[Until]):
    """`1194` is an event, `2.5` or `2.5s` a moment."""

    name = "EVENT|T"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Until:
        """Raises `click.BadParameter`."""
        if isinstance(value, Until):
            return value
        text = str(value)
        if text.isdecimal() and int(text) == 0:
            self.fail("events are counted from 1; the moment at which a run begins is 0s", param, ctx)
        if text.isdecimal():
            return Until(event=int(text))
        try:
            t = float(text.removesuffix("s"))
        except ValueError:
            t = -1.0
        if not 0 <= t < float("inf"):
            self.fail(f"{text!r} is neither the number of an event (1194) nor a time (2.5s)", param, ctx)
        return Until(t=t)


def stopping(until: Until) -> Watch:
    """Ends the run at the first row that comes after `until`."""

    def watch(world: World) -> None:
        def saw(row: Row) -> None:
            if until.is_over(world.trace.events, row):
                raise Stopped

        world.trace.subscribe(saw)

    return watch


class Debugger:
    """Opens pdb once, at an event, in the frame that emitted it. `entered`: it came to that."""

    def __init__(self, event: int) -> None:
        self.event = event
        self.entered = False
        self._pdb: pdb.Pdb | None = None

    @property
    def quit(self) -> bool:
        """The person at the prompt has had enough."""
        return bool(self._pdb is not None and self._pdb.quitting)

    def __call__(self, world: World) -> None:
        def saw(row: Row) -> None:
            if world.trace.events == self.event:
                self._enter(row)

        world.trace.subscribe(saw)

    def _enter(self, row: Row) -> None:
        self.entered = True
        print(f"event {self.event} at {row.t:.6f} s, {row.node or 'world'}: {row.event}", flush=True)
        self._pdb = pdb.Pdb(skip=OURS, nosigint=True)
        self._pdb.set_trace(_emitter(sys._getframe()))


def _emitter(frame: FrameType) -> FrameType:
    """The nearest frame below which the code is not the simulator's way of recording events."""
    at: FrameType = frame
    prefixes = tuple(name.rstrip("*.") for name in OURS)
    while at.f_back is not None and str(at.f_globals.get("__name__")).startswith(prefixes):
        at = at.f_back
    return at
