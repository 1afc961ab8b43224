"""What the demo measured: rows of the killed run against those of the undisturbed one, and what the checkpoint saved.

Every figure is counted from what the gyms wrote or said. Attempt numbers, call ids (which contain them) and response
ids differ by nature and are left out of the comparison; everything else of a row must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gym_ckpt.adapters.posix import PosixFileSystem
from gym_ckpt.errors import GymCkptError
from gym_ckpt.storage import layout, manifest
from gym_ckpt.storage.pointer import read_collection_file, read_pointer
from gym_ckpt.storage.records import verified_records
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.words import counted

BY_NATURE: Final = frozenset({"attempt", "model_call_id", "response_id", "capture_key", "started_at", "duration_s"})
"""Fields that say when, by which attempt or by which process something was done."""


class Figures(msgspec.Struct, kw_only=True):
    """The object that `--json` prints. Durations in seconds; `reasons` why `ok` is false."""

    ok: bool = False
    rows_expected: int
    rows_written: int
    rows_duplicated: int
    rows_missing: int
    rows_differing: int
    rows_continued: int
    rows_restarted: int
    rows_finished_before_kill: int
    tool_effects_expected: int
    tool_effects_seen: int
    model_calls_total: int
    model_calls_delivered_before: int
    model_calls_repeated: int
    tokens_total: int
    tokens_saved: int
    ledger_rows_expected: int
    ledger_rows_verified: int
    lineages_verified: int
    processes_killed: int
    in_flight_at_checkpoint: int
    prepare_s: float
    commit_s: float
    restore_s: float
    start_s: float
    restart_s: float
    total_s: float = 0.0
    reasons: list[str] = []
    kept_in: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A published checkpoint: the rows it continues, those it could not, and by rollout the ids of the calls that had
    been delivered when it was taken."""

    checkpoint_id: str
    continued: frozenset[str]
    restarted: frozenset[str]
    delivered: dict[str, list[str]]


class NoCheckpoint(GymCkptError):
    """Nothing was published."""


def read_saved(run_dir: str) -> Saved:
    """The checkpoint that `LATEST` names, as its files say. Raises `NoCheckpoint`, `InvalidCheckpointState`."""
    fs = PosixFileSystem()
    pointer = read_pointer(fs, run_dir)
    if pointer is None:
        raise NoCheckpoint(f"{run_dir}: no checkpoint was published")
    directory = layout.checkpoint_dir(run_dir, pointer.checkpoint_id)
    collection = read_collection_file(fs, run_dir, pointer.checkpoint_id)
    delivered: dict[str, list[str]] = {}
    for instance in fs.listdir(layout.join(directory, layout.GYM, Kind.MODEL.value)):
        where = layout.participant_dir(directory, Kind.MODEL, instance)
        named = manifest.read(fs, where)
        assert named is not None, "a published checkpoint has a manifest of every participant"
        for record in verified_records(fs, where, named):
            calls = [row["model_call_id"] for row in record["state"]["rows"]]
            delivered.setdefault(record["episode"]["rollout_id"], []).extend(calls)
    return Saved(
        pointer.checkpoint_id,
        frozenset(each["rollout_id"] for each in collection["continued"]),
        frozenset(each["rollout_id"] for each in collection["restarted"]),
        delivered,
    )


