"""Two output files of one input: are they the same, whatever happened to the runs that wrote them?

    ./dev run python examples/compare.py UNDISTURBED.jsonl OTHER.jsonl

Left out of the comparison: the order of the rows, `attempt`, and ids of model calls. Status 1 when anything differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gym_ckpt.cli.demo_figures import compare
from gym_ckpt.wire import json
from gym_ckpt.words import counted


def main(undisturbed: str, other: str) -> int:
    """Print what differs; the exit status."""
    files = (Path(undisturbed), Path(other))
    expected, seen = ([json.loads(line) for line in file.read_bytes().splitlines()] for file in files)
    found = compare(expected, seen)
    if (found.duplicated, found.missing, found.differing) == (0, [], []) and len(expected) == len(seen):
        print(f"{counted(len(seen), 'row')} each, every one once, all equal")
        return 0
    print(f"twice: {counted(found.duplicated, 'row')}; missing: {found.missing}; different: {found.differing}")
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
