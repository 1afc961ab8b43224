"""The table of faults is what the catalogue says, and answers every row of the specification."""

from __future__ import annotations

from faults.draw import AREAS
from tools import faults


def test_the_table_is_made_from_the_sources() -> None:
    assert faults.PAGE.read_text(encoding="utf-8") == faults.page(), "run: ./dev run python -m tools.faults"


def test_every_area_and_every_fault_is_in_the_table_of_what_is_asked_for() -> None:
    assert set(faults.SPEC) == set(AREAS)
    named = {
        name.strip().partition(".")[0] for rows in faults.SPEC.values() for _, by in rows for name in by.split(",")
    }
    assert set(faults.names()) <= named