def comparable(value: Any) -> Any:
    """A row without what differs by nature, at any depth."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items() if key not in BY_NATURE}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value


def effects(rows: Sequence[dict[str, Any]]) -> int:
    """Side effects that the inventories counted, over all rows."""
    return sum(len(row["verification"]["effects"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Compared:
    duplicated: int
    missing: list[str]
    differing: list[str]


def compare(expected: Sequence[dict[str, Any]], seen: Sequence[dict[str, Any]]) -> Compared:
    """Rows by rollout id, attempt numbers and times ignored."""
    times = Counter(row["rollout_id"] for row in seen)
    by_id = {row["rollout_id"]: comparable(row) for row in seen}
    wanted = {row["rollout_id"]: comparable(row) for row in expected}
    return Compared(
        duplicated=sum(count - 1 for count in times.values()),
        missing=sorted(set(wanted) - set(by_id)),
        differing=sorted({name for name in by_id if by_id[name] != wanted.get(name)}),
    )


def repeated_calls(saved: Saved, rows: Sequence[dict[str, Any]], finished_before: set[str], made_after: int) -> int:
    """Delivered calls that were made again after the restart, as the new worker counted.

    `made_after`: calls that the worker began since the restart. What it had to do is every call of the rows that were
    finished after the restart, but for those which the checkpoint knows as delivered to a continued row.
    """
    needed = 0
    for row in rows:
        if row["rollout_id"] not in finished_before:
            known = saved.delivered.get(row["rollout_id"], []) if row["rollout_id"] in saved.continued else []
            needed += len(row["calls"]) - len(known)
    return made_after - needed


def lost_calls(saved: Saved, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Delivered calls of continued rows that their output rows do not hold: they must have been made again."""
    held = {call["model_call_id"] for row in rows for call in row["calls"]}
    return sorted(
        call
        for rollout_id in sorted(saved.continued)
        for call in saved.delivered.get(rollout_id, [])
        if call not in held
    )


def saved_tokens(saved: Saved, rows: Sequence[dict[str, Any]]) -> int:
    """Tokens of these rows that had been generated and delivered before the checkpoint."""
    known = {call for row in rows for call in saved.delivered.get(row["rollout_id"], [])}
    return sum(call["completion_tokens"] for row in rows for call in row["calls"] if call["model_call_id"] in known)


@dataclass(frozen=True, slots=True)
class Lineages:
    """What the ledger says of output rows: rows that verify, in lineages that end where their output row ends."""

    rows: int
    sound: int
    wrong: list[str]


def lineages(rows: Sequence[dict[str, Any]], verified: Sequence[dict[str, Any]]) -> Lineages:
    """`verified`: the policy server's answers about the attempts of these rows."""
    by_key = {each["capture_key"]: each for each in verified}
    found, sound, wrong = 0, 0, []
    for row in rows:
        key = EpisodeId(row["rollout_id"], row["attempt"]).key
        said, last = by_key.get(key, {}), row["calls"][-1]
        tips = [tip for tip in said.get("tips", ()) if tip["cumulative_hash"] == last["tokens_hash"]]
        if said.get("usable") and tips and said["rows"] >= len(row["calls"]):
            found, sound = found + len(row["calls"]), sound + 1
        else:
            wrong.append(f"{key} ({said.get('detail') or 'its lineage ends elsewhere'})")
    return Lineages(found, sound, wrong)


def judge(
    figures: Figures,
    compared: Compared,
    lost: Sequence[str],
    continued_rows: Sequence[dict[str, Any]],
    wrong: Sequence[str] = (),
) -> None:
    """Set `ok` and `reasons`. `wrong`: lineages that do not verify."""
    reasons = []
    if compared.missing:
        reasons.append(f"missing: {counted(len(compared.missing), 'row')}, {_some(compared.missing)}")
    if figures.rows_duplicated:
        reasons.append(f"more than once: {counted(figures.rows_duplicated, 'row')}")
    if compared.differing:
        reasons.append(
            f"unlike the undisturbed run: {counted(len(compared.differing), 'row')}, {_some(compared.differing)}"
        )
    if figures.tool_effects_seen != figures.tool_effects_expected:
        reasons.append(
            f"{counted(figures.tool_effects_seen, 'tool effect')} instead of {figures.tool_effects_expected}"
        )
    if lost or figures.model_calls_repeated:
        named = f" ({_some(lost)})" if lost else ""
        reasons.append(f"made again: {counted(figures.model_calls_repeated, 'delivered model call')}{named}")
    if figures.ledger_rows_verified != figures.ledger_rows_expected:
        count, expected = figures.ledger_rows_verified, figures.ledger_rows_expected
        reasons.append(f"verified: {count} of {counted(expected, 'ledger row')}, {_some(wrong)}")
    if figures.rows_continued == 0:
        reasons.append("the checkpoint continued no row")
    fresh = [row["rollout_id"] for row in continued_rows if row["attempt"] == 0]
    if fresh:
        reasons.append(f"in the checkpoint and not continued: {counted(len(fresh), 'row')}, {_some(fresh)}")
    figures.reasons = reasons
    figures.ok = not reasons


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
