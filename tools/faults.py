"""docs/simulator/faults.md: every fault, what it does, its parameters, and how likely each profile draws it.

    ./dev run python -m tools.faults            write it
    ./dev run python -m tools.faults --check    say whether it is out of date; exit status 1 when it is

Made from `faults.catalogue`, `faults.draw` and `faults.situations`.
`SPEC` says row by row which faults are what the specification of the
simulator asks for, and `NOT_BUILT` what there is no feature for yet.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import msgspec

from faults import forms
from faults.catalogue import Fault
from faults.draw import ANYWHERE, AREAS, EVENTS, FAILING, KINDS, PROFILES, UNGATED
from faults.names import known
from faults.plan import Plan, Setup
from faults.schedule import Schedule
from faults.situations import SITUATIONS
from faults.when import Count, Nth, Restart, Seconds, When

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "simulator" / "faults.md"

SPEC: dict[str, tuple[tuple[str, str], ...]] = {
    "processes": (
        ("crash of one node, of everything", "crash"),
        ("crash of a host", "crash_host"),
        ("crash before or after the k-th write", "crash_at_step"),
        ("crash at the k-th send, arrival, reply, answer", "crash_at_message"),
        ("crash at a named step", "crash_at_probe"),
        ("an error at a named step", "fail_at_probe"),
        ("restart at once, late, at the healing", "crash"),
        ("process paused (SIGSTOP) and resumed", "pause"),
        ("slow node", "slow, delay_at_probe"),
    ),
    "network": (
        ("delay", "delay"),
        ("reorder", "jitter"),
        ("drop", "lose.hang, lose.hang_after"),
        ("duplicate", "duplicate"),
        ("partition, one-way too", "partition"),
        ("reset before the request, in mid-body, before the reply", "lose.before, lose.mid_request, lose.after"),
        ("half-open", "half_open"),
        ("slow reader", "slow_reader"),
        ("client disconnect at any chunk", "disconnect, lose.mid_reply"),
        ("stream cut in a frame", "lose.in_frame"),
    ),
    "time": (
        ("deadline overrun at each phase", "overrun"),
        ("lease expiry", "lease_expiry"),
        ("clock offset, drift, jump both ways", "clock_offset, clock_drift, clock_jump"),
        ("a timer late", "late_timers"),
    ),
    "disk": (
        ("lost unsynced data, torn write, lost entry, rename not durable", "every crash, by the seed's choice"),
        ("ENOSPC, EDQUOT, EIO, EACCES, ESTALE, EINTR at the k-th call", "disk_error"),
        ("slow fsync", "slow_disk"),
        ("ENOENT once of what is there", "not_there"),
        ("a bit flipped at rest", "bit_flip"),
    ),
    "signals": (("SIGTERM, SIGUSR1 at any await, twice, to the group", "signal"),),
    "inference": (
        ("slow", "slow_worker"),
        ("stuck", "stuck_worker"),
        ("full: 429, 503, 529, with and without `Retry-After`", "overload"),
        ("staging fails", "disk_error at tokens.*"),
        ("worker restarted with other in-flight calls", "crash of the worker"),
    ),
    "others": (
        ("agent that retries, agent that leaves", "disconnect"),
        ("tool that fails after its effect", "tool_fails, failed_reply"),
        ("judge that times out", "judge_fails, failed_reply"),
        ("environment that hangs", "pause, lose.hang_after"),
        ("huge state, unserializable state", "bad_state"),
        ("hostile ids", "stranger"),
        ("a gym that was changed; checkpoints that somebody has moved", "gym_changed, mislaid"),
        ("a second collector on the directory, its lock swept away", "rival"),
        ("a configuration that names a model server past the gate", "ungated"),
    ),
}
NOT_BUILT: tuple[tuple[str, str], ...] = (
    ("worker of several lost and respawned", "several workers of one server"),
    ("a cut that hangs or fails", "cuts of generations"),
    ("answer of an unknown call", "workers' own links: over HTTP an answer has the connection of its call"),
    ("stale list, lost conditional-put race, 5xx after the write, partial multipart", "object stores"),
    ("inode reuse", "nothing: no code keeps an inode's number, and the port of files shows none"),
)

PLAIN = frozenset({
    "a name", "a list of a name", "true or false",
    *(forms.form(msgspec.inspect.type_info(kind)) for kind in (Seconds, Nth, Count)),
})  # fmt: skip
"""What a parameter is of which its name, or its default, says enough."""
HEAD = """\
# Faults

