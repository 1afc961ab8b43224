"""Makes a failing plan smaller, while the same breaks: shuffles plainly, drops faults, one or several at a time, gives
the parameters of those that are left, and of the setup, their defaults, and makes what then is left of them smaller:
fewer names, and times and counts that are rounder and lower.

Greedy and bounded: a campaign shrinks its first failure before anyone looks at it. What is lowered is tried once for
each number, not searched for. Must not know what faults mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_origin

import msgspec

from faults.plan import Plan, Setup

RUNS_MAX = 60
PLAINER_MAX = 40
"""How many parameters are tried."""
LOWER_MAX = 40
"""How many lower numbers and shorter lists of names are tried."""
StillFails = Callable[[Plan], bool]
S = TypeVar("S", bound=msgspec.Struct)


def shrink(
    plan: Plan,
    still_fails: StillFails,
    runs_max: int = RUNS_MAX,
    plainer_max: int = PLAINER_MAX,
    lower_max: int = LOWER_MAX,
) -> Plan:
    """A plan with a subset of the faults, with plainer and lower parameters, and without its schedule if that goes,
    that `still_fails`; `plan` must."""
    plan = _unscheduled(plan, still_fails)
    smaller = _fewer(plan, still_fails, runs_max)
    if smaller != plan:
        smaller = _unscheduled(smaller, still_fails)
    return _lower(_plainer(smaller, still_fails, plainer_max), still_fails, lower_max)


def _unscheduled(plan: Plan, still_fails: StillFails) -> Plan:
    shuffled = msgspec.structs.replace(plan, schedule=None)
    return plan if plan.schedule is None or not still_fails(shuffled) else shuffled


def _fewer(plan: Plan, still_fails: StillFails, runs_max: int) -> Plan:
    runs = 0
    size = max(1, len(plan.faults) // 2)
    while True:
        at = 0
        while at < len(plan.faults):
            if runs >= runs_max:
                return plan
            fewer = msgspec.structs.replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])
            runs += 1
            if still_fails(fewer):
                plan = fewer
            else:
                at += size
        if size == 1:
            return plan
        size //= 2


def _plainer(plan: Plan, still_fails: StillFails, runs_max: int) -> Plan:
    """Every parameter is tried once, in the order in which people read them."""
    for plainer in [*map(_fault_at, range(len(plan.faults))), _of_setup, _of_plan]:
        for name in _unusual(plainer(plan, "")[1]):
            if runs_max == 0:
                return plan
            runs_max -= 1
            candidate, _ = plainer(plan, name)
            if still_fails(candidate):
                plan = candidate
    return plan


def _lower(plan: Plan, still_fails: StillFails, runs_max: int) -> Plan:
    """Each fault, one value after the other; a candidate that still fails is the plan from then on."""
    for at in range(len(plan.faults)):
        for path in _values(plan.faults[at]):
            for value in _simpler(_get(plan.faults[at], path)):
                if runs_max == 0:
                    return plan
                runs_max -= 1
                fault = _put(plan.faults[at], path, value)
                candidate = msgspec.structs.replace(plan, faults=(*plan.faults[:at], fault, *plan.faults[at + 1 :]))
                if still_fails(candidate):
                    plan = candidate
                    break
    return plan


Path = tuple[str, ...]
"""Names of attributes from a fault to one of its values."""


def _values(of: msgspec.Struct, before: Path = ()) -> list[Path]:
    """Its own, and those of when it strikes and how its victims come back; not what is one of a few by name."""
    found: list[Path] = []
    for field in msgspec.structs.fields(of):
        value, path = getattr(of, field.name), (*before, field.name)
        if get_origin(field.type) is not Literal:
            found += _values(value, path) if isinstance(value, msgspec.Struct) else [path]
    return found


def _get(of: Any, path: Path) -> Any:
    for name in path:
        of = getattr(of, name)
    return of


def _put(of: S, path: Path, value: Any) -> S:
    name, *rest = path
    return msgspec.structs.replace(of, **{name: _put(getattr(of, name), tuple(rest), value) if rest else value})


def _simpler(value: Any) -> list[Any]:
    """The values to try in its place, the simplest first."""
    if isinstance(value, tuple) and len(value) > 1:
        return [*((each,) for each in value), *(value[:at] + value[at + 1 :] for at in range(len(value)))]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    if isinstance(value, int):
        return [each for each in dict.fromkeys((1, value // 2)) if 0 < each < value]
    tried = dict.fromkeys((float(round(value / 2)), float(round(value)), round(value, 1)))
    return [each for each in tried if each and len(repr(each)) <= len(repr(value)) and each != value]


Part = Callable[[Plan, str], tuple[Plan, msgspec.Struct]]
"""Gives the parameter of this name its default, if there is a name; the plan then, and the part that has it."""


def _fault_at(at: int) -> Part:
    def part(plan: Plan, name: str) -> tuple[Plan, msgspec.Struct]:
        fault = _usual(plan.faults[at], name)
        return msgspec.structs.replace(plan, faults=(*plan.faults[:at], fault, *plan.faults[at + 1 :])), fault

    return part


def _of_setup(plan: Plan, name: str) -> tuple[Plan, msgspec.Struct]:
    setup = _usual(plan.setup, name)
    return msgspec.structs.replace(plan, setup=setup), setup


def _of_plan(plan: Plan, name: str) -> tuple[Plan, msgspec.Struct]:
    plainer = _usual(plan, name)
    return plainer, msgspec.structs.replace(plainer, setup=Setup(), faults=(), chaos_s=0.0)


def _unusual(of: msgspec.Struct) -> list[str]:
    """Its parameters that are not as they are by default."""
    fields = msgspec.structs.fields(of)
    return [field.name for field in fields if not field.required and getattr(of, field.name) != field.default]


def _usual(of: S, name: str) -> S:
    defaults = {field.name: field.default for field in msgspec.structs.fields(of) if field.name == name}
    return msgspec.structs.replace(of, **defaults)
