"""`gym-ckpt inspect`: what a checkpoint directory holds, from its files alone; needs no server, changes nothing.

Staged keys are counted from the rows of the capture ledger, which are in the records of policy-model servers: these are
read, one record at a time, even where nothing else is verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.cli.signals import collector_of, run_dir_of
from gym_ckpt.cli.staged_keys import needed, of_record, problems_with
from gym_ckpt.errors import ConfigError, GymCkptError, InvalidCheckpointState, ProtocolError
from gym_ckpt.ports import FileSystem
from gym_ckpt.storage import layout, manifest, verify_checkpoint
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.pointer import checkpoint_names, read_collection_file, read_or_rebuilt
from gym_ckpt.storage.records import verified_records
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.words import counted


class NoSuchEpisode(GymCkptError):
    """No checkpoint here holds the episode."""


class ParticipantView(msgspec.Struct, frozen=True, kw_only=True):
    """`staged_keys`: how many its records refer to; null when they cannot be read."""

    kind: str
    instance: str
    records: int
    bytes: int
    staged_keys: int | None


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: `latest`, `published` (an older one that is kept) or `partial` (never published, or half removed)."""

    checkpoint_id: str
    state: str
    sequence: int | None
    created_at: float | None
    continued: int | None
    restarted: int | None
    bytes: int
    staged_keys: int | None
    participants: list[ParticipantView]
    problems: list[str]


class DirectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """`collector_pid`: of the collector that has the directory, or had it last. `verified`: every byte of its published
    checkpoints was read, and there is one; `tokens_verified`: and those of the staged tokens that they need, too."""

    directory: str
    latest: str | None
    collector_pid: int | None
    collector_running: bool
    checkpoints: list[CheckpointView]
    problems: list[str]
    verified: bool
    tokens_verified: bool


class EpisodeView(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_id: str
    kind: str
    instance: str
    capture_key: str
    bytes: int
    staged_keys: list[str]
    state: Any


def inspect_directory(
    directory: str, *, verify: bool, episode: str | None, as_json: bool, tokens: str | None = None
) -> tuple[str, bool]:
    """The text to print, and whether everything is sound. `tokens`: a ledger's `token_dir`, whose staged tokens are
    verified, too. Raises `ConfigError`, `NoSuchEpisode`."""
    fs, run_dir = PosixFileSystem(), run_dir_of(directory)
    if not fs.is_dir(run_dir):
        raise ConfigError(f"{directory}: there is no such directory; give the collector's checkpoint_dir")
    if episode is not None:
        found = list(_episodes(fs, run_dir, episode))
        if not found:
            raise NoSuchEpisode(f"no checkpoint in {directory} holds {episode!r}")
        return (_json(found) if as_json else _episode_text(found)), True
    if tokens is not None and not fs.is_dir(tokens):
        raise ConfigError(f"--tokens {tokens}: there is no such directory; give the policy-model servers' token_dir")
    view = _view(fs, run_dir, verify or tokens is not None, tokens)
    sound = not view.problems and not any(each.problems for each in view.checkpoints)
    nothing = "" if view.verified or not (verify or tokens) else "\nnothing was verified: no checkpoint is published"
    return (_json(view) if as_json else _text(view) + nothing), sound


def _json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value)).decode()


def _view(fs: FileSystem, run_dir: str, verify: bool, tokens: str | None) -> DirectoryView:
    pointer, damage = read_or_rebuilt(fs, run_dir)
    problems = [] if damage is None else [damage]
    names = checkpoint_names(fs, run_dir)
    marks = (layout.run_file(run_dir), layout.collector_pid(run_dir), layout.serve_pid(run_dir))
    if not names and pointer is None and not problems and not any(fs.exists(mark) for mark in marks):
        raise ConfigError(f"{run_dir}: holds no checkpoints and no run; give the collector's checkpoint_dir")
    published = tuple(pointer.published) if pointer else ()
    if published and published[0] not in names:
        problems.append(f"{layout.latest(run_dir)}: names checkpoint {published[0]}, which is not there")
    checkpoints = [_checkpoint(fs, run_dir, name, published, verify, tokens) for name in names]
    checkpoints.sort(key=lambda each: (each.sequence is None, -(each.sequence or 0), each.checkpoint_id))
    pid, running = collector_of(run_dir)
    verified = verify and any(each.state != "partial" for each in checkpoints)
    return DirectoryView(
        directory=run_dir,
        latest=published[0] if published else None,
        collector_pid=pid,
        collector_running=running,
        checkpoints=checkpoints,
        problems=problems,
        verified=verified,
        tokens_verified=verified and tokens is not None,
    )


