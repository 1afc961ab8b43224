"""Every fault that there is: one small class each, frozen data, in words for people.

A fault says what happens, where, and when or upon which event; `faults.inject` carries it out. Nodes are named as in
`sim.cluster`; `*` is all of them. `k` counts from 1. Seconds are virtual.

Must not know: seeds, how a fault is drawn, how it is carried out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EVERYTHING = "*"
Errno = Literal["ENOSPC", "EDQUOT", "EIO", "EACCES", "ESTALE", "EINTR"]
Operation = Literal["prepare", "commit", "restore", "resume", "retire", "forget", "status", "started"]
Loss = Literal["before", "after", "mid_reply", "hang", "hang_after", "refuse"]

LOSSES: dict[Loss, str] = {
    "before": "reset before it arrives",
    "after": "reset after it took effect and before the reply",
    "mid_reply": "reset in the middle of the reply",
    "hang": "never arrives, and nobody is told",
    "hang_after": "takes effect, and its reply never comes",
    "refuse": "refused: no connection",
}


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


# ------------------------------------------------------------------------------------------------- when


class At(_Data, frozen=True, tag="at", tag_field="when"):
    """At this time."""

    t_s: float

    def words(self) -> str:
        return f"at {self.t_s:g} s"


class OnEvent(_Data, frozen=True, tag="event", tag_field="when"):
    """Upon the trace's event of this index, the first being 1: any event at all."""

    index: int

    def words(self) -> str:
        return f"upon event {self.index}"


class OnRow(_Data, frozen=True, tag="row", tag_field="when"):
    """Upon the k-th event of this name."""

    event: str
    k: int = 1

    def words(self) -> str:
        return f"upon {_nth(self.k)} {self.event}"


class OnPhase(_Data, frozen=True, tag="phase", tag_field="when"):
    """When some participant enters this phase for the k-th time."""

    phase: str
    k: int = 1

    def words(self) -> str:
        return f"when a participant becomes {self.phase} for the {_nth(self.k)} time"


When = At | OnEvent | OnRow | OnPhase


class Restart(_Data, frozen=True):
    """How what went down comes up again. `alone`: after `after_s`, its peers having stayed up. `whole`: a batch system
    kills and restarts the whole cluster. `healing`: not before the chaos is over."""

    how: Literal["alone", "whole", "healing"] = "alone"
    after_s: float = 0.0

    def words(self) -> str:
        if self.how == "healing":
            return "stays down until the healing"
        what = "the whole cluster is restarted" if self.how == "whole" else "restarted alone"
        return f"{what} {'at once' if not self.after_s else f'after {self.after_s:g} s'}"


# ------------------------------------------------------------------------------------------------- processes


class Crash(_Data, frozen=True, tag="crash", tag_field="fault"):
    """Nodes die, and with them what they had not synced. `silent`: with their host, so that peers see no reset."""

    nodes: tuple[str, ...]
    when: When
    restart: Restart = Restart()
    silent: bool = False

    def words(self) -> str:
        who = "everything dies" if self.nodes == (EVERYTHING,) else f"{', '.join(self.nodes)} dies"
        return f"{who}{' with its host, silently,' if self.silent else ''} {self.when.words()}; {self.restart.words()}"


class CrashAtProbe(_Data, frozen=True, tag="crash_at_probe", tag_field="fault"):
    """Whoever reaches a named point of the code for the k-th time dies right there; `everything`: so do all others."""

    point: str
    k: int = 1
    restart: Restart = Restart()
    everything: bool = False

    def words(self) -> str:
        who = "everything dies" if self.everything else "the process dies"
        return f"{who} at {_nth(self.k)} {self.point}; {self.restart.words()}"


class CrashAtStep(_Data, frozen=True, tag="crash_at_step", tag_field="fault"):
    """A node dies right before or after its k-th disk step, of this name or of any."""

    node: str
    k: int
    step: str = ""
    side: Literal["before", "after"] = "before"
    restart: Restart = Restart()
    everything: bool = False

    def words(self) -> str:
        who = "everything dies" if self.everything else f"{self.node} dies"
        step = f"{_range(self.k, 1)} {self.step or 'disk'} step"
        return f"{who} right {self.side} {self.node}'s {step}; {self.restart.words()}"


class Slow(_Data, frozen=True, tag="slow", tag_field="fault"):
    """For a while everything that a node does at a named point, on its disk or over the network takes longer."""

    node: str
    from_s: float
    for_s: float
    delay_s: float

    def words(self) -> str:
        return f"{self.node} is {self.delay_s:g} s slower in all it does, {_span(self.from_s, self.for_s)}"


# ------------------------------------------------------------------------------------------------- network


class Lose(_Data, frozen=True, tag="lose", tag_field="fault"):
    """Exchanges k to k+n-1 of those to `dst` with this last part of the path (empty: any) are lost."""

    dst: str
    route: str
    how: Loss
    k: int = 1
    n: int = 1
    chunks: int = 0

    def words(self) -> str:
        return f"{_exchanges(self.dst, self.route, self.k, self.n)}: {LOSSES[self.how]}"