Made by `./dev run python -m tools.faults` from `faults/catalogue.py`, `faults/others.py`, `faults/draw.py` and
`faults/situations.py`; a test compares. A [plan](#a-plan) holds any of these as JSON; see also
[write a fault](write-a-fault.md).

## What there is

`"fault"` is the name, and beside it stand the parameters. One with a default, which stands in brackets, may be left
out. What ends in `_s` is seconds of virtual time, 0 to 86,400; `k` and `n` count from 1. `when` and `restart`, and the
names that others take, stand [below](#a-plan).

| fault | what happens | parameters |
|---|---|---|
"""
EXAMPLE = """\
{
  "setup": {"workload": 3, "every_s": 0.6, "timeout_s": 5.0},
  "chaos_s": 4.0,
  "faults": [
    {"fault": "signal", "name": "SIGUSR1", "when": {"when": "row", "event": "collector.dispatch", "k": 4}},
    {"fault": "pause", "node": "agent", "when": {"when": "phase", "phase": "prepared", "node": "agent"}, "for_s": 0.2},
    {"fault": "disk_error", "node": "environment", "errno": "ENOSPC", "k": 1, "step": "records.write"},
    {"fault": "crash", "nodes": ["policy", "worker"], "when": {"when": "at", "t_s": 0.9},
     "restart": {"how": "whole", "after_s": 0.1}}
  ],
  "requeue": {"how": "whole"}
}
"""
PLAN = f"""
## A plan

One object. Everything in it may be left out; what is misspelt is refused, and what there is is named. This one, and a
seed for whatever is left to chance, run by `./dev run gym-ckpt sim replay --seed 1 --plan plan.json`:

```json plan
{EXAMPLE}```
"""
KEYS: dict[str, str] = {
    "setup": "what is run, and how: see there",
    "chaos_s": "until when faults may strike; then everything heals, and the run has to end well",
    "requeue": "how the controller comes back after it ended by itself: see `restart`",
    "heal": "how everything comes up when the chaos is over: all is restarted (`whole`), or what is down comes up",
    "faults": "any of those above, in any order",
    "schedule": "in which order tasks run: see there; shuffled by the seed where it is null",
    "schema": "of plans; no other is read",
}
SETUP_KEYS: dict[str, str] = {
    "workload": "which of the simulator's small gyms and inputs",
    "every_s": "seconds between checkpoints; null: none but those that are asked for",
    "timeout_s": "seconds that a checkpoint may take",
    "keep": "how many published checkpoints are kept",
    "grace_s": "seconds by which a lease outlasts its deadline",
    "journalled": "a crash leaves a prefix of what was not synced in directories; else any part of it",
    "links": "the file system has hard links",
    "one_sigterm_s": "SIGTERMs within so many seconds are one",
    "apps": (
        'servers that are applications of an author\'s own, such as `{"server": "inventory", "factory": '
        '"examples.letters:build"}`: see [there](your-own-server.md)'
    ),
}
PARTS = """
`when`, of a fault, is one of these:

| JSON | when |
|---|---|
"""
RESTART = """
`restart` of a fault, `requeue` and `heal` are alike:

| JSON | what |
|---|---|
"""
SCHEDULES = """
`schedule` is one of these:

| JSON | order |
|---|---|
"""
NAMES = """
Names, and the parameters in which they stand. Of `step` and `route` an empty one is any; a gym whose server is an
application has its author's routes and events, too:

| parameters | what there is |
|---|---|
"""

BESIDE = """
Beside all that strikes now and then in `default` and `chaos`, drawn apart: with a chance of {anywhere:g} a rival, or a
second SIGTERM for a controller that does not end at once; with {failing:g} an error at a named point; with {ungated:g}
an agent that is to call a worker past the gate.
"""
SITUATED = """
## Situations

Faults that belong together. Every other seed of `default` and `chaos` is put into one of these, in turns, beside at
most two of its ordinary faults.

| situation | what happens |
|---|---|
"""


def names() -> dict[str, type[msgspec.Struct]]:
    """Classes by their names in a plan, in the order of the catalogue."""
    return {str(cls.__struct_config__.tag): cls for cls in get_args(Fault)}


def page() -> str:
    """The whole document."""
    lines = [HEAD]
    for name, cls in names().items():
        what = " ".join((inspect.getdoc(cls) or "").split())
        lines.append(f"| `{name}` | {what} | {'; '.join(_parameters(cls))} |\n")
    lines += _plan()
    lines.append("\n## What the specification asks for\n\n| area | asked for | by |\n|---|---|---|\n")
    for area in AREAS:
        lines += [f"| {area} | {asked} | {_code(by)} |\n" for asked, by in SPEC[area]]
    lines.append("\nNot there, for want of the feature:\n\n")
    lines += [f"- {asked}: {feature}\n" for asked, feature in NOT_BUILT]
    lines.append("\n## Profiles\n\nWeight of each area, and how many faults a plan has.\n\n")
    lines.append(f"| profile | faults | {' | '.join(AREAS)} |\n|{'---|' * (len(AREAS) + 2)}\n")
    for name, profile in PROFILES.items():
        weights = " | ".join(f"{profile.areas.get(area, 0):g}" for area in AREAS)
        lines.append(f"| `{name}` | {profile.few} to {profile.most} | {weights} |\n")
    lines.append("\nKinds, with their weights within the area; about a third is off in each seed.\n\n")
    lines.append("| area | kinds |\n|---|---|\n")
    for area in AREAS:
        kinds = [f"{kind} {weight:g}" for of, kind, _, weight in KINDS if of == area]
        lines.append(f"| {area} | {', '.join(kinds)} |\n")
    lines.append(BESIDE.format(anywhere=ANYWHERE, failing=FAILING, ungated=UNGATED))
    lines.append(SITUATED)
    for situation in SITUATIONS:
        what = " ".join((inspect.getdoc(situation.make) or "").split())
        lines.append(f"| `{situation.name}` | {what} |\n")
    return "".join(lines)


def _parameters(cls: type[msgspec.Struct]) -> Iterator[str]:
    described = msgspec.inspect.type_info(cls)
    assert isinstance(described, msgspec.inspect.StructType)
    for field in described.fields:
        given = "" if field.required else f" ({_json(forms.default(field))})"
        what = forms.form(field.type)
        tells = what not in PLAIN and not isinstance(field.type, msgspec.inspect.StructType | msgspec.inspect.UnionType)
        yield f"`{field.encode_name}`{given}{f': {_shown(what)}' if tells else ''}"


def _plan() -> Iterator[str]:
    """How one is written."""
    yield PLAN
    for kind, meanings in ((Plan, KEYS), (Setup, SETUP_KEYS)):
        described = msgspec.inspect.type_info(kind)
        assert isinstance(described, msgspec.inspect.StructType)
        yield f"\n| {'key of `setup`' if kind is Setup else 'key'} | default | what |\n|---|---|---|\n"
        for field in described.fields:
            shown = "as below" if field.encode_name == "setup" else _json(forms.default(field))
            yield f"| `{field.encode_name}` | {shown} | {meanings[field.encode_name]} |\n"
    yield PARTS
    yield from _forms(get_args(When))
    yield RESTART
    yield from _forms((Restart,))
    yield SCHEDULES
    yield from _forms(get_args(Schedule))
    yield NAMES
    for what, fields, there_are in known():
        yield f"| {', '.join(f'`{field}`' for field in fields)} ({what}) | {', '.join(map(_json, there_are))} |\n"
    yield f"| `event` | any event of a trace, such as {', '.join(map(_json, EVENTS))} |\n"


def _forms(kinds: Iterable[type[msgspec.Struct]]) -> Iterator[str]:
    for kind in kinds:
        what = " ".join((inspect.getdoc(kind) or "").split())
        yield f"| {_json(forms.form(msgspec.inspect.type_info(kind)))} | {what} |\n"


def _json(text: str) -> str:
    return f"`{text}`"


def _shown(form: str) -> str:
    """Of a list of values each as JSON."""
    head, found, values = form.partition("one of ")
    return f"{head}{found}{', '.join(map(_json, values.split(', ')))}" if found else form


def _code(names_: str) -> str:
    known = names()
    return ", ".join(f"`{name}`" if name.partition(".")[0] in known else name for name in names_.split(", "))


def main(arguments: list[str]) -> int:
    if arguments == []:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if arguments != ["--check"]:
        print((__doc__ or "").partition("\n\n")[2].partition("\n\n")[0])
        return 2
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date: ./dev run python -m tools.faults", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
