"""What the rows of a trace mean, as things that can be drawn: lanes, messages, spans, marks, and whose each row is.

Rows are named by their place in the trace, from 0; the last one stands for the end of the run. Pure.

Must not know how anything is drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from faults.catalogue import OF_EXCHANGES, Fault
from gym_ckpt.errors import GymCkptError
from gym_ckpt.types import EpisodeId
from sim.oracle.findings import key_of
from sim.run import Verdict
from sim.trace import Row

LANES = ("controller", "environment", "agent", "inventory", "verifier", "policy", "policy2", "worker", "worker2")
"""From top to bottom, as work goes through them; nodes that have other names follow in the order of their first row."""
_OPEN = -1

MessageKind = Literal["control", "rollout", "episode", "tool", "model", "copy"]
Ending = Literal["replied", "failed", "left", "open"]


@dataclass(slots=True)
class Message:
    """One exchange. Rows of its steps; -1 where it did not come to that. `struck`: what a fault did to it."""

    number: int
    src: str
    dst: str
    kind: MessageKind
    route: str
    sent: int
    arrived: int = _OPEN
    head: int = _OPEN
    end: int = _OPEN
    ending: Ending = "open"
    detail: str = ""
    struck: str = ""
    rollout: str = ""


@dataclass(slots=True)
class Span:
    """Something that lasts, on a node's lane. `upto`: the row that ends it."""

    node: str
    what: Literal["life", "phase", "closed", "checkpoint"]
    label: str
    since: int
    upto: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happens at a row, worth a sign of its own."""

    node: str
    row: int
    what: Literal["crash", "died", "exit", "fault", "signal", "world", "published", "failed"]
    label: str


@dataclass(frozen=True, slots=True)
class Window:
    """A planned fault that lasts, in virtual seconds."""

    since_s: float
    upto_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Break:
    """A violation and the row at which it was seen."""

    invariant: str
    node: str
    row: int
    seen: str
    must: str


@dataclass(slots=True)
class Diagram:
    """A whole run. `rollouts`: per row, whose it is; more than one where a row names several, none where nobody's."""

    verdict: Verdict
    rows: Sequence[Row]
    first: int
    """Number of the first row, from 0: a trace may have lost its beginning."""
    lanes: tuple[str, ...]
    messages: list[Message] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    rollouts: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def last(self) -> int:
        return max(len(self.rows) - 1, 0)


def diagram(verdict: Verdict) -> Diagram:
    """The run of this verdict, as far as it still has the rows."""
    rows = verdict.rows
    found = Diagram(verdict, rows, verdict.events - len(rows), _lanes(rows))
    messages = _Messages()
    spans = _Spans(found)
    for index, row in enumerate(rows):
        messages.saw(index, row)
        spans.saw(index, row)
        found.marks.extend(_marks(index, row))
    spans.close()
    found.messages = list(messages.all.values())
    found.rollouts = [_rollouts(row, messages.all) for row in rows]
    found.windows = list(_windows(verdict.plan.faults, rows))
    found.breaks = [
        Break(each.invariant, each.node, _place(found, each.event_index, each.t), each.seen, each.must)
        for each in verdict.violations
    ]
    return found


def _lanes(rows: Iterable[Row]) -> tuple[str, ...]:
    """Nodes that do something of their own: whoever only asks for the state of others gets no lane."""
    busy = dict.fromkeys(row.node for row in rows if row.node and not _only_looks(row))
    known = [name for name in LANES if name in busy]
    return (*known, *(name for name in busy if name not in known))


def _only_looks(row: Row) -> bool:
    path = row.fields.get("path", "")
    return row.event in ("node.started", "net.replied", "net.failed", "net.left") or path.endswith("/status")


def _place(found: Diagram, event_index: int, t: float) -> int:
    """The row of a violation; one that no event shows stands at the last row of its time."""
    index = event_index - 1 - found.first if event_index > 0 else bisect_right(found.rows, t, key=lambda row: row.t) - 1
    return min(max(index, 0), found.last)


# ------------------------------------------------------------------------------------------------- messages


def _windows(planned: Iterable[Fault], rows: Sequence[Row]) -> Iterator[Window]:
    """Of faults that last: from a time on, or from where they struck."""
    struck: dict[str, float] = {}
    for row in rows:
        if row.event == "fault":
            struck.setdefault(row.fields["words"], row.t)
    for fault in planned:
        for_s = getattr(fault, "for_s", None)
        since_s = getattr(fault, "from_s", struck.get(fault.words()))
        if for_s is not None and since_s is not None:
            yield Window(since_s, since_s + for_s, fault.words())


