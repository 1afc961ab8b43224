"""Staged keys of a checkpoint directory: listed whole or not at all, and their tokens looked at when asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from gym_ckpt.cli.inspect import inspect_directory
from gym_ckpt.cli.main import cli
from gym_ckpt.cli.staged_keys import list_staged_keys
from gym_ckpt.errors import ConfigError, InvalidCheckpointState
from gym_ckpt.storage import AbortFlag, ManifestHead, layout, publish, write_records
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.ledger import Exported
from gym_ckpt.storage.tokens import encode, path_of
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import StagedCall
from tests.unit.cli.test_inspect import FILES, run_dir
from tests.unit.ledger.given import chain

__all__ = ["run_dir"]


@pytest.fixture
def held(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """A directory with two checkpoints that share keys, its token store, and the keys."""
    run, tokens = tmp_path / "run", tmp_path / "tokens"
    run.mkdir()
    all_calls: dict[str, StagedCall] = {}
    for number in (1, 2):
        directory = layout.checkpoint_dir(str(run), f"c{number}")
        rows, calls, _ = chain(EpisodeId("r1", 0), 1 + number)
        all_calls |= calls
        state = Exported(EpisodeId("r1", 1), tuple(rows)).state()
        head = ManifestHead(kind=Kind.MODEL, instance="policy", checkpoint_id=f"c{number}")
        record = json.dumps({"episode": {"rollout_id": "r1", "attempt": 1}, "state": state})
        finish(FILES, write_records(directory, head, [record], AbortFlag(), f"{number:016x}"))
        about = {"continued": [], "restarted": [], "created_at": 5.0}
        finish(FILES, publish(str(run), f"c{number}", about, f"{number:016x}"))
    for key, call in all_calls.items():
        path = Path(path_of(str(tokens), key))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(call))
    return run, tokens, sorted(all_calls)


def test_all_keys_are_listed_once_as_sweep_takes_them(held: tuple[Path, Path, list[str]]) -> None:
    run, _, keys = held
    assert len(keys) == 3 and list_staged_keys(str(run), as_json=False).splitlines() == keys
    told = CliRunner().invoke(cli, ["inspect", str(run), "--staged-keys", "--json"])
    assert json.loads(told.output.encode()) == {"staging_keys": keys} and told.exit_code == 0


def test_a_checkpoint_that_cannot_be_read_ends_the_list(held: tuple[Path, Path, list[str]]) -> None:
    """The keys that it names would be swept."""
    run, _, _ = held
    records = next(run.glob("checkpoints/c1/gym/model/policy/records-*"))
    data = records.read_bytes()
    records.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(InvalidCheckpointState):
        list_staged_keys(str(run), as_json=True)
    records.unlink()
    with pytest.raises(InvalidCheckpointState):
        list_staged_keys(str(run), as_json=True)


def test_a_checkpoint_that_is_gone_and_in_force_ends_the_list(held: tuple[Path, Path, list[str]]) -> None:
    """Somebody may put it back."""
    run, _, _ = held
    shutil.rmtree(run / "checkpoints" / "c2")
    with pytest.raises(InvalidCheckpointState, match=r"c2: is missing"):
        list_staged_keys(str(run), as_json=True)


def test_servers_that_capture_nothing_have_none(run_dir: Path) -> None:
    assert list_staged_keys(str(run_dir), as_json=True) == '{"staging_keys":[]}'


def test_a_directory_without_checkpoints_has_no_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoints"):
        list_staged_keys(str(tmp_path), as_json=True)


@pytest.mark.parametrize("harm", ["remove", "rot"])
def test_tokens_that_a_checkpoint_needs_are_verified_when_told_where(
    held: tuple[Path, Path, list[str]], harm: str
) -> None:
    run, tokens, keys = held
    text, sound = inspect_directory(str(run), verify=True, episode=None, as_json=False, tokens=str(tokens))
    assert sound and text.endswith("\nverified: every byte is right")
    lost = Path(path_of(str(tokens), keys[0]))
    if harm == "remove":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[:-1] + b"~")
    text, sound = inspect_directory(str(run), verify=True, episode=None, as_json=False, tokens=str(tokens))
    assert not sound and keys[0] in text and "cannot be trained on" in text and "every byte" not in text


def test_what_was_not_looked_at_is_said(held: tuple[Path, Path, list[str]]) -> None:
    run, tokens, _ = held
    text, sound = inspect_directory(str(run), verify=True, episode=None, as_json=False)
    assert sound and text.endswith(
        "every byte is right; not looked at: the tokens of 5 staged keys (--tokens TOKEN_DIR)"
    )
    with pytest.raises(ConfigError, match="no such directory"):
        inspect_directory(str(run), verify=True, episode=None, as_json=False, tokens=str(tokens / "none"))