@dataclass(slots=True)
class _Found:
    participants: list[ParticipantView] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _checkpoint(
    fs: FileSystem, run_dir: str, name: str, published: tuple[str, ...], verify: bool, tokens: str | None
) -> CheckpointView:
    directory = layout.checkpoint_dir(run_dir, name)
    state = "partial" if name not in published else "latest" if name == published[0] else "published"
    if state == "published" and not fs.exists(layout.collection(directory)):
        state = "partial"  # an older one that is half removed: its collection goes first
    found = _verified(fs, directory) if verify and state != "partial" else _listed(fs, directory, state)
    collection: dict[str, Any] = {}
    if state != "partial":
        try:
            collection = read_collection_file(fs, run_dir, name)
        except InvalidCheckpointState as error:
            if error.detail not in found.problems:
                found.problems.append(error.detail)
    staged = _staged_in(found)
    if tokens is not None and state != "partial" and not found.problems:
        found.problems += problems_with(fs, tokens, sorted(needed(fs, directory)))
    return CheckpointView(
        checkpoint_id=name,
        state=state,
        sequence=collection.get("sequence"),
        created_at=collection.get("created_at"),
        continued=_length(collection.get("continued")),
        restarted=_length(collection.get("restarted")),
        bytes=sum(each.bytes for each in found.participants),
        staged_keys=staged,
        participants=found.participants,
        problems=found.problems,
    )


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list | dict) else None


def _staged_in(found: _Found) -> int | None:
    """How many the checkpoint refers to; None when that cannot be told."""
    counts = [each.staged_keys for each in found.participants if each.staged_keys is not None]
    return sum(counts) if len(counts) == len(found.participants) and not found.problems else None


def _staged_keys(kind: str, record: dict[str, Any]) -> tuple[str, ...]:
    """Those that a record of the capture ledger refers to; none of any other state."""
    try:
        return of_record(kind, record)
    except InvalidCheckpointState:
        return ()


def _verified(fs: FileSystem, directory: str) -> _Found:
    staged: Counter[tuple[str, str]] = Counter()

    def look(kind: str, instance: str, record: dict[str, Any]) -> None:
        staged[kind, instance] += len(_staged_keys(kind, record))

    report = finish(fs, verify_checkpoint(directory, look))
    return _Found(
        [
            ParticipantView(
                kind=each.kind,
                instance=each.instance,
                records=each.record_count,
                bytes=each.bytes,
                staged_keys=staged[each.kind, each.instance],
            )
            for each in report.participants
        ],
        report.problems,
    )


def _listed(fs: FileSystem, directory: str, state: str) -> _Found:
    """From manifests, file sizes and the records of model servers; a partial checkpoint may lack any of them."""
    found = _Found()
    for kind, instance in _participants(fs, directory):
        where = layout.join(directory, layout.GYM, kind, instance)
        try:
            named = manifest.read(fs, where)
            if named is None:
                raise manifest.damaged(layout.join(where, layout.MANIFEST), "is missing")
            size = fs.size(layout.join(where, named.records_file))
        except (ProtocolError, OSError) as error:
            if state != "partial":
                found.problems.append(str(error))
            continue
        staged: int | None = None
        try:
            read = verified_records(fs, where, named) if kind == Kind.MODEL else ()
            staged = sum(len(_staged_keys(kind, record)) for record in read)
        except ProtocolError as error:
            if state != "partial":
                found.problems.append(str(error))
        view = ParticipantView(kind=kind, instance=instance, records=named.record_count, bytes=size, staged_keys=staged)
        found.participants.append(view)
    return found


