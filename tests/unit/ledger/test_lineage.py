"""Rows and conversations: fingerprints, parents, rebuilding with each thing wrong once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.core.fingerprints import EMPTY, NotAConversation, answered, asked
from gym_ckpt.core.lineage import (
    Generated,
    LedgerRow,
    Poison,
    Reason,
    belongs,
    find_parent,
    parse_row,
    stage,
)
from gym_ckpt.core.pending import PendingAttempts
from gym_ckpt.core.rebuild import LineageInvalid, rebuild, verify
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import StagedCall, chain_hash, staging_digest
from tests.unit.ledger.given import R0, a_row, broken, chain, changed, ep, row_for, staged

USER = {"role": "user", "content": "hi"}
SAID: dict[str, Any] = {"role": "assistant", "content": "hello", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # noqa: E501  # fmt: skip
TOOL = {"role": "tool", "content": "42", "tool_call_id": "t1"}


# ------------------------------------------------------------------------------------------------ fingerprints


def test_a_call_continues_the_conversation_after_the_last_answer() -> None:
    first = asked([USER])
    assert first.continues is None
    after = answered(first.request, SAID)
    second = asked([USER, SAID, TOOL])
    assert second.continues == after
    assert second.request not in (after, first.request)
    third = asked([USER, SAID, TOOL, {"role": "assistant", "content": "so"}, USER])
    assert third.continues == answered(second.request, {"role": "assistant", "content": "so"})


@pytest.mark.parametrize(
    "same",
    [
        SAID | {"refusal": None, "annotations": [], "reasoning_content": "hm", "audio": None},
        SAID | {"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        SAID | {"tool_calls": [SAID["tool_calls"][0] | {"index": 0}]},
        dict(reversed(SAID.items())),
    ],
)
def test_what_a_client_may_drop_or_reorder_does_not_count(same: dict[str, Any]) -> None:
    assert answered(EMPTY, same) == answered(EMPTY, SAID)


def test_null_empty_and_absent_content_are_one() -> None:
    calls = {"role": "assistant", "tool_calls": SAID["tool_calls"]}
    assert (
        answered(EMPTY, calls) == answered(EMPTY, calls | {"content": None}) == answered(EMPTY, calls | {"content": ""})
    )
    assert asked([USER]) == asked([USER | {"tool_calls": None}]) == asked([USER | {"tool_calls": []}])


@pytest.mark.parametrize(
    "other",
    [
        SAID | {"content": "hello!"},
        SAID | {"content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        SAID | {"tool_calls": []},
        SAID | {"tool_calls": [{"id": "t2", "function": {"name": "f", "arguments": "{}"}}]},
        SAID | {"tool_calls": [{"id": "t1", "function": {"name": "g", "arguments": "{}"}}]},
        SAID | {"tool_calls": [{"id": "t1", "function": {"name": "f", "arguments": "{ }"}}]},
        SAID | {"name": "n"},
    ],
)
def test_what_makes_another_conversation(other: dict[str, Any]) -> None:
    assert answered(EMPTY, other) != answered(EMPTY, SAID)


def test_roles_and_order_count() -> None:
    assert asked([USER | {"role": "system"}]).request != asked([USER]).request
    assert asked([USER, TOOL]).request != asked([TOOL, USER]).request
    assert asked([]).request == EMPTY


@pytest.mark.parametrize("bad", ["text", None, USER | {"content": object()}, USER | {"tool_calls": "x"}])
def test_what_is_no_message_has_no_fingerprint(bad: Any) -> None:
    with pytest.raises(NotAConversation):
        asked([bad])


def test_only_an_assistant_answers() -> None:
    with pytest.raises(NotAConversation):
        answered(EMPTY, USER)


# ----------------------------------------------------------------------------------------------------- parents


def test_a_parent_is_looked_up_and_never_consumed() -> None:
    """Scenario 83: a refused request's retry finds the same parent (INV-67)."""
    call = staged()
    row = row_for(call, answered(asked([USER]).request, SAID))
    again = asked([USER, SAID, TOOL])
    for _ in range(3):
        assert find_parent([row], again).parent is row
    assert find_parent([row], asked([USER])).parent is None


