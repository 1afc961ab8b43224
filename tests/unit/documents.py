"""The pages of the repository, for the tests that hold them to the code: blocks, snippets, commands and links.

A fenced block ```` ```python run NAME ```` is executed by a test; blocks of one name on one page share their names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import sim.cli
from gym_ckpt.cli import main

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted(page for folder in ("docs", "tests") for page in (ROOT / folder).rglob("*.md")),
)
OURS = re.compile(r"(?:\w+=\S+ )?(?:(?:\./dev run )?gym-ckpt (?P<words>.*)|\./dev (?P<short>(?:demo|fuzz)\b.*))")
SHORT = {"demo": ["demo"], "fuzz": ["sim", "fuzz"]}
"""Commands of `./dev` that are one of ours."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language line and body of each fenced block."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def snippets(page: Path) -> dict[str, str]:
    """Source of the blocks to run, by their names; those of one name joined."""
    found: dict[str, str] = {}
    for language, body in blocks(page):
        if language.startswith("python"):
            mark, _, name = language.removeprefix("python").strip().partition(" ")
            assert mark == "run", f"{name_of(page)}: mark the block `python run NAME`, so that it is executed"
            found[name] = found.get(name, "") + body
    return found


def executed(page: Path, name: str) -> dict[str, Any]:
    """The names that a snippet leaves."""
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    exec(compile(snippets(page)[name], name_of(page), "exec", flags=0, dont_inherit=True), names)
    return names


def commands(page: Path) -> Iterator[list[str]]:
    """Every command line of ours, in blocks and in the text, as words after `gym-ckpt`."""
    text = page.read_text(encoding="utf-8")
    lines = [line for language, body in blocks(page) if not language for line in body.splitlines()]
    for line in [*lines, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]:
        if (found := OURS.match(line)) is not None:
            said, *_ = re.split(r" [|>] ", found["words"] or found["short"])
            words = shlex.split(said, comments=True)
            yield words if found["words"] else [*SHORT[words[0]], *words[1:]]


def unknown(words: list[str]) -> str | None:
    """What there is not of a command line."""
    command: click.Command = main.cli
    for at, word in enumerate(words):
        if isinstance(command, click.Group):
            known: click.Command | None = command.commands.get(word)
            if command is main.sim and word in main.sim.verbs:  # type: ignore[attr-defined]
                known = getattr(sim.cli, word)
            if known is None:
                return f"gym-ckpt {' '.join(words[: at + 1])}"
            command = known
        elif word.startswith("-"):
            options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            if word not in {*options, "--help"}:
                return f"{command.name} {word}"
    return None


def anchors(page: Path) -> set[str]:
    """What a link to a part of this page may name, as hosts of repositories make it of a heading."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, part = target.partition("#")
        there = (page.parent / path) if path else page
        if not there.exists() or (part and part not in anchors(there)):
            yield target
