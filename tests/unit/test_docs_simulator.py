"""The simulator's documents: every snippet runs, every quotation is in the source, every command and link exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import sim.cli
from gym_ckpt.cli.main import sim as group
from sim.report import screen

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "simulator.md", *sorted((ROOT / "docs" / "simulator").glob("*.md")))
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE_BYTES_MAX = 150_000


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "docs").as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    """Language line and body of each fenced block."""
    return FENCE.findall(path.read_text(encoding="utf-8"))


def snippets(path: Path) -> dict[str, str]:
    """What is to be run, by name; blocks of one name joined."""
    found: dict[str, str] = {}
    for language, body in blocks(path):
        if language.startswith("python"):
            mark, _, name = language.removeprefix("python").strip().partition(" ")
            assert mark == "run" and name, f"{name_of(path)}: mark the block `python run NAME`, so that it is executed"
            found[name] = found.get(name, "") + body
    return found


def executed(path: Path, name: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(snippets(path)[name], name_of(path), "exec", dont_inherit=True), names)
    return names


RUN = [(path, name) for path in DOCS for name in snippets(path) if name != "failed"]


@pytest.mark.parametrize(("path", "name"), RUN, ids=[f"{path.stem}-{name}" for path, name in RUN])
def test_every_snippet_runs(path: Path, name: str) -> None:
    assert executed(path, name)


def test_the_failure_of_the_docs_is_shown_as_it_would_be() -> None:
    """The first screen in the document has the shape of the one that its own example gives, on whichever server."""
    path = ROOT / "docs" / "simulator" / "failed-seed.md"
    (shown,) = [body for language, body in blocks(path) if language == "text screen"]
    real = screen(executed(path, "failed")["verdict"], "gym-ckpt sim replay X").splitlines()
    lines = shown.splitlines()
    shape = re.compile(r"INV-32 broken at [\d.]+ s by (\w+) \(seed \d+, profile default, bug mark-after-stop\)")
    heads = shape.fullmatch(lines[0]), shape.fullmatch(real[0])
    assert heads[0] and heads[1]
    assert lines[2] == real[2]
    fixed = ("", "plan, run twice and broken the same, event for event:", "the last 20 events:")
    assert [line for line in lines if line in fixed] == [line for line in real if line in fixed]
    for head, last in zip(heads, (lines[-1], real[-1]), strict=True):
        assert head is not None and last.split()[1:3] == [head[1], "admission.stopped"]


def test_every_quotation_is_in_the_source() -> None:
    quoted = [(language.removeprefix("py from "), body) for path in DOCS for language, body in blocks(path)
              if language.startswith("py from ")]  # fmt: skip
    assert quoted
    for source, body in quoted:
        assert body in (ROOT / source).read_text(encoding="utf-8"), f"{source} no longer says:\n{body}"


def test_every_block_is_of_a_known_sort() -> None:
    for path in DOCS:
        for language, _ in blocks(path):
            assert re.match(r"$|python run \w+$|py from \S+$|text screen$", language), f"{name_of(path)}: {language!r}"


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for path in DOCS:
        text = path.read_text(encoding="utf-8")
        lines = [line for language, body in blocks(path) if not language for line in body.splitlines()]
        for line in [*lines, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]:
            if (said := re.match(r"(?:\./dev run )?gym-ckpt sim (.*)", line)) is not None:
                found.append((name_of(path), shlex.split(said.group(1), comments=True)))
            elif (said := re.match(r"\./dev fuzz(.*)", line)) is not None:
                found.append((name_of(path), ["fuzz", *shlex.split(said.group(1), comments=True)]))
    return found


def test_every_command_exists_with_its_options() -> None:
    assert len(commands()) > 10
    verbs: tuple[str, ...] = group.verbs  # type: ignore[attr-defined]
    for name, (verb, *words) in commands():
        assert verb in verbs, f"{name}: there is no gym-ckpt sim {verb}"
        command = getattr(sim.cli, verb)
        assert isinstance(command, click.Command)
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for word in words:
            assert not word.startswith("-") or word in known, f"{name}: sim {verb} has no {word}"


REPLAYED = (("failed-seed.md", "fuzz --bug mark-after-stop"), ("your-own-server.md", "fuzz --seeds 0..20 --app"))


@pytest.mark.parametrize(("name", "campaign"), REPLAYED, ids=[name for name, _ in REPLAYED])
def test_a_campaign_of_the_docs_fails_and_the_replays_below_it_work(
    name: str, campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written: none of them names a seed, an event or a moment that the next draw of faults would make untrue."""
    monkeypatch.chdir(tmp_path)
    said = [words for document, words in commands() if document == f"simulator/{name}"]
    first = next(at for at, words in enumerate(said) if shlex.join(words).startswith(campaign))
    found = invoked(said[first])
    assert found.exit_code == 1, found.output
    replays = [words for words in said if words[0] == "replay"]
    assert len(replays) >= 2
    for words in replays:
        ended = invoked(words)
        mended = "--app" in words or "--until" in words
        assert ended.exit_code == (0 if mended or "--pdb" in words else 1), (words, ended.output)
        if "--pdb" in words:
            assert ended.output.startswith("event "), "the debugger was entered, and left"
        elif not mended:
            assert ended.output.splitlines()[-1] in found.output, "the failure that was shown"


def invoked(words: list[str]) -> Result:
    verb, *rest = words
    command = getattr(sim.cli, verb)
    return CliRunner().invoke(command, rest, input="q\n" if "--pdb" in rest else None)


def test_every_link_and_every_file_that_is_named_exists() -> None:
    for path in DOCS:
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (path.parent / target).exists(), f"{name_of(path)} links to {target}"
        for named in re.findall(r"`((?:sim|faults|tests|tools|gym_ckpt)/[\w/]+(?:\.\w+|/))`", text):
            assert (ROOT / named).exists(), f"{name_of(path)} names {named}"


def test_every_document_is_linked_from_the_first() -> None:
    first = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    for path in DOCS[1:]:
        assert f"(simulator/{path.name})" in first
    for place in ("README.md", "docs/architecture.md"):
        assert "simulator.md)" in (ROOT / place).read_text(encoding="utf-8")


def test_pictures_are_small() -> None:
    pictures = [*(ROOT / "docs" / "simulator").glob("*.webp")]
    assert pictures and all(each.stat().st_size < PICTURE_BYTES_MAX for each in pictures)
