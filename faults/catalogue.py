"""Every fault that there is: one small class each, frozen data, in words for people.

A fault says what happens, where, and when or upon which event; `faults.inject` carries it out. Nodes are named as in
`sim.cluster`; `*` is all of them. `k` counts from 1. Seconds are virtual. What others do wrong is in `faults.others`.

Long because every fault stands here, beside the others of its area.

Must not know: seeds, how a fault is drawn, how it is carried out.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from faults.others import (
    AsksIn,
    BadState,
    FailedReply,
    GymChanged,
    JudgeFails,
    Mislaid,
    Overload,
    RefusesWith,
    Rival,
    RivalDoes,
    SlowWorker,
    StateIs,
    Stranger,
    StrangerAsks,
    StuckWorker,
    ToolFails,
    Ungated,
    UngatedBy,
)
from faults.when import (
    EVERYTHING,
    At,
    Count,
    Data,
    Nth,
    OnEvent,
    OnPhase,
    OnRow,
    Restart,
    Seconds,
    When,
    exchanges,
    nth,
    ordinal,
    span,
)

__all__ = [
    "EVERYTHING",
    "AsksIn",
    "At",
    "BadState",
    "FailedReply",
    "GymChanged",
    "JudgeFails",
    "Mislaid",
    "OnEvent",
    "OnPhase",
    "OnRow",
    "Overload",
    "RefusesWith",
    "Restart",
    "Rival",
    "RivalDoes",
    "SlowWorker",
    "StateIs",
    "Stranger",
    "StrangerAsks",
    "StuckWorker",
    "ToolFails",
    "Ungated",
    "UngatedBy",
    "When",
]

Errno = Literal["ENOSPC", "EDQUOT", "EIO", "EACCES", "ESTALE", "EINTR"]
Look = Literal["exists", "is_dir", "listdir", "read_chunks", "size"]
Operation = Literal["prepare", "commit", "restore", "resume", "retire", "forget", "status", "started"]
Loss = Literal["before", "mid_request", "after", "mid_reply", "in_frame", "hang", "hang_after", "refuse"]

LOSSES: dict[Loss, str] = {
    "before": "reset before it arrives",
    "mid_request": "reset when half of the request is there",
    "after": "reset after it took effect and before the reply",
    "mid_reply": "reset in the middle of the reply",
    "in_frame": "reset in the midst of a part of the reply",
    "hang": "never arrives, and nobody is told",
    "hang_after": "takes effect, and its reply never comes",
    "refuse": "refused: no connection",
}


# ------------------------------------------------------------------------------------------------- processes


Side = Literal["sent", "arrived", "answering", "answered"]
MESSAGES: dict[Side, str] = {
    "sent": "request is sent",
    "arrived": "request arrives",
    "answering": "answer begins",
    "answered": "reply is there",
}


class Crash(Data, frozen=True, tag="crash", tag_field="fault"):
    """Nodes die: some, as hosts do, with what they had not synced, most without losing it. `silent`: with their host,
    so that peers see no reset."""

    nodes: Annotated[tuple[str, ...], Meta(min_length=1)]
    when: When
    restart: Restart = Restart()
    silent: bool = False

    def words(self) -> str:
        who = "everything dies" if self.nodes == (EVERYTHING,) else f"{', '.join(self.nodes)} dies"
        return f"{who}{' with its host, silently,' if self.silent else ''} {self.when.words()}; {self.restart.words()}"


class CrashAtProbe(Data, frozen=True, tag="crash_at_probe", tag_field="fault"):
    """Whoever reaches a named point of the code for the k-th time dies right there; `everything`: so do all others."""

    point: str
    k: Nth = 1
    restart: Restart = Restart()
    everything: bool = False

    def words(self) -> str:
        who = "everything dies" if self.everything else "the process dies"
        return f"{who} at {nth(self.k)} {self.point}; {self.restart.words()}"


class CrashAtStep(Data, frozen=True, tag="crash_at_step", tag_field="fault"):
    """A node dies right before or after its k-th disk step, of this name or of any."""

    node: str
    k: Nth
    step: str = ""
    side: Literal["before", "after"] = "before"
    restart: Restart = Restart()
    everything: bool = False

    def words(self) -> str:
        who = "everything dies" if self.everything else f"{self.node} dies"
        step = f"{ordinal(self.k, 1)} {self.step or 'disk'} step"
        return f"{who} right {self.side} {self.node}'s {step}; {self.restart.words()}"


class CrashHost(Data, frozen=True, tag="crash_host", tag_field="fault"):
    """A host dies, and with it all that runs there: peers see no reset, and what was not synced is gone."""

    host: str
    when: When
    restart: Restart = Restart()

    def words(self) -> str:
        return f"host {self.host} dies {self.when.words()}; {self.restart.words()}"


class CrashAtMessage(Data, frozen=True, tag="crash_at_message", tag_field="fault"):
    """A node dies right after its k-th message of a kind: it has sent a request, got one, begun to answer one, or got
    the answer."""

    node: str
    side: Side
    k: Nth
    restart: Restart = Restart()

    def words(self) -> str:
        message = f"{ordinal(self.k, 1)} {MESSAGES[self.side]}"
        return f"{self.node} dies when its {message}; {self.restart.words()}"


class Pause(Data, frozen=True, tag="pause", tag_field="fault"):
    """SIGSTOP, and SIGCONT later: the process lives and does not run; what it was sent meanwhile it sees at once."""

    node: str
    when: When
    for_s: Seconds

    def words(self) -> str:
        return f"{self.node} is stopped {self.when.words()} and goes on {self.for_s:g} s later"


class DelayAtProbe(Data, frozen=True, tag="delay_at_probe", tag_field="fault"):
    """Whoever reaches a named point of the code for the k-th time stays there for a while."""

    point: str
    by_s: Seconds
    k: Nth = 1

    def words(self) -> str:
        return f"{self.by_s:g} s pass at {nth(self.k)} {self.point}"


class FailAtProbe(Data, frozen=True, tag="fail_at_probe", tag_field="fault"):
    """Code raises an ordinary error when a named point of it is reached for the k-th time: a server answers it with 500
    and lives on, a controller ends of it, having let go of what it held."""

    point: str
    k: Nth = 1

    def words(self) -> str:
        return f"an error is raised at {nth(self.k)} {self.point}"


class Slow(Data, frozen=True, tag="slow", tag_field="fault"):
    """For a while everything that a node does at a named point, on its disk or over the network takes longer."""

    node: str
    from_s: Seconds
    for_s: Seconds
    delay_s: Seconds

    def words(self) -> str:
        return f"{self.node} is {self.delay_s:g} s slower in all it does, {span(self.from_s, self.for_s)}"


# ------------------------------------------------------------------------------------------------- network


class Lose(Data, frozen=True, tag="lose", tag_field="fault"):
    """Exchanges k to k+n-1 of those to `dst` with this last part of the path (empty: any) are lost."""

    dst: str
    route: str
    how: Loss
    k: Nth = 1
    n: Nth = 1
    chunks: Count = 0

    def words(self) -> str:
        return f"{exchanges(self.dst, self.route, self.k, self.n)}: {LOSSES[self.how]}"


class Disconnect(Data, frozen=True, tag="disconnect", tag_field="fault"):
    """The connections of such exchanges break `after_s` after they began, wherever they stand: the caller repeats them
    or has gone, and the server sees it leave."""

    dst: str
    route: str
    after_s: Seconds
    k: Nth = 1
    n: Nth = 1

    def words(self) -> str:
        return f"{exchanges(self.dst, self.route, self.k, self.n)}: the connection breaks after {self.after_s:g} s"


class SlowReader(Data, frozen=True, tag="slow_reader", tag_field="fault"):
    """The caller takes `part_s` to read each part of the reply, and the server has to wait for it."""

    dst: str
    route: str
    part_s: Seconds
    k: Nth = 1
    n: Nth = 1

    def words(self) -> str:
        return f"{exchanges(self.dst, self.route, self.k, self.n)}: each part is read in {self.part_s:g} s"


class HalfOpen(Data, frozen=True, tag="half_open", tag_field="fault"):
    """All links between two nodes go silent for good; new ones are silent for a while. Nobody sees a reset."""

    one: str
    other: str
    when: When
    for_s: Seconds

    def words(self) -> str:
        return f"links of {self.one} and {self.other} are half-open {self.when.words()}, new ones for {self.for_s:g} s"


class Delay(Data, frozen=True, tag="delay", tag_field="fault"):
    """Such exchanges take so much longer on the way there and on the way back."""

    dst: str
    route: str
    k: Nth = 1
    n: Nth = 1
    request_s: Seconds = 0.0
    reply_s: Seconds = 0.0

    def words(self) -> str:
        late = f"{self.request_s:g} s late, its reply {self.reply_s:g} s"
        return f"{exchanges(self.dst, self.route, self.k, self.n)}: {late}"


class Duplicate(Data, frozen=True, tag="duplicate", tag_field="fault"):
    """Such exchanges arrive twice: `after_s` later where they arrived, or at this moment (`when`) at whoever listens
    there by then, from a proxy that had kept them."""

    dst: str
    route: str
    k: Nth = 1
    n: Nth = 1
    after_s: Seconds = 0.0
    when: When | None = None

    def words(self) -> str:
        again = f"{self.after_s:g} s later" if self.when is None else self.when.words()
        return f"{exchanges(self.dst, self.route, self.k, self.n)}: delivered again {again}"


class Jitter(Data, frozen=True, tag="jitter", tag_field="fault"):
    """Each message takes a while of its own, up to `max_s`: messages of different connections overtake each other."""

    max_s: Seconds

    def words(self) -> str:
        return f"every message takes up to {self.max_s:g} s"


class Partition(Data, frozen=True, tag="partition", tag_field="fault"):
    """For a while nothing that `src` sends to `dst` arrives, neither requests nor replies (one way; `*` is anyone)."""

    src: str
    dst: str
    from_s: Seconds
    for_s: Seconds
    silent: bool = True

    def words(self) -> str:
        how = "is lost in silence" if self.silent else "is refused"
        return f"what {self.src} sends to {self.dst} {how}, {span(self.from_s, self.for_s)}"


# ------------------------------------------------------------------------------------------------- time


class Overrun(Data, frozen=True, tag="overrun", tag_field="fault"):
    """One phase of a checkpoint takes longer than the checkpoint may: its calls to `dst` (or to any, `*`) are slow."""

    operation: Operation
    dst: str
    by_s: Seconds
    k: Nth = 1
    n: Nth = 1
    side: Literal["request", "reply"] = "reply"

    def words(self) -> str:
        return f"{exchanges(self.dst, self.operation, self.k, self.n)}: the {self.side} is {self.by_s:g} s late"


class LeaseExpiry(Data, frozen=True, tag="lease_expiry", tag_field="fault"):
    """When a server enters a phase for the k-th time, the controller reaches it no more until its lease is over."""

    node: str
    phase: str
    for_s: Seconds
    k: Nth = 1

    def words(self) -> str:
        return f"{self.node} hears nothing for {self.for_s:g} s once it is {self.phase} for {nth(self.k)} time"


class LateTimers(Data, frozen=True, tag="late_timers", tag_field="fault"):
    """For a while whatever wakes a node, its timers above all, is noticed `by_s` late, as by a busy event loop."""

    node: str
    from_s: Seconds
    for_s: Seconds
    by_s: Seconds

    def words(self) -> str:
        return f"{self.node} wakes {self.by_s:g} s late, {span(self.from_s, self.for_s)}"


Shift = Annotated[float, Meta(ge=-1e9, le=1e9)]
"""Seconds by which a wall clock is off or set, either way: thirty years at most."""


class ClockOffset(Data, frozen=True, tag="clock_offset", tag_field="fault"):
    """The wall clock of a node's host is off from the beginning."""

    node: str
    seconds: Shift

    def words(self) -> str:
        return f"the wall clock of {self.node}'s host is {self.seconds:+g} s off"


