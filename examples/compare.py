"""Two output files of one input: are they the same, whatever happened to the runs that wrote them?

    ./dev run python examples/compare.py UNDISTURBED.jsonl OTHER.jsonl

Left out of the comparison: the order of the rows, `attempt`, and ids of model calls. Status 1 when anything differs, 2
when a file cannot be read or a line of it is no row.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gym_ckpt.cli.demo_figures import compare
from gym_ckpt.wire import json
from gym_ckpt.words import counted


class Unreadable(Exception):
    """Names the file, and the line where it is one."""


def rows_of(file: str) -> list[dict[str, Any]]:
    """The rows of an output file. Raises `Unreadable`."""
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror}") from None
    return [_row(file, number, line) for number, line in enumerate(lines, 1)]


def _row(file: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise Unreadable(f"{file}, line {number}: {error}") from None
    if not isinstance(row, dict) or "rollout_id" not in row:
        raise Unreadable(f"{file}, line {number}: is no row: it has no rollout_id")
    return row


def main(undisturbed: str, other: str) -> int:
    """Print what differs; the exit status."""
    try:
        expected, seen = rows_of(undisturbed), rows_of(other)
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    found = compare(expected, seen)
    if (found.duplicated, found.missing, found.differing) == (0, [], []) and len(expected) == len(seen):
        print(f"{counted(len(seen), 'row')} each, every one once, all equal")
        return 0
    print(f"twice: {counted(found.duplicated, 'row')}; missing: {found.missing}; different: {found.differing}")
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
