"""A run as a trace for https://ui.perfetto.dev or chrome://tracing: the Chrome trace event format, as JSON.

A node is a process. Its threads are its life, phase, admission, checkpoints, the ends of its messages, and everything
else as instants. A message is a flow from the end that sends to the end that receives; its whole exchange is an
asynchronous span of the node that asked, since many overlap.

A flow is bound to the slice around its time, so each end of a message is a slice of its own of `END_US`; ends of one
instant are set one after the other, which moves some by a few microseconds. Everything else stands at its virtual time.

Must not know how a picture is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from sim.picture.model import Diagram, Message, diagram
from sim.run import Verdict
from sim.trace import Row

END_US = 1.0
"""How long an end of a message lasts, in microseconds of the trace."""
WORLD = "world"
THREADS = ("events", "life", "phase", "closed", "checkpoint", "messages")
"""By their numbers; spans go to the thread of their kind."""
_MESSAGE_EVENTS = frozenset({"net.request", "net.arrived", "net.head", "net.replied"})

Event = dict[str, Any]


def perfetto(verdict: Verdict) -> bytes:
    """The trace file of a judged run, as far as it still has its rows."""
    found = diagram(verdict)
    events = [*_names(found), *_spans(found), *_messages(found), *_instants(found)]
    about = {
        "seed": verdict.seed,
        "profile": verdict.profile,
        "hash": verdict.hash,
        "violations": [f"{each.invariant} {each.seen}" for each in found.breaks],
    }
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(trace, separators=(",", ":"), allow_nan=False).encode() + b"\n"  # ASCII, as in `page`


def _pid(found: Diagram, node: str) -> int:
    return found.lanes.index(node) + 1 if node in found.lanes else 0


def _us(found: Diagram, row: int) -> float:
    return round(found.rows[row].t * 1e6, 3)


def _names(found: Diagram) -> Iterator[Event]:
    for pid, node in enumerate((WORLD, *found.lanes)):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": node}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        for tid, thread in enumerate(THREADS):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}}


def _spans(found: Diagram) -> Iterator[Event]:
    for span in found.spans:
        since = _us(found, span.since)
        yield {
            "ph": "X",
            "cat": span.what,
            "name": span.label,
            "pid": _pid(found, span.node),
            "tid": THREADS.index(span.what),
            "ts": since,
            "dur": round(_us(found, span.upto) - since, 3),
            "args": {"row": found.first + span.since + 1},
        }


def _messages(found: Diagram) -> Iterator[Event]:
    ends: list[tuple[int, str, str, str, int]] = []
    for message in found.messages:
        yield from _exchange(found, message)
        if message.arrived >= 0 and message.kind != "copy":
            flow = f"{message.number}.there"
            ends.append((message.sent, message.src, message.route, flow, message.number))
            ends.append((message.arrived, message.dst, message.route, flow, message.number))
        if message.head >= 0 and message.ending == "replied":
            flow = f"{message.number}.back"
            ends.append((message.head, message.dst, f"{message.route} reply", flow, message.number))
            ends.append((message.end, message.src, f"{message.route} reply", flow, message.number))
    yield from _ends(found, sorted(ends))


def _exchange(found: Diagram, message: Message) -> Iterator[Event]:
    end = message.end if message.end >= 0 else found.last
    common = {"cat": message.kind, "name": message.route, "id": message.number, "pid": _pid(found, message.src)}
    about = {
        "to": message.dst,
        "rollout": message.rollout,
        "ended": message.ending,
        "detail": message.detail,
        "fault": message.struck,
    }
    args = {name: value for name, value in about.items() if value}
    yield {"ph": "b", **common, "tid": THREADS.index("messages"), "ts": _us(found, message.sent), "args": args}
    yield {"ph": "e", **common, "tid": THREADS.index("messages"), "ts": max(_us(found, end), _us(found, message.sent))}


def _ends(found: Diagram, ends: list[tuple[int, str, str, str, int]]) -> Iterator[Event]:
    """Ends in the order of the trace: a slice each, and within it the flow that leaves or comes."""
    free: dict[int, float] = {}
    begun: dict[str, float] = {}
    for row, node, name, flow, number in ends:
        pid, tid = _pid(found, node), THREADS.index("messages")
        # Not before what it answers either: a flow must not go backwards in time.
        at = max(_us(found, row), free.get(pid, 0.0), begun.get(flow, 0.0))
        free[pid] = round(at + END_US, 3)
        here: Event = {"cat": "message", "name": name, "pid": pid, "tid": tid, "ts": at}
        yield {**here, "ph": "X", "dur": END_US, "args": {"x": number, "row": found.first + row + 1}}
        if flow in begun:
            yield {**here, "ph": "f", "bp": "e", "id": flow}
        else:
            begun[flow] = at
            yield {**here, "ph": "s", "id": flow}


def _instants(found: Diagram) -> Iterator[Event]:
    for index, row in enumerate(found.rows):
        if row.event not in _MESSAGE_EVENTS:
            yield _instant(found, index, row)
    for each in found.breaks:
        yield {
            "ph": "i",
            "s": "g",
            "cat": "violation",
            "name": f"{each.invariant} broken",
            "pid": _pid(found, each.node),
            "tid": THREADS.index("events"),
            "ts": _us(found, each.row) if found.rows else 0.0,
            "args": {"seen": each.seen, "must": each.must},
        }


def _instant(found: Diagram, index: int, row: Row) -> Event:
    return {
        "ph": "i",
        "s": "t" if row.node else "g",
        "cat": row.event.partition(".")[0],
        "name": row.event,
        "pid": _pid(found, row.node),
        "tid": THREADS.index("events"),
        "ts": _us(found, index),
        "args": {"row": found.first + index + 1, **{key: _shown(value) for key, value in row.fields.items()}},
    }


def _shown(value: Any) -> Any:
    """Numbers stay numbers; everything else is shown as text, whatever it holds."""
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value if isinstance(value, str) else repr(value)