class ClockDrift(Data, frozen=True, tag="clock_drift", tag_field="fault"):
    """The wall clock of a node's host gains `rate` seconds per second."""

    node: str
    rate: Annotated[float, Meta(gt=-1.0, le=10.0)]

    def words(self) -> str:
        return f"the wall clock of {self.node}'s host gains {self.rate:+g} s per second"


class ClockJump(Data, frozen=True, tag="clock_jump", tag_field="fault"):
    """The wall clock of a node's host is set."""

    node: str
    seconds: Shift
    when: When

    def words(self) -> str:
        return f"the wall clock of {self.node}'s host jumps by {self.seconds:+g} s {self.when.words()}"


# ------------------------------------------------------------------------------------------------- disk


class DiskError(Data, frozen=True, tag="disk_error", tag_field="fault"):
    """Of a node's disk steps k to k+n-1, of this name or of any, the `call`-th call fails, as disks do: a part of a
    write stays, and what a failed fsync was to save may be lost for good. `after`: once all of it is done. `calls`: so
    many in a row, among them what is to undo the first."""

    node: str
    errno: Errno
    k: Nth
    n: Nth = 1
    step: str = ""
    after: bool = False
    call: Nth = 1
    calls: Nth = 1

    def words(self) -> str:
        step = f"{self.node}'s {ordinal(self.k, self.n)} {self.step or 'disk'} step"
        only = self.call == self.calls == 1
        nth_call = "" if only else f" in its {ordinal(self.call, self.calls)} call"
        return f"{step} fails with {self.errno}{nth_call}{' after its effect' if self.after else ''}"


