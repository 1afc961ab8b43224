"""The command line: statuses, one-line errors, help."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ckpt.cli.main import cli, run
from gym_ckpt.wire import json

CONFIG = """
control_token = "secret"
[servers.worker]
kind = "inference"
url = "http://127.0.0.1:9"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "gym.toml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["colect"], 2, "No such command 'colect'"),
        (["serve"], 2, "Missing argument 'CONFIG'"),
        (["demo", "--rollouts", "three"], 2, "--rollouts"),
        (["serve", "absent.toml"], 2, "absent.toml: there is no such file"),
        (["inspect", "/nowhere/at/all"], 2, "there is no such directory"),
        (["stop", "/nowhere/at/all"], 2, "there is no such directory"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(
    words: list[str], status: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err and printed.err.count("\n") == 1 and printed.err.startswith("gym-ckpt: ")


@pytest.mark.parametrize("words", [[], ["sim"], ["config"]])
def test_without_a_verb_the_help_is_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.startswith("Usage: gym-ckpt ")


def test_debug_raises_what_was_wrong() -> None:
    with pytest.raises(Exception, match=r"absent\.toml: there is no such file"):
        run(["serve", "absent.toml"], debug=True)


def test_an_unknown_server_is_refused_with_a_near_name(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", config, "--server", "wroker"]) == 2
    assert "did you mean 'worker'?" in capsys.readouterr().err


def test_collect_needs_its_table(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", config]) == 2
    assert "has no [collect] table" in capsys.readouterr().err


def test_config_show_for_people_and_for_scripts(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", config]) == 0
    text = capsys.readouterr().out
    assert "secret" not in text
    assert any(line.split() == ["servers.worker.seed", "0", "default"] for line in text.splitlines())
    assert run(["config", "show", config, "--json"]) == 0
    values = json.loads(capsys.readouterr().out.encode())["values"]
    assert values["servers.worker.url"] == {"value": "http://127.0.0.1:9", "source": "file"}


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.commands:
        words = [name, "show", "--help"] if name == "config" else [name, "--help"]
        assert run(words) == 0
        assert "Example" in capsys.readouterr().out, name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sim", "run", "--seed", "x"], "'x' is not a whole number from 0 on, such as 7"),
        (["sim", "fuzz", "-j", "0"], "'0' is not a whole number from 1 on, such as 2"),
        (["sim", "fuzz", "--seconds", "0"], "'0' is not a number above 0, such as 90"),
        (["sim", "fuzz", "--double", "nan"], "'nan' is not a number from 0 to 100, such as 5"),
        (["sim", "fuzz", "--seeds", "7"], "'7' is no range of seeds: A..B goes from A"),
        (["demo", "--rollouts", "3"], "'3' is not a whole number from 4 to 10,000, such as 100"),
    ],
)
def test_a_mistyped_number_is_answered_with_what_is_allowed_and_an_example(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err


def test_the_simulator_is_looked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="sim")

    monkeypatch.setattr(importlib, "import_module", absent)
    assert run(["sim", "run", "--seed", "1"]) == 1
    assert "the simulator runs from a source checkout" in capsys.readouterr().err
    assert run(["sim", "--help"]) == 0
    assert "fuzz" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """`--help` must be instant: it needs click and the error types, and no event loop, HTTP or table library."""
    code = (
        "import sys; from gym_ckpt.cli.main import run; run(['--help']);"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'anyio', 'asyncio', 'httpx', 'uvicorn', 'rich', 'msgspec', 'trio', 'yaml'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
