"""When a fault strikes, and how what it brings down comes up again: parts of every fault.

Must not know: what faults there are.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

EVERYTHING = "*"
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
"""Virtual ones; a run of more than a day is a slip of the pen."""
Nth = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
"""What is counted, or how many: the first is 1."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""How many, or the index of one of a list."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


# ------------------------------------------------------------------------------------------------- when


class At(Data, frozen=True, tag="at", tag_field="when"):
    """At this time."""

    t_s: Seconds

    def words(self) -> str:
        return f"at {self.t_s:g} s"


class OnEvent(Data, frozen=True, tag="event", tag_field="when"):
    """Upon the trace's event of this index, the first being 1: any event at all."""

    index: Nth

    def words(self) -> str:
        return f"upon event {self.index}"


class OnRow(Data, frozen=True, tag="row", tag_field="when"):
    """Upon the k-th event of this name."""

    event: str
    k: Nth = 1

    def words(self) -> str:
        return f"upon {nth(self.k)} {self.event}"


class OnPhase(Data, frozen=True, tag="phase", tag_field="when"):
    """When some participant, or this one, enters this phase for the k-th time."""

    phase: str
    k: Nth = 1
    node: str = ""

    def words(self) -> str:
        return f"when {self.node or 'a participant'} becomes {self.phase} for {nth(self.k)} time"


When = At | OnEvent | OnRow | OnPhase


class Restart(Data, frozen=True):
    """How what went down comes up again. `alone`: after `after_s`, its peers having stayed up. `whole`: a batch system
    kills and restarts the whole cluster. `healing`: not before the chaos is over."""

    how: Literal["alone", "whole", "healing"] = "alone"
    after_s: Seconds = 0.0

    def words(self) -> str:
        if self.how == "healing":
            return "stays down until the healing"
        what = "the whole cluster is restarted" if self.how == "whole" else "restarted alone"
        return f"{what} {'at once' if not self.after_s else f'after {self.after_s:g} s'}"


# ------------------------------------------------------------------------------------------------- in words


def nth(k: int) -> str:
    ending = "th" if k % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"the {k}{ending}"


def ordinal(k: int, n: int) -> str:
    return f"{k}." if n == 1 else f"{k}. to {k + n - 1}."


def exchanges(dst: str, route: str, k: int, n: int) -> str:
    to = "anyone" if dst == EVERYTHING else dst
    return f"{ordinal(k, n)} {route or 'call'} to {to}"


def span(from_s: float, for_s: float) -> str:
    return f"from {from_s:g} s for {for_s:g} s"