def _participants(fs: FileSystem, directory: str) -> Iterator[tuple[str, str]]:
    gym = layout.join(directory, layout.GYM)
    if fs.is_dir(gym):
        for kind in fs.listdir(gym):
            for instance in fs.listdir(layout.join(gym, kind)):
                yield kind, instance


def _episodes(fs: FileSystem, run_dir: str, wanted: str) -> Iterator[EpisodeView]:
    """Records of one episode; of every attempt when a rollout id is given."""
    for name in checkpoint_names(fs, run_dir):
        directory = layout.checkpoint_dir(run_dir, name)
        for kind, instance in _participants(fs, directory):
            where = layout.join(directory, layout.GYM, kind, instance)
            named = manifest.read(fs, where)
            for record in verified_records(fs, where, named) if named is not None else ():
                found = record["episode"]
                key = EpisodeId(found["rollout_id"], found["attempt"]).key
                if wanted in (key, found["rollout_id"]):
                    yield EpisodeView(
                        checkpoint_id=name,
                        kind=kind,
                        instance=instance,
                        capture_key=key,
                        bytes=len(json.dumps(record)) + 1,
                        staged_keys=list(_staged_keys(kind, record)),
                        state=record["state"],
                    )


def _text(view: DirectoryView) -> str:
    lines = [f"{view.directory}: {counted(len(view.checkpoints), 'checkpoint')}, latest {view.latest or 'none'}"]
    if not view.checkpoints and view.latest is None:
        lines = [f"{view.directory}: the run has no checkpoint yet"]
    if view.collector_pid is not None:
        lines.append(f"  collector {'running' if view.collector_running else 'ended'} (pid {view.collector_pid})")
    lines += [f"  PROBLEM {problem}" for problem in view.problems]
    for each in view.checkpoints:
        rows = (
            ""
            if each.continued is None
            else f", {counted(each.continued, 'row')} continued, {each.restarted or 0} restarted"
        )
        when = "" if each.created_at is None else f"  {time_text(each.created_at)}"
        staged = "" if each.staged_keys is None else f", {counted(each.staged_keys, 'staged key')}"
        lines.append(f"\n{each.checkpoint_id}  {each.state}{when}  {size_text(each.bytes)}{rows}{staged}")
        for part in each.participants:
            records = counted(part.records, "record")
            lines.append(f"  {part.kind:<12} {part.instance:<20} {records:>16}  {size_text(part.bytes):>9}")
        lines += [f"  PROBLEM {problem}" for problem in each.problems]
    if view.verified:
        bad = len(view.problems) + sum(len(each.problems) for each in view.checkpoints)
        unread = sum(each.staged_keys or 0 for each in view.checkpoints if each.state != "partial")
        rest = (
            f"; not looked at: the tokens of {counted(unread, 'staged key')} (--tokens TOKEN_DIR)"
            if unread and not view.tokens_verified
            else ""
        )
        lines.append(f"\nverified: {counted(bad, 'problem') if bad else 'every byte is right'}{rest}")
    return "\n".join(lines)


def _episode_text(found: list[EpisodeView]) -> str:
    lines = []
    for each in found:
        lines.append(f"{each.checkpoint_id}  {each.capture_key}  {each.kind} {each.instance}  {size_text(each.bytes)}")
        if isinstance(each.state, dict):
            lines += [f"  {key}: {_short(value)}" for key, value in each.state.items()]
        else:
            lines.append(f"  {_short(each.state)}")
        if each.staged_keys:
            lines.append(f"  {counted(len(each.staged_keys), 'staged key')}:")
            lines += [f"    {key}" for key in each.staged_keys]
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = json.dumps(value).decode()
    return text if len(text) <= 90 else f"{text[:80]}... ({len(text)} characters; --json shows all)"


def time_text(seconds: float) -> str:
    """Seconds since the epoch for people: `2030-01-31 23:59:59 UTC`."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError, TypeError):
        return f"at {seconds!r}"


def size_text(count: int) -> str:
    """Bytes for people: `812 B`, `4.1 kB`, `3.2 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
