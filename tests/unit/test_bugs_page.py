"""The page of planted bugs names no others, and says of what was measured no more than that."""

from __future__ import annotations

from faults.bugs import BUGS
from tools import bugs


def test_the_page_names_planted_bugs_and_no_others() -> None:
    lines = bugs.PAGE.read_text(encoding="utf-8").splitlines()
    named = {line.split("`")[1] for line in lines if line.startswith("| `")}
    assert named and named <= set(BUGS), "./dev run gym-ckpt sim bugs --json, then ./dev run python -m tools.bugs"


def test_what_was_not_found_or_not_measured_is_said() -> None:
    one, other, third = list(BUGS)[:3]
    text = bugs.page(
        {
            one: {"found": True, "seed": 4, "invariant": "INV-1", "seconds": 2.0, "seeds": 5},
            other: {"found": False, "seed": None, "invariant": None, "seconds": 60.0, "seeds": 200},
        }
    )
    assert f"Of {len(BUGS)}, 2 were hunted and 1 found." in text
    assert "median 5, at most 5" in text and f"tried: `{other}`" in text
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert "| 4 | INV-1 | 2.0 |" in rows[one]
    assert "not in 200" in rows[other]
    assert "not measured" in rows[third]
