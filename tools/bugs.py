"""docs/simulator/planted-bugs.md: how soon the ordinary campaign finds each planted bug.

    ./dev run gym-ckpt sim bugs --seeds 0..400 -j 1 --json > bugs.json        or, with --bug NAME, one that is new
    ./dev run python -m tools.bugs bugs.json            write the page from what was measured

Several files may be given, or none: later ones count where they name a bug again, and the page as it stands where none
does. A test fails while the page lacks a planted bug or names one that is gone, or while one was not measured that
`OWED` does not name.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from faults.bugs import BUGS

NOT_MEASURED = "not measured"
OWED: frozenset[str] = frozenset()
"""Planted bugs that were not hunted since they are there. This set only ever gets smaller."""
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "simulator" / "planted-bugs.md"

HEAD = """\
# Planted bugs

A testbed that finds nothing may be blind. `faults/bugs.py` holds {planted} mistakes that a programmer might make, each
one line of intent and a patch of one behaviour; `gym-ckpt sim bugs` plants them one after the other and runs the
ordinary campaign, profile `default`, seeds from 0 on, until something breaks. Made by `./dev run python -m tools.bugs`
from what that command measured; seconds are those of one core of a two-core machine.

Not planted, since no simulated world could show it:

- A collector that a signal kills before it listens, or after its end: only a real process dies of a signal that nobody
  takes there. `tests/unit/cli/test_collect_endings.py` starts some.
- A stop that reads a long output to its end for its figures: no simulated output is longer than one piece
  (`FIGURES_PIECE_BYTES`), and a piece is always read. `tests/unit/controller/test_trouble.py` has smaller pieces.

{summary}

| bug | what is wrong | breaks | found at seed | by | seconds |
|---|---|---|---|---|---|
"""


def page(found: dict[str, dict[str, Any]]) -> str:
    """The document for these results, by bug."""
    rows = []
    for name, bug in BUGS.items():
        result = found.get(name)
        if result is None:
            cells = [NOT_MEASURED, "", ""]
        elif result["found"]:
            cells = [str(result["seed"]), str(result["invariant"]), f"{result['seconds']:.1f}"]
        else:
            cells = [f"not in {result['seeds']}", "", f"{result['seconds']:.1f}"]
        rows.append(f"| `{name}` | {bug.intent} | {bug.ground} | {' | '.join(cells)} |\n")
    return HEAD.format(planted=len(BUGS), summary=_summary(found)) + "".join(rows)


def measured(text: str) -> dict[str, dict[str, Any]]:
    """The results, by bug, that a page shows."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name, seed, by, seconds = cells[0].strip("`"), *cells[-3:]
        if seed.isdecimal():
            found[name] = {"found": True, "seed": int(seed), "invariant": by, "seconds": float(seconds)}
        elif seed != NOT_MEASURED:
            found[name] = {"found": False, "seeds": int(seed.rpartition(" ")[2]), "seconds": float(seconds)}
    return found


def _summary(found: dict[str, dict[str, Any]]) -> str:
    hits = [result for name, result in found.items() if name in BUGS and result["found"]]
    missed = [name for name in BUGS if name in found and not found[name]["found"]]
    lines = [f"Of {len(BUGS)}, {len([name for name in BUGS if name in found])} were hunted and {len(hits)} found."]
    if hits:
        seeds, seconds = [hit["seed"] + 1 for hit in hits], [hit["seconds"] for hit in hits]
        lines.append(
            f"Seeds until found: median {statistics.median(seeds):g}, at most {max(seeds)}. "
            f"Seconds: median {statistics.median(seconds):.1f}, at most {max(seconds):.1f}."
        )
    if missed:
        lines.append(f"Not found within the seeds that were tried: {', '.join(f'`{name}`' for name in missed)}.")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    found = measured(PAGE.read_text(encoding="utf-8"))
    for path in arguments:
        found |= {each["bug"]: each for each in json.loads(Path(path).read_text(encoding="utf-8"))["bugs"]}
    PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
