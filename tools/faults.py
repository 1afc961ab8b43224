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
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec

from faults.catalogue import Fault, Restart
from faults.draw import ANYWHERE, AREAS, FAILING, KINDS, PROFILES, UNGATED
from faults.situations import SITUATIONS

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

HEAD = """\
# Faults

Made by `./dev run python -m tools.faults` from `faults/catalogue.py`, `faults/others.py`, `faults/draw.py` and
`faults/situations.py`; a test compares. A plan holds any of these as JSON, with `"fault"` as the name and the
parameters below; see [write a fault](write-a-fault.md).

## What there is

A parameter with a default, which stands in brackets, may be left out.

| fault | what happens | parameters |
|---|---|---|
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
        lines.append(f"| `{name}` | {what} | {', '.join(_parameters(cls))} |\n")
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
    for field in msgspec.structs.fields(cls):
        if field.required:
            yield f"`{field.name}`"
        else:
            shown = field.default.words() if isinstance(field.default, Restart) else field.default
            yield f"`{field.name}` ({shown!r})" if isinstance(shown, str) else f"`{field.name}` ({shown})"


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
