"""Where faults come in: the world asks what becomes of each exchange, disk step and probe, and is told here.

`CalmFates` is a world without trouble. `faults/` supplies others, which draw from the world's seeded streams
(`sim.streams.stream`) and from nothing else. A fate is decided once, when the thing begins.

Must not know: how a fate is carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol


class InjectedFailure(Exception):
    """Raised out of a probe whose fate is to fail. Stands for any ordinary exception at that point."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The answer of a server that is full. `asked_s`: when to come again, as its `headers` say; 0 when they do not."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExchangeFate:
    """What becomes of one HTTP exchange. Latencies are one way, in seconds of virtual time.

    `lose` resets the connection: `before` the request arrives; `mid_request` when half of its body has; `after` it took
    effect and before any of the reply; `mid_reply` when the headers and `mid_reply_chunks` body chunks are through, at
    the latest instead of the end; `in_frame` in the midst of the next chunk after those. With `hang` the same loss is
    silent (None counts as `before`): the client learns of it from its time-out, or from a reset much later. `refuse`:
    no connection at all. `duplicate` delivers the request a second time, `duplicate_delay_s` after the first, as an
    exchange of its own whose reply nobody reads. `keep` is given what delivers it once more at any time, to whoever
    listens there by then.

    `breaks_after_s`: so long after it was sent the connection breaks, wherever the exchange stands. `status`: whatever
    good answer there is, its caller gets an error of this status instead. `read_s`: the caller takes so long to read a
    part of the reply. `keep_alives`: so many come in a stream before its data, over `keep_alive_s`; a reply that is no
    stream is as much later. `turned_away`: the server answers with this, and does nothing.
    """

    request_latency_s: float = 0.001
    reply_latency_s: float = 0.001
    lose: Literal["before", "mid_request", "after", "mid_reply", "in_frame"] | None = None
    hang: bool = False
    refuse: bool = False
    mid_reply_chunks: int = 0
    duplicate: bool = False
    duplicate_delay_s: float = 0.0
    keep: Callable[[Callable[[], None]], None] | None = None
    breaks_after_s: float | None = None
    status: int = 0
    read_s: float = 0.0
    keep_alives: int = 0
    keep_alive_s: float = 0.0
    turned_away: TurnedAway | None = None


@dataclass(frozen=True, slots=True)
class DiskFailure:
    """Calls of a step fail, from the `call`-th on so many (`calls`), the disk's own way: a write leaves a part, a
    failed sync forgets. `after`: once it has taken effect. `struck` is called as one does; a step without so many calls
    does not fail."""

    errno: int
    call: int = 1
    calls: int = 1
    after: bool = False
    struck: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class DiskFate:
    """What becomes of one step of a disk job: it takes `latency_s`, one of its calls fails, or its node crashes right
    before or after it. `strike` is done then, in place of the crash of this node alone."""

    latency_s: float = 0.0001
    failure: DiskFailure | None = None
    crash: Literal["before", "after"] | None = None
    strike: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class ProbeFate:
    """What becomes of a node at a named point: first the delay, then the crash (or `strike` in its place), then
    `InjectedFailure`."""

    crash: bool = False
    delay_s: float = 0.0
    fail: bool = False
    strike: Callable[[], None] | None = None


class Fates(Protocol):
    """Asked synchronously, in an order that the seed determines. Must not block, and must not crash a node itself."""

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        """`src` and `dst` are node names; `dst` is `host:port` when nobody listens there."""
        ...

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        """`op_index` counts the disk steps of this node over all its lives, from 0."""
        ...

    def probe(self, node: str, point: str) -> ProbeFate: ...

    def behave(self, node: str, what: str) -> str:
        """How somebody else's code in this process behaves when it is asked to do `what`; empty: as it should."""
        ...


CALM_EXCHANGE = ExchangeFate()
CALM_DISK = DiskFate()
CALM_PROBE = ProbeFate()


class CalmFates:
    """Nothing goes wrong and everything takes the same short time. A base class for fates that disturb one thing."""

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        return CALM_EXCHANGE

    def disk(self, node: str, step: str, op_index: int) -> DiskFate:
        return CALM_DISK

    def probe(self, node: str, point: str) -> ProbeFate:
        return CALM_PROBE

    def behave(self, node: str, what: str) -> str:
        return ""
