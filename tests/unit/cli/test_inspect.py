"""`inspect` over checkpoints that storage itself has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.cli.inspect import NoSuchEpisode, inspect_directory, size_text
from gym_ckpt.cli.signals import NotRunning, signal_collector
from gym_ckpt.cli.staged_keys import list_staged_keys
from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import MANIFEST_MAX_BYTES
from gym_ckpt.storage import AbortFlag, ManifestHead, layout, publish, write_records
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.ledger import Exported
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from tests.unit.ledger.given import chain

FILES = PosixFileSystem()


def committed(run_dir: Path, checkpoint_id: str, token: str) -> None:
    directory = layout.checkpoint_dir(str(run_dir), checkpoint_id)
    for kind, instance in ((Kind.AGENT, "agent"), (Kind.MODEL, "policy")):
        records = [
            json.dumps({"episode": {"rollout_id": name, "attempt": 1}, "state": {"words": name}})
            for name in ("r1", "r2")
        ]
        head = ManifestHead(kind=kind, instance=instance, checkpoint_id=checkpoint_id)
        finish(FILES, write_records(directory, head, records, AbortFlag(), token))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Two published checkpoints and one that was never published."""
    path = tmp_path / "run"
    path.mkdir()
    for number in (1, 2):
        committed(path, f"c{number}", f"{number:016x}")
        held = {"continued": [{"rollout_id": "r1", "attempt": 1}], "restarted": [], "created_at": 5.0}
        finish(FILES, publish(str(path), f"c{number}", held, f"{number:016x}"))
    committed(path, "c3", f"{3:016x}")
    return path


def shown(run_dir: Path, **options: Any) -> tuple[Any, bool]:
    asked = {"verify": False, "episode": None} | options
    text, sound = inspect_directory(str(run_dir), as_json=True, **asked)
    return json.loads(text.encode()), sound


def test_it_tells_latest_published_and_partial(run_dir: Path) -> None:
    view, sound = shown(run_dir)
    assert sound and view["latest"] == "c2"
    assert [(each["checkpoint_id"], each["state"]) for each in view["checkpoints"]] == [
        ("c2", "latest"),
        ("c1", "published"),
        ("c3", "partial"),
    ]
    newest = view["checkpoints"][0]
    assert (newest["continued"], newest["restarted"], newest["sequence"]) == (1, 0, 2)
    assert [(part["kind"], part["instance"], part["records"]) for part in newest["participants"]] == [
        ("agent", "agent", 2),
        ("model", "policy", 2),
    ]
    assert newest["bytes"] == sum(part["bytes"] for part in newest["participants"]) > 0


def test_only_verify_finds_a_flipped_byte(run_dir: Path) -> None:
    assert shown(run_dir, verify=True)[1]
    records = next(run_dir.glob("checkpoints/c1/gym/agent/agent/records-*"))
    data = bytearray(records.read_bytes())
    data[-5] ^= 1
    records.write_bytes(data)
    assert shown(run_dir)[1]
    view, sound = shown(run_dir, verify=True)
    assert not sound
    assert [each["checkpoint_id"] for each in view["checkpoints"] if each["problems"]] == ["c1"]


@pytest.fixture
def captured(tmp_path: Path) -> tuple[Path, dict[str, list[str]]]:
    """A checkpoint of two model servers that share a ledger, one with a restored attempt; and whose keys are whose."""
    path = tmp_path / "captured"
    path.mkdir()
    directory = layout.checkpoint_dir(str(path), "c1")
    keys: dict[str, list[str]] = {}
    for instance, held in (("policy", (("r1", 3), ("r2", 0))), ("policy2", (("r3", 2),))):
        records = []
        for name, calls in held:
            rows, _, _ = chain(EpisodeId(name, 0), calls)
            episode = EpisodeId(name, 1)
            keys[episode.key] = [row.staging_key for row in rows]
            state = Exported(episode, tuple(rows)).state()
            records.append(json.dumps({"episode": {"rollout_id": name, "attempt": 1}, "state": state}))
        head = ManifestHead(kind=Kind.MODEL, instance=instance, checkpoint_id="c1")
        finish(FILES, write_records(directory, head, records, AbortFlag(), "1" * 16))
    finish(FILES, publish(str(path), "c1", {"continued": [], "restarted": [], "created_at": 5.0}, "1" * 16))
    return path, keys


@pytest.mark.parametrize("verify", [False, True])
def test_staged_keys_are_counted_per_checkpoint(captured: tuple[Path, dict[str, list[str]]], verify: bool) -> None:
    path, _ = captured
    view, sound = shown(path, verify=verify)
    (checkpoint,) = view["checkpoints"]
    assert sound and checkpoint["staged_keys"] == 5
    assert [part["staged_keys"] for part in checkpoint["participants"]] == [3, 2]
    text, _ = inspect_directory(str(path), verify=verify, episode=None, as_json=False)
    assert "5 staged keys" in text


