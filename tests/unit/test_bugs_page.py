"""The page of planted bugs names no others, and says of what was measured no more than that."""

from __future__ import annotations

from faults.bugs import BUGS
from tools import bugs

HOW = "./dev run gym-ckpt sim bugs --bug NAME --json > new.json, then ./dev run python -m tools.bugs new.json"


def test_the_page_is_of_the_bugs_that_there_are_and_each_was_hunted() -> None:
    text = bugs.PAGE.read_text(encoding="utf-8")
    found = bugs.measured(text)
    assert bugs.page(found) == text, f"it has a row for each planted bug, in order, and no others: {HOW}"
    assert set(BUGS) - set(found) == bugs.OWED, HOW


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
    assert bugs.NOT_MEASURED in rows[third]
    again = bugs.measured(text)
    assert list(again) == [one, other] and bugs.page(again) == text
