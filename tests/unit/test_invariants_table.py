"""The table of invariants and who checks them is what the sources say, and no row is without a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ckpt.invariants import INVARIANTS
from tools import invariants


def test_the_table_is_made_from_the_sources_and_every_row_is_checked() -> None:
    found = list(invariants.wrong())
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_what_is_owed_does_not_grow() -> None:
    assert not invariants.OWED
    assert set(invariants.OWED).isdisjoint(invariants.NOT_BUILT)
    assert set(invariants.NOT_BUILT) <= set(INVARIANTS)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("INV-1", {1}),
        ("keeps INV-3, 4 and 5", {3, 4, 5}),
        ("INV-30 … 34, 37", {30, 31, 32, 33, 34, 37}),
        ("(INV-11, INV-14)", {11, 14}),
        ("INV-99999", set()),
    ],
)
def test_numbers_in_words(text: str, numbers: set[int]) -> None:
    assert invariants.numbers_in(text) == numbers


def test_a_row_that_loses_its_check_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "checks", dict)
    monkeypatch.setattr(invariants, "tests", dict)
    assert "INV-2 has no check: each rollout has at most one output row" in list(invariants.wrong())


def test_a_row_that_gains_a_check_leaves_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "checks", lambda: {70: ["cuts.Times"]})
    assert any(line.startswith("INV-70 is checked") for line in invariants.wrong())


def test_a_comment_and_a_test_that_names_numbers_as_examples_are_no_tests_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invariants, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text('"""INV-3."""\n# INV-4\nassert found == {"INV-5"}\n')
    (tmp_path / "tests" / "test_summary.py").write_text('"""INV-6."""\n')
    assert invariants.tests() == {3: ["tests/test_one.py"], 5: ["tests/test_one.py"]}


def test_those_that_are_about_no_number_are_there() -> None:
    there = {path.name for folder in invariants.TESTS for path in (invariants.ROOT / folder).rglob("test_*.py")}
    assert there >= invariants.NOT_ABOUT
