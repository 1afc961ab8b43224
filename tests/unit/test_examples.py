"""The example gym loads, has every kind of server, and its tasks are ones that a collection accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.compare import main as compare
from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.cli.config import load
from gym_ckpt.cli.config_types import SERVER_KINDS
from gym_ckpt.cli.show import show_config
from gym_ckpt.controller.input import read_input
from gym_ckpt.gyms import SHIPPED
from gym_ckpt.settings import CollectSettings, ResourcesSettings
from gym_ckpt.storage.files import finish
from gym_ckpt.wire import json

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def collect_settings() -> CollectSettings:
    collect = load(EXAMPLES / "gym.toml").settings.collect
    assert collect is not None
    return collect


def test_every_shipped_kind_of_server_and_every_gym_is_there() -> None:
    settings = load(EXAMPLES / "gym.toml").settings
    assert {type(server) for server in settings.servers.values()} == set(SERVER_KINDS.values())
    gyms = {server.gym for server in settings.servers.values() if isinstance(server, ResourcesSettings)}
    assert gyms == set(SHIPPED)
    assert settings.checkpoint is not None


def test_the_same_command_begins_and_continues() -> None:
    collect = collect_settings()
    assert collect.resume_from_cache and collect.checkpoint_dir is not None
    assert Path(collect.input) == EXAMPLES / "tasks.jsonl"


def test_what_a_run_writes_is_ignored_by_git() -> None:
    collect = collect_settings()
    assert collect.checkpoint_dir is not None
    ignored = (EXAMPLES.parent / ".gitignore").read_text().split()
    for path in (collect.output, collect.checkpoint_dir):
        assert f"{Path(path).relative_to(EXAMPLES).parts[0]}/" in ignored


def test_the_tasks_are_read_and_seed_the_example_gym() -> None:
    collect = collect_settings()
    read = finish(PosixFileSystem(), read_input(collect.input, collect.repeats))
    assert len(read.tasks) == 12 * collect.repeats
    assert len(set(read.tasks.values())) == 12


def test_the_comparison_names_the_file_and_the_line_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    whole.write_text('{"rollout_id": "a", "attempt": 0}\n')
    torn.write_text('{"rollout_id": "a", "attempt": 0}\n{"rollo')
    for other, said in ((tmp_path / "absent.jsonl", "No such file"), (torn, "line 2: ")):
        assert compare(str(whole), str(other)) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        assert printed.err.startswith(str(other)) and said in printed.err
    assert compare(str(whole), str(whole)) == 0


def test_the_example_can_be_shown() -> None:
    """Tuples and all: a configuration that loads can be printed (`gym-ckpt config show`)."""
    shown = show_config(str(EXAMPLES / "gym.toml"), as_json=False)
    assert "servers.policy.workers" in shown and "********" in shown
    values = json.loads(show_config(str(EXAMPLES / "gym.toml"), as_json=True).encode())["values"]
    assert values["servers.policy.workers"] == {"value": ["worker"], "source": "file"}
