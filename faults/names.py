"""Refuses a plan in which a name is nobody's: its fault would never strike, and the run would pass without it.

Must not know what faults do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from faults.catalogue import EVERYTHING, OnPhase, OnRow
from faults.draw import CONTROL, DATA, EVENTS, POINTS, STEPS
from faults.plan import Plan
from gym_ckpt.core.phases import Phase
from gym_ckpt.errors import ConfigError
from sim.cluster import HOST_OF, HOSTS

RARE_STEPS = ("manifest.lock", "manifest.look", "manifest.rename")
"""On a file system without hard links, which one seed in ten has; not drawn, as they would be void in the others."""
ROUTES = frozenset({
    *CONTROL, *(route for _, route, _ in DATA), "forget", "tools", "health", "messages", "models", "claim",
    "manifest", "verify", "delete", "sweep",
})  # fmt: skip
SOURCES = ("gym_ckpt", "sim", "faults")
_DOTTED = re.compile(r'"([a-z_]+(?:\.[a-z_]+)+)"')
_KNOWN: dict[str, tuple[str, Collection[str]]] = {
    "point": ("named point", POINTS),
    "step": ("disk step", ("", *RARE_STEPS, *(step for steps in STEPS.values() for step in steps))),
    "route": ("route", ("", *ROUTES)),
    "host": ("host", HOSTS),
    "phase": ("phase", tuple(map(str, Phase))),
    **dict.fromkeys(("node", "one", "other"), ("node", tuple(HOST_OF))),
    **dict.fromkeys(("nodes", "src", "dst"), ("node", (EVERYTHING, *HOST_OF))),
}
"""By the name of a fault's field: what it names, and what there is."""


def check_names(plan: Plan) -> None:
    """Raises `ConfigError`. The tools and the events of an application are its author's: there any name will do."""
    free = {"route", "event"} if plan.setup.apps else set()
    for at, fault in enumerate(plan.faults):
        for field, name in _names(fault):
            what, known = ("event", EVENTS) if field == "event" else _KNOWN[field]
            if field in free or name in known or (field == "event" and name in emitted()):
                continue
            near = difflib.get_close_matches(name, emitted() if field == "event" else known, 1)
            listed = ", ".join(sorted(filter(None, known)))
            hint = f"did you mean {near[0]!r}?" if near else f"there are, for one, {listed}"
            raise ConfigError(f"not a fault plan: faults[{at}] ({fault.words()}): there is no {what} {name!r}; {hint}")


def known() -> list[tuple[str, list[str], list[str]]]:
    """For people: what is named, by which fields of faults, and what there is. Fields that differ in `*` apart."""
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for field, (what, there_are) in _KNOWN.items():
        rows.setdefault((what, tuple(sorted(set(there_are) - {""}))), []).append(field)
    return [(what, fields, list(there_are)) for (what, there_are), fields in rows.items()]


def _names(of: msgspec.Struct) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(of):
        value = getattr(of, field.name)
        if isinstance(value, OnRow):
            yield "event", value.event
        elif isinstance(value, OnPhase):
            yield "phase", value.phase
            if value.node:
                yield "node", value.node
        elif field.name in _KNOWN:
            yield from ((field.name, each) for each in (value if isinstance(value, tuple) else (value,)))


@lru_cache(maxsize=1)
def emitted() -> frozenset[str]:
    """Every event that the code can emit: the sources are asked, as no list of them is kept anywhere."""
    root, found = Path(__file__).parents[1], {"fault", "phase", "probe"}
    for package in SOURCES:
        for path in (root / package).rglob("*.py"):
            found.update(_DOTTED.findall(path.read_text(encoding="utf-8")))
    return frozenset(found.difference(_KNOWN["step"][1]))
