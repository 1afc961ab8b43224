"""The simulator's documents: what they show is what one sees, and every quotation is in the source."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sim.cli
from faults.catalogue import kind_of
from faults.plan import load
from sim.report import screen
from sim.run import NO_ERRORS, run_seed
from tests.unit.documents import ROOT, blocks, commands, executed, name_of, snippets

DOCS = (ROOT / "docs" / "simulator.md", *sorted((ROOT / "docs" / "simulator").glob("*.md")))
PICTURE_BYTES_MAX = 150_000


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


def test_the_plan_that_is_shown_runs_and_all_of_it_strikes() -> None:
    (shown,) = [body for path in DOCS for language, body in blocks(path) if language == "json plan"]
    plan = load(shown.encode())
    verdict = run_seed(1, plan=plan)
    assert verdict.ok and set(verdict.faults) == {kind_of(fault) for fault in plan.faults}


def test_every_block_is_of_a_known_sort() -> None:
    for path in DOCS:
        for language, _ in blocks(path):
            assert re.match(r"$|python run \w+$|py from \S+$|text screen$|json plan$", language), (
                f"{name_of(path)}: {language!r}"
            )


REPLAYED = (("failed-seed.md", "fuzz --bug mark-after-stop"), ("your-own-server.md", "fuzz --seeds 0..20 --app"))


@pytest.mark.parametrize(("name", "campaign"), REPLAYED, ids=[name for name, _ in REPLAYED])
def test_a_campaign_of_the_docs_fails_and_the_replays_below_it_work(
    name: str, campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written: none of them names a seed, an event or a moment that the next draw of faults would make untrue."""
    monkeypatch.chdir(tmp_path)
    said = [words[1:] for words in commands(ROOT / "docs" / "simulator" / name) if words[0] == "sim"]
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


def test_the_first_run_of_a_server_of_one_s_own_publishes_and_restores() -> None:
    """One that comes by neither would pass with any export at all."""
    words = next(commands(ROOT / "docs" / "simulator" / "your-own-server.md"))
    shown = invoked(words[1:])
    assert words[:3] == ["sim", "run", "--seed"] and shown.exit_code == 0
    said = r"^checkpoints: [1-9]\d* published, \d+ failed, [1-9]\d* restored$"
    assert re.search(said, shown.output, re.MULTILINE), (
        f"name another seed there, and in `sim run --help`: {shown.output}"
    )
    for wrong in ("lookup", "empty", "dropping", "uninstalled", "forgetful"):
        app = f"inventory=tests.scenario.careless_letters:{wrong}"
        assert invoked([*words[1:-1], app]).exit_code == 1, f"{wrong} passes"


def test_every_verdict_on_a_run_is_explained() -> None:
    """Those of `RUN-...`, whoever gives them, in the table of what to make of a first line."""
    given = {f"RUN-{kind}" for kind in NO_ERRORS}
    for source in (ROOT / "sim").rglob("*.py"):
        given |= set(re.findall(r'"(RUN-[a-z]+)"', source.read_text(encoding="utf-8")))
    text = (ROOT / "docs" / "simulator" / "failed-seed.md").read_text(encoding="utf-8")
    table = text.partition("| the first line says |")[2].partition("\n\n")[0]
    listed = [name for line in table.splitlines() for name in re.findall(r"`(RUN-[a-z]+)`", line.split(" | ")[0])]
    assert sorted(listed) == sorted(given)


def test_the_gym_of_the_docs_is_the_example() -> None:
    """Without comments and layout: one is to be read, the other to be run."""

    def said(text: str) -> str:
        return next(ast.dump(each) for each in ast.parse(text).body if isinstance(each, ast.ClassDef))

    ours = (ROOT / "examples" / "safe.py").read_text(encoding="utf-8")
    assert said(ours) == said(snippets(ROOT / "docs" / "servers.md")["gym"])


def invoked(words: list[str]) -> Result:
    verb, *rest = words
    command = getattr(sim.cli, verb)
    return CliRunner().invoke(command, rest, input="q\n" if "--pdb" in rest else None)


def test_every_file_that_is_named_exists() -> None:
    for path in DOCS:
        for named in re.findall(r"`((?:sim|faults|tests|tools|gym_ckpt)/[\w/]+(?:\.\w+|/))`", path.read_text("utf-8")):
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