def test_no_parent_and_several_are_told_apart_and_served() -> None:
    conversation = answered(asked([USER]).request, SAID)
    rows = [row_for(staged("c0"), conversation), row_for(staged("c1", generated=(9, 9)), conversation)]
    assert find_parent(rows, asked([USER, SAID])).why is Reason.PARENT_AMBIGUOUS
    assert find_parent([], asked([USER, SAID])).why is Reason.PARENT_UNRESOLVED
    assert find_parent(rows[:1], asked([USER, SAID])).why is None


def test_a_lost_answer_and_its_equal_repetition_are_one_parent() -> None:
    conversation = answered(asked([USER]).request, SAID)
    rows = [row_for(staged("c0"), conversation), row_for(staged("c1"), conversation)]
    assert find_parent(rows, asked([USER, SAID])).parent is rows[1]


def test_a_prompt_must_begin_with_its_parents_tokens() -> None:
    row = row_for(staged(prompt=(1, 2), generated=(3, 4)), answered(asked([USER]).request, SAID))
    call = asked([USER, SAID, TOOL])
    assert find_parent([row], call, [1, 2, 3, 4, 9]).parent is row
    for prompt in ([1, 2, 3, 5, 9], [1, 2, 3], []):
        assert find_parent([row], call, prompt).why is Reason.PREFIX_MISMATCH


@pytest.mark.parametrize(
    ("key", "at", "expected"),
    [
        ("r", "r", True), ("r", "r-a3", True), ("r-a3", "r-a3", True), ("r-a4", "r-a3", False), ("q", "r", False),
        ("r-1", "r", False), ("r.b", "r-a1", False), ("r-a2x", "r-a5", False), ("../r", "r", False), ("", "r", False),
    ],
)  # fmt: skip
def test_whose_rows_may_stand_in_a_lineage(key: str, at: str, expected: bool) -> None:
    assert belongs(key, ep(at)) is expected


# --------------------------------------------------------------------------------------------------------- rows


def test_a_row_survives_its_line() -> None:
    row = changed(a_row(), staging_chain=("a", "b"), response_id="resp", admitted_at=1e9 + 0.25)
    assert parse_row(json.loads(row.encode())) == row
    assert row.staging_keys == ("a", "b", row.staging_key)


@pytest.mark.parametrize(
    "change",
    [{"prev_len": -1}, {"chain_hash": "x"}, {"extra": 1}, {"mode": None}, {"staging_chain": "abc"}, {"cum_len": 1.5}],
)
def test_what_is_no_row_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        parse_row(json.loads(a_row().encode()) | change)


# ----------------------------------------------------------------------------------------------------- rebuilding


@given(st.integers(1, 6), st.integers(0, 3))
def test_a_lineage_gives_back_its_tokens(length: int, attempt: int) -> None:
    rows, calls, tokens = chain(EpisodeId("r", attempt), length)
    for later in (attempt, attempt + 4):
        made = rebuild(EpisodeId("r", later), rows, calls)
        assert list(made.token_ids) == tokens
        assert len(made.mask) == len(made.log_probabilities) == len(tokens)
        assert sum(made.mask) == 2 * length
        assert verify(EpisodeId("r", later), rows, calls) == {rows[-1].model_call_id: made}
    assert rebuild(EpisodeId("r", attempt), rows, calls, tip="c0").token_ids == calls[rows[0].staging_key].delta


