"""The table of scenarios names tests and planted bugs that there are: a row without one tells of nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from faults.bugs import BUGS
from tests.unit.documents import ROOT

PAGE = ROOT / "tests" / "scenario" / "README.md"
FOLDERS = (PAGE.parent, ROOT / "tests", ROOT)
"""Relative to which a file is named; the first that has it."""
TEST = re.compile(r"`((?:\w+/)*\w+\.py)(?:::(\w+))?`")
BUG = re.compile(r"bugs? ((?:`[\w-]+`(?:, )?)+)")


def file_of(name: str) -> Path:
    return next((folder / name for folder in FOLDERS if (folder / name).exists()), PAGE.parent / name)


def functions_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, functions)}


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE.read_text("utf-8"))
    assert len(named) > 50
    missing = [name for name, _ in named if not file_of(name).exists()]
    assert missing == []
    assert [(name, test) for name, test in named if test and test not in functions_of(file_of(name))] == []


def test_every_planted_bug_that_is_named_exists() -> None:
    named = [bug for names in BUG.findall(PAGE.read_text("utf-8")) for bug in re.findall(r"`([\w-]+)`", names)]
    assert len(named) > 20
    assert set(named) - set(BUGS) == set()


def test_every_row_names_a_test_or_a_campaign() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 50
    assert [number for number, told in rows if not (TEST.search(told) or re.search(r"\b[Ss]im\b", told))] == []
