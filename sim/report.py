"""What a failing run shows first, and what it leaves behind.

The screen: what broke, seen against must; the command that brings it back; the plan in words; the last events across
nodes. The artefact, `.gym-ckpt/failures/<id>/`: `failure.json`, `plan.json`, `trace.jsonl`, `timeline.html`.

Must not know how runs are made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from faults.plan import dump
from gym_ckpt.wire import json
from sim.oracle import Violation
from sim.picture import html
from sim.run import Verdict
from sim.sources import digests, versions
from sim.trace import Row

FAILURES = Path(".gym-ckpt") / "failures"
EVENTS_SHOWN = 20
_FIELD_CHARS = 60
_LINE_CHARS = 150
_SEEN_CHARS = 450


def failure_id(verdict: Verdict) -> str:
    """The name of a failure's directory. An old plan of a seed and what the seed draws now have two."""
    own = [app.server for app in verdict.plan.setup.apps]
    parts = [verdict.profile, str(verdict.seed), verdict.bug or "", *own, verdict.origin]
    return "-".join(filter(None, parts))


def screen(verdict: Verdict, command: str) -> str:
    """The first screen of a failing run; `command` brings it back."""
    first = verdict.violations[0]
    more = len(verdict.violations) - 1
    lines = [
        f"{first.invariant} broken at {first.t:.3f} s{f' by {first.node}' if first.node else ''} "
        f"(seed {verdict.seed}, profile {verdict.profile}{f', bug {verdict.bug}' if verdict.bug else ''})",
        f"  seen: {_cut(first.seen)}",
        f"  must: {first.must}",
        *([f"  and {more} more: {', '.join(_names(verdict.violations[1:]))}"] if more else []),
        "",
        f"replay: {command}",
        "",
        f"plan{', run twice and broken the same, event for event' if verdict.confirmed else ''}:",
        *(f"  {line}" for line in verdict.plan.words()),
        "",
        f"the last {EVENTS_SHOWN} events:",
        *(f"  {line_of(row)}" for row in last_rows(verdict, first)),
    ]
    return "\n".join(lines)


def last_rows(verdict: Verdict, violation: Violation) -> list[Row]:
    """The events up to the violation, as far as the trace still has them; else up to the end."""
    upto = place_of(verdict, violation) - (verdict.events - len(verdict.rows))
    rows = verdict.rows[:upto] if 0 < upto <= len(verdict.rows) else verdict.rows
    return list(rows[-EVENTS_SHOWN:])


def place_of(verdict: Verdict, violation: Violation) -> int:
    """The number of the violating event; where no event shows it, of the last one that had happened by then."""
    if violation.event_index > 0:
        return violation.event_index
    first = verdict.events - len(verdict.rows)
    return first + bisect_right(verdict.rows, violation.t, key=lambda row: row.t)


def line_of(row: Row) -> str:
    """One event, cut to the width of a screen."""
    fields = " ".join(f"{key}={_short(value)}" for key, value in row.fields.items())
    return f"{row.t:10.6f}  {row.node or '-':<12}{row.event:<24}{fields}"[:_LINE_CHARS]


def as_json(verdict: Verdict) -> dict[str, Any]:
    """A run for machines."""
    return {
        "seed": verdict.seed,
        "profile": verdict.profile,
        "hash": verdict.hash,
        "events": verdict.events,
        "virtual_s": verdict.virtual_s,
        "faults": dict(verdict.faults),
        "violations": [violation_json(violation) for violation in verdict.violations],
        "checked": dict(verdict.checked),
        **({"confirmed": True} if verdict.confirmed else {}),
        **({"bug": verdict.bug} if verdict.bug else {}),
    }


def violation_json(violation: Violation) -> dict[str, Any]:
    """One violation for machines."""
    return {
        "invariant": violation.invariant,
        "t": violation.t,
        "node": violation.node,
        "event_index": violation.event_index,
        "seen": violation.seen,
        "must": violation.must,
    }


def write_artefact(verdict: Verdict, directory: Path = FAILURES) -> Path:
    """Keep a failing run (with all its rows) where `sim replay` finds it. Raises `OSError`."""
    place = directory / failure_id(verdict)
    place.mkdir(parents=True, exist_ok=True)
    about = {**as_json(verdict), "versions": versions(verdict.plan.setup.apps), "files": digests()}
    (place / "failure.json").write_bytes(json.dumps(about) + b"\n")
    (place / "plan.json").write_bytes(dump(verdict.plan) + b"\n")
    with (place / "trace.jsonl").open("wb") as trace:
        trace.writelines(json.dumps(_row_json(row)) + b"\n" for row in verdict.rows)
    (place / "timeline.html").write_bytes(html(verdict, f"gym-ckpt sim replay {failure_id(verdict)}"))
    return place


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "t": row.t,
        "node": row.node,
        "event": row.event,
        **{f"_{key}": _plain(row.fields[key]) for key in row.fields},
    }


def _plain(value: Any) -> Any:
    """Bytes and surrogates are shown: a trace is for reading."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _cut(text: str) -> str:
    return text if len(text) <= _SEEN_CHARS else text[: _SEEN_CHARS - 1] + "…"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _FIELD_CHARS else text[: _FIELD_CHARS - 1] + "…"


def _names(violations: Iterable[Violation]) -> list[str]:
    return sorted({violation.invariant for violation in violations})