def test_an_episode_is_shown_with_its_staged_keys(captured: tuple[Path, dict[str, list[str]]]) -> None:
    path, keys = captured
    for name in ("r1", "r2", "r3"):
        ((found,), _) = shown(path, episode=name)
        assert found["staged_keys"] == keys[f"{name}-a1"]
    text, _ = inspect_directory(str(path), verify=False, episode="r3", as_json=False)
    assert text.splitlines()[-3:] == ["  2 staged keys:", *(f"    {key}" for key in keys["r3-a1"])]


@pytest.mark.parametrize("verify", [False, True])
def test_keys_of_records_that_cannot_be_believed_are_not_counted(
    captured: tuple[Path, dict[str, list[str]]], verify: bool
) -> None:
    path, _ = captured
    records = next(path.glob("checkpoints/c1/gym/model/policy/records-*"))
    data = records.read_bytes()
    records.write_bytes(data.replace(b'"c1"', b'"c9"'))
    view, sound = shown(path, verify=verify)
    (checkpoint,) = view["checkpoints"]
    assert not sound and checkpoint["staged_keys"] is None
    assert len(checkpoint["problems"]) == 1 and "do not match the digest" in checkpoint["problems"][0]
    text, _ = inspect_directory(str(path), verify=verify, episode=None, as_json=False)
    assert "staged key" not in text


def test_a_gym_that_captures_nothing_has_none(run_dir: Path) -> None:
    assert [each["staged_keys"] for each in shown(run_dir)[0]["checkpoints"]] == [0, 0, 0]


def test_missing_parts_of_a_published_checkpoint_are_problems(run_dir: Path) -> None:
    next(run_dir.glob("checkpoints/c2/gym/agent/agent/manifest.json")).unlink()
    view, sound = shown(run_dir)
    assert not sound and "manifest.json: is missing" in view["checkpoints"][0]["problems"][0]


@pytest.mark.parametrize("over", [0, 1])
def test_a_pointer_longer_than_any_is_damage_and_the_checkpoints_are_looked_at(run_dir: Path, over: int) -> None:
    """`MANIFEST_MAX_BYTES`."""
    pointer = run_dir / "LATEST"
    pointer.write_bytes(pointer.read_bytes().ljust(MANIFEST_MAX_BYTES + over))
    view, sound = shown(run_dir)
    assert view["latest"] == "c2" and sound is not bool(over)
    assert [str(pointer) in problem for problem in view["problems"]] == [True] * over


def test_an_episode_by_rollout_or_by_capture_key(run_dir: Path) -> None:
    by_rollout, _ = shown(run_dir, episode="r1")
    assert {each["capture_key"] for each in by_rollout} == {"r1-a1"} and len(by_rollout) == 6
    assert all(each["state"] == {"words": "r1"} for each in by_rollout)
    assert shown(run_dir, episode="r1-a1")[0] == by_rollout
    with pytest.raises(NoSuchEpisode, match="holds 'r3'"):
        shown(run_dir, episode="r3")


def test_the_text_for_people_names_everything(run_dir: Path) -> None:
    text, _ = inspect_directory(str(run_dir), verify=True, episode=None, as_json=False)
    for words in ("c2  latest", "c1  published", "c3  partial", "policy", "1 row continued", "every byte is right"):
        assert words in text
    text, _ = inspect_directory(str(run_dir), verify=False, episode="r2", as_json=False)
    assert 'words: "r2"' in text


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoints"):
        shown(tmp_path)


def test_a_run_that_ended_before_its_first_checkpoint_is_one(tmp_path: Path) -> None:
    (tmp_path / "collector.pid").write_text("4711\n")
    text, sound = inspect_directory(str(tmp_path), verify=False, episode=None, as_json=False)
    assert sound and text.splitlines() == [f"{tmp_path}: the run has no checkpoint yet", "  collector ended (pid 4711)"]


@pytest.mark.parametrize("partial", [False, True])
def test_where_no_checkpoint_is_published_nothing_is_said_to_be_right(tmp_path: Path, partial: bool) -> None:
    (tmp_path / "collector.pid").write_text("4711\n")
    if partial:
        (tmp_path / "checkpoints" / "c1").mkdir(parents=True)
    text, sound = inspect_directory(str(tmp_path), verify=True, episode=None, as_json=False)
    assert sound and text.splitlines()[-1] == "nothing was verified: no checkpoint is published"
    assert "every byte" not in text and shown(tmp_path, verify=True)[0]["verified"] is False


def test_the_checkpoints_of_a_run_stand_for_their_run(run_dir: Path, tmp_path: Path) -> None:
    inside = run_dir / "checkpoints"
    assert shown(inside, verify=True) == shown(run_dir, verify=True)
    assert list_staged_keys(str(inside), as_json=True) == list_staged_keys(str(run_dir), as_json=True)
    (run_dir / "collector.pid").write_text("4711\n")
    with pytest.raises(NotRunning, match="has ended"):
        signal_collector(str(inside), "SIGTERM")
    named_so = tmp_path / "checkpoints"
    named_so.mkdir()
    (named_so / "collector.pid").write_text("4711\n")
    assert shown(named_so)[0]["directory"] == str(named_so), "a checkpoint_dir may have that name, too"


def test_sizes_are_for_people() -> None:
    assert [size_text(each) for each in (0, 999, 1000, 2_500_000, 7 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "7000.0 GB",
    ]