class _Messages:
    """Puts exchanges together from their rows."""

    def __init__(self) -> None:
        self.all: dict[int, Message] = {}
        self._struck: list[tuple[str, str]] = []

    def saw(self, index: int, row: Row) -> None:
        match row.event:
            case "net.request":
                self._sent(index, row)
            case "net.duplicate":
                copy = Message(row.fields["x"], row.node, row.node, "copy", _route(row.fields["path"]), index)
                copy.rollout = _rollout_of_path(row.fields["path"])
                self.all[copy.number] = copy
            case "net.arrived":
                if (message := self.all.get(row.fields["x"])) is not None:
                    message.arrived, message.dst = index, row.node
            case "net.head":
                if (message := self.all.get(row.fields["x"])) is not None:
                    message.head, message.detail = index, f"status {row.fields['status']}"
            case "net.replied" | "net.failed" | "net.left":
                self._ended(index, row)
            case "fault" if row.fields["kind"].partition(".")[0] in OF_EXCHANGES:
                self._struck.append((row.node, row.fields["words"]))

    def _sent(self, index: int, row: Row) -> None:
        path, call = row.fields["path"], row.fields.get("call", "")
        message = Message(row.fields["x"], row.node, row.fields["dst"], _kind(row.node, path), _route(path), index)
        message.rollout = _rollout_of_path(path) or rollout_of(_of_call(call) or "")
        message.struck = "; ".join(words for node, words in self._struck if node == row.node)
        self._struck.clear()
        self.all[message.number] = message

    def _ended(self, index: int, row: Row) -> None:
        message = self.all.get(row.fields["x"])
        if message is None:
            return
        message.end = index
        match row.event:
            case "net.replied":
                message.ending = "replied"
            case "net.failed":
                message.ending, message.detail = "failed", str(row.fields["error"])
            case _:
                message.ending = "left"


def _kind(src: str, path: str) -> MessageKind:
    if "/ng-control/" in path:
        return "control"
    if path.endswith("/completions"):
        return "model"
    if src == "controller":
        return "rollout"
    return "tool" if src == "agent" else "episode"


def _route(path: str) -> str:
    return path.rpartition("/")[2]


# ------------------------------------------------------------------------------------------------- whose


@lru_cache(maxsize=4096)
def rollout_of(key: str) -> str:
    """The rollout of a capture key; nothing where it is none."""
    try:
        return EpisodeId.from_key(key).rollout_id
    except (GymCkptError, ValueError):
        return ""


def _of_call(call: str | None) -> str | None:
    """The capture key in the name of a model call, `<key>.c<turn>.<number>`."""
    return call.rpartition(".c")[0] if call else None


def _rollout_of_path(path: str) -> str:
    return rollout_of(key_of(path))


def _rollouts(row: Row, messages: Mapping[int, Message]) -> tuple[str, ...]:
    fields = row.fields
    if (number := fields.get("x")) is not None and (message := messages.get(number)) is not None:
        return (message.rollout,) if message.rollout else ()
    keys = [fields.get("episode"), *(_of_call(fields.get(name)) for name in ("call", "call_id"))]
    for name in ("episodes", "scope", "targets", "rollouts"):
        keys += fields.get(name, ())
    return tuple(dict.fromkeys(found for key in keys if (found := rollout_of(key or ""))))


# ------------------------------------------------------------------------------------------------- spans


class _Spans:
    """What lasts: lives, phases, closed admission, and the checkpoints of the controller."""

    def __init__(self, found: Diagram) -> None:
        self._diagram = found
        self._open: dict[tuple[str, str], Span] = {}

    def saw(self, index: int, row: Row) -> None:
        node = row.node
        match row.event:
            case "node.started":
                self._begin(index, Span(node, "life", f"life {row.fields['epoch']}", index, index))
            case "node.crashed" | "node.died" | "node.exited":
                for what in ("phase", "closed", "checkpoint", "life"):
                    self._end(index, node, what)
            case "phase":
                self._end(index, node, "phase")
                if row.fields["now"] != "idle":
                    self._begin(index, Span(node, "phase", row.fields["now"], index, index))
            case "admission.closed":
                self._begin(index, Span(node, "closed", "admission closed", index, index))
            case "admission.opened":
                self._end(index, node, "closed")
            case "collector.checkpoint_opened":
                self._begin(index, Span(node, "checkpoint", "checkpoint", index, index))
            case "collector.checkpoint_closed":
                self._end(index, node, "checkpoint")

    def _begin(self, index: int, span: Span) -> None:
        self._end(index, span.node, span.what)
        self._open[span.node, span.what] = span

    def _end(self, index: int, node: str, what: str) -> None:
        span = self._open.pop((node, what), None)
        if span is not None:
            span.upto = index
            self._diagram.spans.append(span)

    def close(self) -> None:
        """The run is over, and with it whatever lasts."""
        for node, what in list(self._open):
            self._end(self._diagram.last, node, what)
        self._diagram.spans.sort(key=lambda span: (span.since, span.node, span.what))


# ------------------------------------------------------------------------------------------------- marks


def _marks(index: int, row: Row) -> Iterable[Mark]:
    fields = row.fields
    match row.event:
        case "fault":
            yield Mark(row.node, index, "fault", fields["words"])
        case "node.crashed":
            yield Mark(row.node, index, "crash", f"{row.node} crashes")
        case "node.died":
            yield Mark(row.node, index, "died", f"{row.node} dies of {fields['error']}")
        case "node.exited":
            yield Mark(row.node, index, "exit", f"{row.node} exits")
        case "node.signal":
            yield Mark(row.node, index, "signal", fields["name"])
        case "world.healing":
            yield Mark("", index, "world", "healing: no more faults")
        case "world.complete":
            yield Mark("", index, "world", "the controller has completed")
        case "collector.published":
            yield Mark(row.node, index, "published", f"published {fields['checkpoint_id']}")
        case "collector.checkpoint_failed":
            yield Mark(row.node, index, "failed", f"checkpoint failed: {fields['reason']}")
