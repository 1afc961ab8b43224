"""The HTML page of a run: `page.html` with the run's data in it. One file, no network, no library.

Data goes in as columns, since a page may have 20,000 rows; texts are cut to what a person reads. It is ASCII: a trace
may hold what is no text at all, lone surrogates among it, which the strict `gym_ckpt.wire.json` rightly refuses.

Must not know how anything is drawn: that is the template's.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sim.picture.model import Diagram, diagram
from sim.run import Verdict
from sim.trace import Row

TEMPLATE = Path(__file__).with_name("page.html")
DATA = "/*data*/"
_FIELD_CHARS, _ROW_CHARS = 160, 600


def html(verdict: Verdict, command: str = "", stopped: str = "") -> bytes:
    """The page of a judged run, as far as it still has its rows; `command` brings the run back. `stopped`: where it
    was, in words: nobody knows then what would have broken later."""
    # What could end the script's element must not be in it, nor what could begin a comment.
    data = json.dumps(data_of(diagram(verdict), command, stopped), separators=(",", ":")).replace("<", "\\u003c")
    return _template().replace(DATA, data, 1).encode()


@cache
def _template() -> str:
    text = TEMPLATE.read_text(encoding="utf-8")
    assert text.count(DATA) == 1, f"{TEMPLATE.name} must have one place for its data"
    return text


def data_of(found: Diagram, command: str = "", stopped: str = "") -> dict[str, Any]:
    """What the page's script reads; see there."""
    verdict, rows = found.verdict, found.rows
    names = list(dict.fromkeys(row.event for row in rows))
    rollouts = list(dict.fromkeys(each for whose in found.rollouts for each in whose))
    number = {name: index for index, name in enumerate(names)}
    place = {name: index for index, name in enumerate(rollouts)}
    lane = {name: index for index, name in enumerate(found.lanes)}
    return {
        "about": {
            "seed": verdict.seed,
            "profile": verdict.profile,
            "bug": verdict.bug,
            "hash": verdict.hash,
            "events": verdict.events,
            "virtual_s": verdict.virtual_s,
            "faults": dict(verdict.faults),
            "plan": verdict.plan.words(),
            "command": command,
            "stopped": stopped,
            "first": found.first,
        },
        "lanes": list(found.lanes),
        "names": names,
        "rollouts": rollouts,
        "rows": {
            "t": [round(row.t, 7) for row in rows],
            "lane": [lane.get(row.node, -1) for row in rows],
            "name": [number[row.event] for row in rows],
            "text": [_text(row) for row in rows],
            "whose": [[place[each] for each in whose] for whose in found.rollouts],
        },
        "messages": [
            [
                each.number, lane.get(each.src, -1), lane.get(each.dst, -1), each.kind, each.route, each.sent,
                each.arrived, each.head, each.end, each.ending, each.detail, each.struck,
                place.get(each.rollout, -1), each.dst,
            ]
            for each in found.messages
        ],
        "spans": [[lane.get(each.node, -1), each.what, each.label, each.since, each.upto] for each in found.spans],
        "marks": [[lane.get(each.node, -1), each.row, each.what, each.label] for each in found.marks],
        "windows": [[each.since_s, each.upto_s, each.label] for each in found.windows],
        "breaks": [
            {
                "invariant": each.invariant,
                "lane": lane.get(each.node, -1),
                "node": each.node,
                "row": each.row,
                "seen": _cut(each.seen, 2 * _ROW_CHARS),
                "must": each.must,
            }
            for each in found.breaks
        ],
    }  # fmt: skip


def _text(row: Row) -> str:
    return _cut(" ".join(f"{key}={_cut(_value(value), _FIELD_CHARS)}" for key, value in row.fields.items()), _ROW_CHARS)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    return str(value)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"
