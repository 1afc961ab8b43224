"""Rows and staged calls between two implementations: another's verify here, ours verify there, bit for bit.

The other one is below, written from the table of digests and the ledger's columns alone: it shares no code with ours
and keeps everything in plain data, as a file of another program would hold it.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ckpt.core.fingerprints import EMPTY, Asked, answered, asked
from gym_ckpt.core.lineage import Context, Generated, LedgerRow, find_parent, row_of, stage
from gym_ckpt.core.rebuild import LineageInvalid, verify
from gym_ckpt.storage.ledger import append_row, read_lineage
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.digests import StagedCall, staging_digest
from tests.unit.ledger.given import DIR, free, new_disk
from tests.unit.storage.driver import run
from tests.unit.wire.test_staging_digests import extras_by_table, f32, ids, sized, text, u64

Turn = tuple[list[int], list[int], list[float]]
"""Tokens that the prompt adds, tokens that the model generates, their log-probabilities."""
Plain = dict[str, Any]


# ------------------------------------------------------------------------------------------ another implementation


def their_call(key: str, call_id: str, parent: Plain | None, before: list[int], turn: Turn, extras: Any) -> Plain:
    prompt, generated, logprobs = turn
    delta = prompt + generated
    link = b"\x00" if parent is None else b"\x01" + bytes.fromhex(parent["chain_hash"])
    return {
        "rollout_id": key,
        "model_call_id": call_id,
        "parent_call_id": None if parent is None else parent["model_call_id"],
        "mode": "text" if parent is None else "token_in",
        "prev_len": len(before),
        "delta_len": len(delta),
        "cum_len": len(before) + len(delta),
        "weight_version": 3,
        "delta": delta,
        "mask": [0.0] * len(prompt) + [1.0] * len(generated),
        "log_probabilities": [0.0] * len(prompt) + logprobs,
        "extras": extras,
        "chain_hash": sha(b"nemo-gym-staging-chain-v1", link, ids(tuple(delta))),
        "cumulative_hash": sha(b"nemo-gym-staging-prefix-v2", ids(tuple(before + delta))),
    }


def their_digest(call: Plain) -> str:
    parent = call["parent_call_id"]
    return sha(
        b"nemo-gym-staging-call-v2",
        b"\x02\x02\x01",
        text(call["rollout_id"]),
        text(call["model_call_id"]),
        b"\x00" if parent is None else b"\x01" + text(parent),
        text(call["mode"]),
        *(u64(call[name]) for name in ("prev_len", "delta_len", "cum_len", "weight_version")),
        sized(ids(tuple(call["delta"]))),
        sized(f32(tuple(call["mask"]))),
        sized(f32(tuple(call["log_probabilities"]))),
        extras_by_table(call["extras"]),
        b"\x01" + bytes.fromhex(call["chain_hash"]),
        b"\x01" + bytes.fromhex(call["cumulative_hash"]),
    )


def their_row(call: Plain) -> Plain:
    shared = (
        "model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "weight_version", "mode", "chain_hash",
        "cumulative_hash",
    )  # fmt: skip
    digest = their_digest(call)
    return {name: call[name] for name in shared} | {
        "staging_key": digest,
        "staging_digest": digest,
        "admitted_at": 1.5,
        "response_id": None,
        "request_fingerprint": "0" * 64,
        "conversation_fingerprint": call["chain_hash"],
        "staging_chain": [],
        "capture_key": call["rollout_id"],
    }


def their_verdict(lines: bytes, staged: dict[str, Plain]) -> list[int]:
    """The tokens of the last conversation in a file of rows. Raises AssertionError when anything does not hold."""
    rows = [json.loads(line) for line in lines.splitlines()]
    seen: dict[str | None, tuple[Plain | None, list[int]]] = {None: (None, [])}
    for row in rows:
        parent, before = seen[row["parent_call_id"]]
        call = staged[row["staging_key"]]
        prompt = call["mask"].count(0.0)
        turn = call["delta"][:prompt], call["delta"][prompt:], call["log_probabilities"][prompt:]
        made = their_call(row["capture_key"], row["model_call_id"], parent, before, turn, call["extras"])
        made["weight_version"] = call["weight_version"]
        assert made == call
        assert their_digest(made) == row["staging_digest"]
        for name in ("chain_hash", "cumulative_hash", "prev_len", "cum_len", "weight_version", "mode"):
            assert row[name] == made[name]
        seen[row["model_call_id"]] = (row, before + call["delta"])
    return seen[rows[-1]["model_call_id"]][1]


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


# ------------------------------------------------------------------------------------------------------- what is said

TOKENS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), min_size=1, max_size=8)
EXTRAS = st.none() | st.dictionaries(st.text(max_size=4).filter(str.isprintable), st.integers(-9, 9) | st.text("ab"))


@st.composite
def turns(draw: st.DrawFn) -> list[Turn]:
    made: list[Turn] = []
    for at in range(draw(st.integers(1, 6))):
        generated = draw(TOKENS)
        floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
        logs = draw(st.lists(floats, min_size=len(generated), max_size=len(generated)))
        made.append((draw(TOKENS) if at == 0 else draw(TOKENS | st.just([])), generated, logs))
    return made


def keys(count: int, restores: set[int]) -> list[str]:
    """The capture key of each turn; the gym was restored before some."""
    attempts = [sum(1 for at in restores if at <= turn) for turn in range(count)]
    return [EpisodeId("r", attempt).key for attempt in attempts]


GOLDEN = [
    "5a2fb500b602bfc265aaa369947a657f307c04674583cdba301e61a8398fae7d",
    "893f805967ceed195ea2f7bc4ee792519eb26cf59bb1c7f05ea4bbfc28da1ee8",
    "e7a87cfcec45178c9de7a77f69fbe77dc5d2a1054fecb2d3b2b3f72c4b6a9e17",
    "60d3d07d955fb7dca23ce13f7d6d44698a37ede73e38f137085096459c08076b",
    "6db6457d6945f38d323b9a83f0b054a718ec6ef814c8516f0d14a01f262a7a3a",
    "03eba166f408c97ee0a21d70b234b608b57533b5a5314ad3580cf1d5821b8a45",
]
"""Chain hash, cumulative hash and staging digest of a root, then of its child."""

# -------------------------------------------------------------------------------------------------------------- tests


@given(turns(), st.sets(st.integers(1, 5), max_size=3), EXTRAS)
@settings(max_examples=80)
def test_anothers_rows_and_staged_calls_verify_here(said: list[Turn], restores: set[int], extras: Any) -> None:
    parent, before = None, list[int]()
    calls, lines = {}, b""
    for at, (turn, key) in enumerate(zip(said, keys(len(said), restores), strict=True)):
        parent = their_call(key, f"call {at}", parent, before, turn, extras)
        before += parent["delta"]
        row = their_row(parent)
        arrays: Plain = {name: tuple(parent[name]) for name in ("delta", "mask", "log_probabilities")}
        calls[row["staging_key"]] = StagedCall(**(parent | arrays))
        lines += json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    last = EpisodeId.from_key(keys(len(said), restores)[-1])
    disk = new_disk()
    disk.view("another").create(f"{DIR}/{last.key}.lineage.jsonl").write(lines)
    lineage = run(disk.view("ours"), read_lineage(DIR, last))
    (found,) = verify(last, lineage.rows, calls).values()
    assert list(found.token_ids) == before
    assert b"".join(row.encode() + b"\n" for row in lineage.rows) == lines, "and are written as they were"
    spoiled = random.Random(len(before)).choice(list(calls))
    with pytest.raises(LineageInvalid):
        verify(last, lineage.rows, {key: call for key, call in calls.items() if key != spoiled})


@given(turns(), st.sets(st.integers(1, 5), max_size=3), EXTRAS)
@settings(max_examples=80)
def test_our_rows_and_staged_calls_verify_there(said: list[Turn], restores: set[int], extras: Any) -> None:
    rows: list[LedgerRow] = []
    calls: dict[str, Plain] = {}
    tokens: tuple[int, ...] = ()
    messages: list[Plain] = []
    disk, last = new_disk(), EpisodeId("r", len(restores))
    for at, ((prompt, generated, logs), key) in enumerate(zip(said, keys(len(said), restores), strict=True)):
        messages.append({"role": "user", "content": f"question {at}"})
        where = asked(messages)
        link = find_parent(rows, where, (*tokens, *prompt))
        assert link.why is None
        made = Generated((*tokens, *prompt), generated, logs, 7, extras)
        call = stage(EpisodeId.from_key(key), f"call {at}", link.parent, made)
        messages.append({"role": "assistant", "content": f"answer {at}"})
        after = answered(where.request, messages[-1])
        digest = staging_digest(call)
        rows.append(row_of(call, digest, digest, Context(2.5, None, where.request, after)))
        free(disk.view("ours"), append_row(DIR, last, rows[-1]))
        calls[digest] = {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(call).items()}
        tokens += call.delta
    lines = disk.tree(DIR)[f"{DIR}/{last.key}.lineage.jsonl"]
    assert their_verdict(lines, calls) == list(tokens)


def test_golden_lineage() -> None:
    """Two calls with a restore between them; the digests were made with printf, xxd and sha256sum from the table."""
    first = Generated((11, 12), (21,), (-0.5,), 7)
    root = stage(EpisodeId("r"), "c0", None, first)
    row = row_of(root, staging_digest(root), staging_digest(root), Context(0.0, None, EMPTY, "f" * 64))
    link = find_parent([row], Asked(EMPTY, "f" * 64), (11, 12, 21, 13))
    child = stage(EpisodeId("r", 1), "c1", link.parent, Generated((11, 12, 21, 13), (22, 23), (-0.25, -2.0), 8))
    assert [root.chain_hash, root.cumulative_hash, staging_digest(root)] == GOLDEN[:3]
    assert [child.chain_hash, child.cumulative_hash, staging_digest(child)] == GOLDEN[3:]