class SlowDisk(Data, frozen=True, tag="slow_disk", tag_field="fault"):
    """A node's disk steps k to k+n-1, of this name or of any, take `latency_s`."""

    node: str
    latency_s: Seconds
    k: Nth
    n: Nth = 1
    step: str = ""

    def words(self) -> str:
        return f"{self.node}'s {ordinal(self.k, self.n)} {self.step or 'disk'} step takes {self.latency_s:g} s"


class NotThere(Data, frozen=True, tag="not_there", tag_field="fault"):
    """As on a network file system: of a node's looks of one kind at what is there, each from the k-th to the k+n-1-th
    is told that it is not (ENOENT), once. The next look at the same name sees it."""

    node: str
    look: Look
    k: Nth
    n: Nth = 1

    def words(self) -> str:
        return f"{self.node}'s {ordinal(self.k, self.n)} {self.look} of what is there says ENOENT, once for each name"


class BitFlip(Data, frozen=True, tag="bit_flip", tag_field="fault"):
    """A bit of a file of the newest checkpoint rots at rest. Strikes only while there is an older one to go back to."""

    when: When
    file: Count = 0
    bit: Count = 0

    def words(self) -> str:
        return f"a bit of file {self.file} of the newest checkpoint flips {self.when.words()}"


# ------------------------------------------------------------------------------------------------- signals


