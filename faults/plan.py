"""A fault plan: frozen data that says everything about a run but its chance, which comes from the seed.

The same seed and plan give the same run. As text it is JSON, stable byte for byte; in words it is for people.

Must not know: how a plan is drawn or carried out.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from faults import forms
from faults.catalogue import Fault, Restart
from faults.schedule import Schedule
from faults.when import Count, Nth, Seconds
from gym_ckpt.errors import ConfigError
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import plain

PLAN_SCHEMA = 1


Wait = Annotated[float, msgspec.Meta(ge=0.01, le=86_400.0)]
"""Seconds that the implementation waits for something again and again: with none of them nothing would ever be done."""


class App(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`server` is an application of an author's own, made by `factory` (`package.module:factory`).

    Resources servers only: the oracle judges the other kinds by what the shipped ones say of themselves.
    """

    server: Literal["inventory", "verifier"]
    factory: str

    def words(self) -> str:
        return f"{self.server} is {self.factory}"


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is run: the workload, how the controller takes checkpoints, and what the disks are like."""

    workload: Count = 0
    every_s: Wait | None = None
    timeout_s: Wait = 20.0
    keep: Nth = 2
    grace_s: Wait = 15.0
    journalled: bool = True
    links: bool = True
    """False: a file system without hard links, as some network ones are."""
    one_sigterm_s: Seconds = 0.0
    apps: tuple[App, ...] = ()

    def words(self) -> str:
        timer = "no timer" if self.every_s is None else f"a checkpoint every {self.every_s:g} s"
        disks = "journalled" if self.journalled else "unordered"
        links = "" if self.links else ", no hard links"
        sigterm = f", SIGTERMs within {self.one_sigterm_s:g} s are one" if self.one_sigterm_s else ""
        return (
            f"workload {self.workload}, {timer} within {self.timeout_s:g} s (grace {self.grace_s:g} s), "
            f"{self.keep} kept, {disks} directories{links}{sigterm}{''.join(f', {app.words()}' for app in self.apps)}"
        )


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`chaos_s`: until when faults may strike. `requeue`: how the controller comes back after it ended by itself;
    `heal`: how everything comes up when the chaos is over; `schedule`: of tasks, shuffled where there is none."""

    setup: Setup = Setup()
    chaos_s: Seconds = 0.0
    requeue: Restart = Restart()
    heal: Restart = Restart()
    faults: tuple[Fault, ...] = ()
    schedule: Schedule | None = None
    schema: int = PLAN_SCHEMA

    def words(self) -> list[str]:
        """One line per fault, after one of how things are set up."""
        lines = [self.setup.words(), *(fault.words() for fault in self.faults)]
        lines.append(
            f"chaos ends at {self.chaos_s:g} s; a controller that ended by itself: {self.requeue.words()}; "
            f"at the healing {'all is restarted' if self.heal.how == 'whole' else 'what is down comes up'}"
        )
        return [*lines, self.schedule.words()] if self.schedule is not None else lines


def dump(plan: Plan) -> bytes:
    """The plan as JSON, one line; equal plans give equal bytes."""
    return json.dumps(plain(plan))


def load(data: bytes) -> Plan:
    """The plan in these bytes. Raises `ConfigError`, also where it names what is not there."""
    from faults.names import check_names  # which knows what is drawn, and that are plans

    try:
        value = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"not a fault plan: {error}") from None
    try:
        plan = msgspec.convert(value, Plan)
    except msgspec.ValidationError as error:
        hint = forms.hint(str(error), value, Plan)
        raise ConfigError(f"not a fault plan: {error}{hint and f'; {hint}'}") from None
    if len({app.server for app in plan.setup.apps}) < len(plan.setup.apps):
        raise ConfigError("not a fault plan: setup.apps names a server twice")
    if plan.schema != PLAN_SCHEMA:
        raise ConfigError(f"fault plan of schema {plan.schema}; this simulator reads {PLAN_SCHEMA}")
    check_names(plan)
    return plan
