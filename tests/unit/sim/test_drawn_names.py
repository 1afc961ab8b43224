"""Named points and disk steps are drawn by name: each that the code has, and none that it has no more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from faults.draw import MANY, POINTS, STEPS

SOURCES = Path(__file__).parents[3] / "gym_ckpt"
OPERATIONS = ("prepare", "renew", "commit", "restore", "resume", "retire", "forget")
"""Of a coordination, each with a point before and one after its call."""
WITHOUT_HARD_LINKS = {"manifest.lock", "manifest.look", "manifest.rename"}
"""Steps on a file system that one seed in ten has: a fault at them would be void in the others."""
STEP = re.compile(r"[a-z]+\.[a-z_]+")


def calls_of(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node


def texts(node: ast.expr) -> set[str]:
    """The names that a literal stands for."""
    if isinstance(node, ast.JoinedStr):
        head, varied = node.values
        assert isinstance(head, ast.Constant) and isinstance(head.value, str)
        assert isinstance(varied, ast.FormattedValue)
        assert ast.unparse(varied.value) == "operation", "a point is named by a literal, or after an operation"
        return {head.value + operation for operation in OPERATIONS}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def named(path: Path) -> tuple[set[str], set[str]]:
    """Points and steps that a module names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    points = set[str]().union(*(texts(call.args[0]) for call in calls_of(tree, "probe")))
    yielded = [node.value for node in ast.walk(tree) if isinstance(node, ast.Yield) and node.value is not None]
    passed = [argument for call in calls_of(tree, "_try") for argument in call.args]
    steps = set[str]().union(*(texts(each) for each in (*yielded, *passed)))
    return points, {step for step in steps if STEP.fullmatch(step)}


def in_code() -> tuple[set[str], set[str]]:
    # What commands yield is for people to read.
    found = [named(path) for path in sorted(SOURCES.rglob("*.py")) if "cli" not in path.parts]
    return set[str]().union(*(points for points, _ in found)), set[str]().union(*(steps for _, steps in found))


def test_every_named_point_is_drawn() -> None:
    points, _ = in_code()
    assert set(POINTS) == points
    assert len(POINTS) == len(set(POINTS)) and set(POINTS) >= MANY


def test_every_disk_step_is_drawn() -> None:
    _, steps = in_code()
    drawn = {step for by in STEPS.values() for step in by}
    assert drawn == steps - WITHOUT_HARD_LINKS
    assert all(len(by) == len(set(by)) for by in STEPS.values())