class Delay(_Data, frozen=True, tag="delay", tag_field="fault"):
    """Such exchanges take so much longer on the way there and on the way back."""

    dst: str
    route: str
    k: int = 1
    n: int = 1
    request_s: float = 0.0
    reply_s: float = 0.0

    def words(self) -> str:
        late = f"{self.request_s:g} s late, its reply {self.reply_s:g} s"
        return f"{_exchanges(self.dst, self.route, self.k, self.n)}: {late}"


class Duplicate(_Data, frozen=True, tag="duplicate", tag_field="fault"):
    """Such exchanges arrive twice."""

    dst: str
    route: str
    k: int = 1
    n: int = 1
    after_s: float = 0.0

    def words(self) -> str:
        return f"{_exchanges(self.dst, self.route, self.k, self.n)}: delivered again {self.after_s:g} s later"


class Jitter(_Data, frozen=True, tag="jitter", tag_field="fault"):
    """Each message takes a while of its own, up to `max_s`: messages of different connections overtake each other."""

    max_s: float

    def words(self) -> str:
        return f"every message takes up to {self.max_s:g} s"


class Partition(_Data, frozen=True, tag="partition", tag_field="fault"):
    """For a while nothing that `src` sends to `dst` arrives (one way; `*` is anyone)."""

    src: str
    dst: str
    from_s: float
    for_s: float
    silent: bool = True

    def words(self) -> str:
        how = "is lost in silence" if self.silent else "is refused"
        return f"what {self.src} asks of {self.dst} {how}, {_span(self.from_s, self.for_s)}"


# ------------------------------------------------------------------------------------------------- time


class Overrun(_Data, frozen=True, tag="overrun", tag_field="fault"):
    """One phase of a checkpoint takes longer than the checkpoint may: its calls to `dst` (or to any, `*`) are slow."""

    operation: Operation
    dst: str
    by_s: float
    k: int = 1
    n: int = 1
    side: Literal["request", "reply"] = "reply"

    def words(self) -> str:
        return f"{_exchanges(self.dst, self.operation, self.k, self.n)}: the {self.side} is {self.by_s:g} s late"


class ClockOffset(_Data, frozen=True, tag="clock_offset", tag_field="fault"):
    """A host's wall clock is off from the beginning."""

    node: str
    seconds: float

    def words(self) -> str:
        return f"the wall clock of {self.node} is {self.seconds:+g} s off"


class ClockDrift(_Data, frozen=True, tag="clock_drift", tag_field="fault"):
    """A host's wall clock gains `rate` seconds per second."""

    node: str
    rate: float

    def words(self) -> str:
        return f"the wall clock of {self.node} gains {self.rate:+g} s per second"


class ClockJump(_Data, frozen=True, tag="clock_jump", tag_field="fault"):
    """A host's wall clock is set."""

    node: str
    seconds: float
    when: When

    def words(self) -> str:
        return f"the wall clock of {self.node} jumps by {self.seconds:+g} s {self.when.words()}"


# ------------------------------------------------------------------------------------------------- disk


class DiskError(_Data, frozen=True, tag="disk_error", tag_field="fault"):
    """A node's disk steps k to k+n-1, of this name or of any, fail."""

    node: str
    errno: Errno
    k: int
    n: int = 1
    step: str = ""

    def words(self) -> str:
        return f"{self.node}'s {_range(self.k, self.n)} {self.step or 'disk'} step fails with {self.errno}"


class SlowDisk(_Data, frozen=True, tag="slow_disk", tag_field="fault"):
    """A node's disk steps k to k+n-1, of this name or of any, take `latency_s`."""

    node: str
    latency_s: float
    k: int
    n: int = 1
    step: str = ""

    def words(self) -> str:
        return f"{self.node}'s {_range(self.k, self.n)} {self.step or 'disk'} step takes {self.latency_s:g} s"


# ------------------------------------------------------------------------------------------------- signals


class Signal(_Data, frozen=True, tag="signal", tag_field="fault"):
    """The controller gets a signal; twice, `again_s` later, where that is given."""

    name: Literal["SIGUSR1", "SIGTERM"]
    when: When
    again_s: float | None = None

    def words(self) -> str:
        again = "" if self.again_s is None else f" and again {self.again_s:g} s later"
        return f"{self.name} to the controller {self.when.words()}{again}"


Fault = (
    Crash
    | CrashAtProbe
    | CrashAtStep
    | Slow
    | Lose
    | Delay
    | Duplicate
    | Jitter
    | Partition
    | Overrun
    | ClockOffset
    | ClockDrift
    | ClockJump
    | DiskError
    | SlowDisk
    | Signal
)


def kind_of(fault: Fault) -> str:
    """The name under which a fault is counted and can be switched off."""
    tag = fault.__struct_config__.tag
    assert isinstance(tag, str), "every fault has a name"
    return f"{tag}.{fault.how}" if isinstance(fault, Lose) else tag


def _nth(k: int) -> str:
    ending = "th" if k % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"the {k}{ending}"


def _range(k: int, n: int) -> str:
    return f"{k}." if n == 1 else f"{k}. to {k + n - 1}."


def _exchanges(dst: str, route: str, k: int, n: int) -> str:
    to = "anyone" if dst == EVERYTHING else dst
    return f"{_range(k, n)} {route or 'call'} to {to}"


def _span(from_s: float, for_s: float) -> str:
    return f"from {from_s:g} s for {for_s:g} s"
