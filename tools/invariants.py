"""docs/simulator/invariants.md: each invariant, its predicate, who checks it, which tests and which planted bugs.

    ./dev run python -m tools.invariants            write it
    ./dev run python -m tools.invariants --check    say what is wrong; exit status 1 when anything is

Read from the sources: predicates by the numbers in their docstrings, checks of the oracle by the numbers that they look
at, tests by the numbers that their texts and docstrings name; a comment is none. A row that nothing checks is wrong
unless its feature is not built, which `NOT_BUILT` says, or is `OWED`; and so is an entry of either that something
checks.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from faults.bugs import BUGS
from gym_ckpt.invariants import INVARIANTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "simulator" / "invariants.md"
KINDS = {"S": "safety: after every event", "L": "liveness: once faults have stopped", "C": "contract: at start or load"}
TESTS = ("tests", "e2e")
NOT_ABOUT = frozenset({
    "test_bugs.py", "test_bugs_page.py", "test_campaign.py", "test_docs_simulator.py", "test_invariants_table.py",
    "test_picture.py", "test_replay.py", "test_summary.py",
})  # fmt: skip
"""Tests of tables, documents, pictures and campaigns: they name numbers as examples and check none."""

NOT_BUILT: dict[int, str] = {
    **dict.fromkeys(range(70, 76), "cuts of generations"),
    **dict.fromkeys(range(80, 85), "several workers of one server"),
    **dict.fromkeys(range(100, 104), "the trace and ledger of the training side"),
}
"""Invariants of features that the code does not have yet, and which feature."""
OWED: dict[int, str] = {}
"""Invariants that nothing checks by themselves although their feature is built. This list only ever gets shorter."""

HEAD = """\
# Invariants and who checks them

Made by `./dev run python -m tools.invariants` from the sources; a test compares. **Predicate**: the function of
`gym_ckpt/invariants.py` that decides, where data alone can. **Oracle**: the class in `sim/oracle/` that looks in every
world. **Tests**: the files that name the number. **Planted bugs**: those of `faults/bugs.py` that break it; the
ordinary campaign must find each. An invariant without an oracle check is held by the tests of its row.

| | invariant | predicate | oracle | tests | planted bugs |
|---|---|---|---|---|---|
"""
_NAMED = re.compile(r"INV-(\d+)((?:(?:, | and | … |-|–)(?:INV-)?\d+)*)")


def numbers_in(text: str) -> set[int]:
    """Invariants that a text names: `INV-1`, `INV-3, 4`, `INV-30 … 34`."""
    found: set[int] = set()
    for first, rest in _NAMED.findall(text):
        found.add(int(first))
        for how, number in re.findall(r"(, | and | … |-|–)(?:INV-)?(\d+)", rest):
            found.update(range(max(found) + 1, int(number) + 1) if how in (" … ", "-", "–") else [int(number)])
    return {number for number in found if number in INVARIANTS}


def predicates() -> dict[int, list[str]]:
    """By invariant: the functions whose docstrings say that they decide it."""
    found: dict[int, list[str]] = defaultdict(list)
    for node in ast.parse((ROOT / "gym_ckpt" / "invariants.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            for number in sorted(numbers_in(ast.get_docstring(node) or "")):
                found[number].append(node.name)
    return found


def checks() -> dict[int, list[str]]:
    """By invariant: the classes and functions of the simulator that look at it."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in (*sorted((ROOT / "sim" / "oracle").glob("*.py")), ROOT / "sim" / "run.py"):
        for owner in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(owner, ast.ClassDef | ast.FunctionDef):
                for number in sorted(_looked_at(owner)):
                    found[number].append(f"{path.stem}.{owner.name}" if path.stem != "__init__" else owner.name)
    return found


def _looked_at(owner: ast.ClassDef | ast.FunctionDef) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(owner):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "look" and node.args:
            found |= _numbers(node.args[0], owner)
        elif called in ("Violation", "add"):
            words = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "invariant")]
            texts = (each.value for each in words if isinstance(each, ast.Constant) and isinstance(each.value, str))
            found |= {int(text[4:]) for text in texts if re.fullmatch(r"INV-\d+", text)}
    return found


def _numbers(value: ast.expr, owner: ast.AST) -> set[int]:
    """The numbers that an expression can be: constants in it, or in what its name is given in the same class."""
    if isinstance(value, ast.Name):
        given = [
            node.value
            for node in ast.walk(owner)
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == value.id for target in node.targets)
        ]
        return set[int]().union(*(_numbers(each, owner) for each in given))
    if isinstance(value, ast.IfExp):
        return _numbers(value.body, owner) | _numbers(value.orelse, owner)
    return {value.value} if isinstance(value, ast.Constant) and isinstance(value.value, int) else set()


def tests() -> dict[int, list[str]]:
    """By invariant: the test files that name it, in words or as the number of a story."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(path for folder in TESTS for path in (ROOT / folder).rglob("test_*.py")):
        if path.name in NOT_ABOUT:
            continue
        text = path.read_text(encoding="utf-8")
        told = {int(number) for number in re.findall(r"^@story\((\d+)", text, re.MULTILINE)}
        words = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        named = (numbers_in(word) for word in words if isinstance(word, str))
        for number in sorted(told.union(*named)):
            found[number].append(path.relative_to(ROOT).as_posix())
    return found


def bugs() -> dict[int, list[str]]:
    """By invariant: the planted bugs that break it."""
    found: dict[int, list[str]] = defaultdict(list)
    for bug in BUGS.values():
        for number in sorted(numbers_in(bug.ground)):
            found[number].append(bug.name)
    return found


def page() -> str:
    """The whole document."""
    columns = (predicates(), checks(), tests(), bugs())
    lines = [HEAD]
    for number, invariant in sorted(INVARIANTS.items()):
        predicate, oracle, tested, planted = (column.get(number, []) for column in columns)
        without = f"*not built yet: {NOT_BUILT[number]}*" if number in NOT_BUILT else ""
        without += f"**owed**: {OWED[number]}" if number in OWED else ""
        files = ", ".join(f"[{Path(name).stem.removeprefix('test_')}](../../{name})" for name in tested)
        cells = (
            f"{invariant.name} [{invariant.kind}]",
            invariant.title,
            ", ".join(f"`{name}`" for name in predicate),
            ", ".join(f"`{name}`" for name in oracle) or without,
            files,
            ", ".join(f"`{name}`" for name in planted),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    lines.append("\n" + "; ".join(f"[{kind}] {words}" for kind, words in KINDS.items()) + ".\n")
    return "".join(lines)


def wrong() -> Iterator[str]:
    """What the table must not show."""
    checked, tested = checks(), tests()
    for number, invariant in sorted(INVARIANTS.items()):
        if number in NOT_BUILT | OWED and (checked.get(number) or tested.get(number)):
            yield f"{invariant.name} is checked: take it out of NOT_BUILT or OWED in tools/invariants.py"
        elif number not in NOT_BUILT | OWED and not checked.get(number) and not tested.get(number):
            yield f"{invariant.name} has no check: {invariant.title}"
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        yield f"{PAGE.relative_to(ROOT)} is out of date: ./dev run python -m tools.invariants"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print((__doc__ or "").partition("\n\n")[2].partition("\n\n")[0])
        return 2
    if not arguments:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    found = list(wrong())
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