def test_branches_are_all_verified_and_kept_apart() -> None:
    rows, calls, tokens = chain(R0, 2)
    branch = staged("b", parent=rows[0], before=calls[rows[0].staging_key].delta, prompt=(8,), generated=(9,))
    rows.append(row_for(branch, "e" * 64))
    calls[rows[-1].staging_key] = branch
    ends = verify(R0, rows, calls)
    assert {end: list(made.token_ids) for end, made in ends.items()} == {"c1": tokens, "b": [1, 3, 4, 8, 9]}


def test_a_carried_and_a_fresh_stretch_make_one_lineage() -> None:
    rows, calls, tokens = chain(R0, 2)
    fresh = staged("n", episode=ep("r-a1"), parent=rows[-1], before=tuple(tokens), prompt=(8,), generated=(9,))
    rows.append(row_for(fresh, "e" * 64))
    calls[rows[-1].staging_key] = fresh
    assert rebuild(ep("r-a1"), rows, calls).token_ids == (*tokens, 8, 9)


Rows = list[LedgerRow]
Calls = dict[str, StagedCall]


def resigned(rows: Rows, calls: Calls, at: int, **fields: Any) -> None:
    """Change a staged call and its row alike, with a digest that fits: only the lineage can tell."""
    call = replace(calls.pop(rows[at].staging_key), **fields)
    named = {"rollout_id": "capture_key"}
    known = {
        named.get(name, name): value
        for name, value in fields.items()
        if named.get(name, name) in rows[at].__struct_fields__
    }
    digest = staging_digest(call)
    rows[at] = changed(rows[at], **known, staging_digest=digest, staging_key=digest)
    calls[digest] = call


def forged(rows: Rows, calls: Calls) -> None:
    """Other tokens with a chain hash that fits them, over the old cumulative hash."""
    delta = (5, *calls[rows[1].staging_key].delta[1:])
    resigned(rows, calls, 1, delta=delta, chain_hash=chain_hash(rows[0].chain_hash, delta))


def edit(at: int, **fields: Any) -> Callable[[Rows, Calls], None]:
    def apply(rows: Rows, calls: Calls) -> None:
        rows[at] = changed(rows[at], **fields)

    return apply


def edit_staged(**fields: Any) -> Callable[[Rows, Calls], None]:
    def apply(rows: Rows, calls: Calls) -> None:
        calls[rows[1].staging_key] = broken(calls[rows[1].staging_key], **fields)

    return apply