class Signal(Data, frozen=True, tag="signal", tag_field="fault"):
    """The controller gets a signal; twice, `again_s` later, where that is given. `group`: its whole job gets it, and
    servers that do not listen to it die."""

    name: Literal["SIGUSR1", "SIGTERM"]
    when: When
    again_s: Seconds | None = None
    group: bool = False

    def words(self) -> str:
        again = "" if self.again_s is None else f" and again {self.again_s:g} s later"
        return f"{self.name} to the {'whole job' if self.group else 'controller'} {self.when.words()}{again}"


Fault = (
    Crash
    | CrashHost
    | CrashAtProbe
    | CrashAtStep
    | CrashAtMessage
    | Pause
    | DelayAtProbe
    | FailAtProbe
    | Slow
    | Lose
    | Delay
    | Duplicate
    | Jitter
    | Partition
    | Disconnect
    | SlowReader
    | HalfOpen
    | Overrun
    | LeaseExpiry
    | LateTimers
    | ClockOffset
    | ClockDrift
    | ClockJump
    | DiskError
    | SlowDisk
    | NotThere
    | BitFlip
    | Signal
    | SlowWorker
    | StuckWorker
    | Overload
    | FailedReply
    | ToolFails
    | JudgeFails
    | BadState
    | GymChanged
    | Mislaid
    | Stranger
    | Rival
    | Ungated
)


KINDS: tuple[str, ...] = tuple(
    name
    for kind in get_args(Fault)
    for tag in (str(kind.__struct_config__.tag),)
    for name in ([f"{tag}.{how}" for how in LOSSES] if kind is Lose else [tag])
)
"""Every name under which a fault is counted."""


OF_EXCHANGES: frozenset[str] = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (
        *(Lose, Delay, Duplicate, Partition, Disconnect, SlowReader, Overrun),
        *(SlowWorker, StuckWorker, FailedReply),
    )
)
"""Of those that strike a request as it is sent."""


def kind_of(fault: Fault) -> str:
    """The name under which a fault is counted and can be switched off."""
    tag = fault.__struct_config__.tag
    assert isinstance(tag, str), "every fault has a name"
    return f"{tag}.{fault.how}" if isinstance(fault, Lose) else tag