WRONG: dict[str, tuple[Callable[[Rows, Calls], object], Reason]] = {
    "another rollout's row": (lambda r, c: resigned(r, c, 0, rollout_id="q"), Reason.FOREIGN_CAPTURE_KEY),
    "a later attempt's row": (lambda r, c: resigned(r, c, 1, rollout_id="r-a9"), Reason.FOREIGN_CAPTURE_KEY),
    "a look-alike's row": (lambda r, c: resigned(r, c, 1, rollout_id="r-1"), Reason.FOREIGN_CAPTURE_KEY),
    "a child older than its parent": (lambda r, c: resigned(r, c, 0, rollout_id="r-a1"), Reason.ATTEMPT_ORDER),
    "a gap": (lambda r, c: resigned(r, c, 1, prev_len=9, cum_len=13), Reason.NOT_CONTIGUOUS),
    "tokens not staged": (lambda r, c: c.pop(r[1].staging_key), Reason.MISSING_STAGED),
    "tokens changed": (edit_staged(delta=(10, 3, 4, 4)), Reason.DIGEST_MISMATCH),
    "log-probabilities changed": (edit_staged(log_probabilities=(0.0, 0.0, -0.5, -0.6)), Reason.DIGEST_MISMATCH),
    "staged call broken": (edit_staged(mode="text"), Reason.INVALID_STAGING),
    "row says another version": (edit(1, weight_version=8), Reason.ROW_MISMATCH),
    "row says another length": (edit(1, cum_len=99), Reason.ROW_MISMATCH),
    "row under another key": (edit(1, capture_key="r-a1"), Reason.ROW_MISMATCH),
    "another chain": (lambda r, c: resigned(r, c, 1, chain_hash="0" * 64), Reason.CHAIN_MISMATCH),
    "another whole": (lambda r, c: resigned(r, c, 1, cumulative_hash="0" * 64), Reason.CUMULATIVE_MISMATCH),
    "forged tokens": (forged, Reason.CUMULATIVE_MISMATCH),
    "parent gone": (lambda r, c: r.pop(0), Reason.MISSING_PARENT),
    "child before parent": (lambda r, c: r.insert(0, r.pop(1)), Reason.MISSING_PARENT),
    "its own parent": (lambda r, c: resigned(r, c, 1, parent_call_id="c1"), Reason.MISSING_PARENT),
    "one call twice": (lambda r, c: r.append(changed(r[0], response_id="x")), Reason.DUPLICATE_CALL),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_thing_wrong_once_is_refused_with_its_reason(case: str) -> None:
    spoil, reason = WRONG[case]
    rows, calls, _ = chain(R0, 2)
    verify(ep("r-a2"), rows, calls)
    spoil(rows, calls)
    for check in (lambda: rebuild(ep("r-a2"), rows, calls, tip="c1"), lambda: verify(ep("r-a2"), rows, calls)):
        with pytest.raises(LineageInvalid) as caught:
            check()
        assert caught.value.reason is reason


def test_poison_anywhere_makes_a_rollout_unusable() -> None:
    rows, calls, _ = chain(R0, 1)
    for check in (rebuild, verify):
        with pytest.raises(LineageInvalid, match="parent_unresolved") as caught:
            check(R0, rows, calls, [Poison("c0", Reason.PARENT_UNRESOLVED)])
        assert caught.value.reason is Reason.POISONED


@pytest.mark.parametrize(("rows", "tip"), [([], None), ([a_row()], "other")])
def test_a_call_without_a_row_has_no_conversation(rows: Rows, tip: str | None) -> None:
    with pytest.raises(LineageInvalid) as caught:
        rebuild(R0, rows, {}, tip=tip)
    assert caught.value.reason is Reason.UNKNOWN_CALL


def test_every_reason_of_a_rebuild_is_seen() -> None:
    served = {
        Reason.PARENT_UNRESOLVED,
        Reason.PARENT_AMBIGUOUS,
        Reason.PREFIX_MISMATCH,
        Reason.CAPTURE_FAILED,
        Reason.ROW_WRITE_FAILED,
        Reason.DAMAGED,
        Reason.NO_ROWS,
    }
    assert {reason for _, reason in WRONG.values()} == set(Reason) - served - {Reason.POISONED, Reason.UNKNOWN_CALL}


def test_a_call_whose_parent_is_unknown_is_staged_as_a_root() -> None:
    call = stage(R0, "c", None, Generated((1, 2, 3), (4,), (-1.0,), 0))
    assert (call.mode, call.prev_len, call.delta, call.mask) == ("text", 0, (1, 2, 3, 4), (0.0, 0.0, 0.0, 1.0))
    staging_digest(call)


# -------------------------------------------------------------------------------------------------------- pending


def test_what_could_not_be_deleted_stays_pending_and_what_is_retired_does_not() -> None:
    pending = PendingAttempts()
    pending.restored([ep("a-a1"), ep("b-a1"), ep("c-a2")])
    assert ep("a-a1") in pending and ep("a") not in pending and ep("a-a2") not in pending
    assert pending.out_of_scope({ep("a-a1")}) == [ep("b-a1"), ep("c-a2")]
    pending.settled([ep("b-a1"), ep("c-a1"), ep("x")])
    assert pending.out_of_scope(set()) == [ep("a-a1"), ep("c-a2")]
    pending.drop([ep("c-a1"), ep("a-a5"), ep("y")])
    assert pending.out_of_scope(set()) == [ep("c-a2")]
    pending.drop([ep("c-a2")])
    assert len(pending) == 0
