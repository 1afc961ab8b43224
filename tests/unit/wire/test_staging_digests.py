"""Chain, extras and staged-call digests: against another implementation, against vectors, each rule broken once."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.wire.digests import (
    InvalidStaging,
    StagedCall,
    StagingFault,
    chain_hash,
    check,
    cumulative_hash,
    extras_digest,
    staging_digest,
)

ROOT = StagedCall(
    rollout_id="r",
    model_call_id="c0",
    parent_call_id=None,
    mode="text",
    prev_len=0,
    delta_len=3,
    cum_len=3,
    weight_version=5,
    delta=(1, 2, 3),
    mask=(0.0, 1.0, 1.0),
    log_probabilities=(0.0, -0.5, -1.25),
    extras=None,
    chain_hash=chain_hash(None, [1, 2, 3]),
    cumulative_hash=cumulative_hash([1, 2, 3]),
)
CHILD = replace(
    ROOT,
    rollout_id="r-a1",
    model_call_id="c1",
    parent_call_id="c0",
    mode="token_in",
    prev_len=3,
    cum_len=6,
    chain_hash=chain_hash(ROOT.chain_hash, [1, 2, 3]),
    cumulative_hash=cumulative_hash([1, 2, 3, 1, 2, 3]),
)


# ------------------------------------------------------------------- another implementation, from the table's words


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def text(value: str) -> bytes:
    return u64(len(value.encode("utf-8"))) + value.encode("utf-8")


def ids(values: tuple[int, ...]) -> bytes:
    return u64(len(values)) + b"".join(u64(value) for value in values)


def f32(values: tuple[float, ...]) -> bytes:
    return u64(len(values)) + b"".join(struct.pack(">f", value) for value in values)


def sized(data: bytes) -> bytes:
    return u64(len(data)) + data


def extra(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"B" + (b"\x01" if value else b"\x00")
    if isinstance(value, int):
        return b"I" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"F" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + text(value)
    if isinstance(value, list):
        return b"L" + u64(len(value)) + b"".join(map(extra, value))
    keys = sorted(value, key=lambda key: key.encode("utf-8"))
    return b"D" + u64(len(value)) + b"".join(text(key) + extra(value[key]) for key in keys)


def extras_by_table(value: Any) -> bytes:
    return hashlib.sha256(b"nemo-gym-staging-extras-v1" + b"\x01" + extra(value)).digest()


def staged_by_table(call: StagedCall) -> str:
    payload = b"\x02\x02\x01" + text(call.rollout_id) + text(call.model_call_id)
    payload += b"\x00" if call.parent_call_id is None else b"\x01" + text(call.parent_call_id)
    payload += text(call.mode)
    for number in (call.prev_len, call.delta_len, call.cum_len, call.weight_version):
        payload += u64(number)
    payload += sized(ids(call.delta)) + sized(f32(call.mask)) + sized(f32(call.log_probabilities))
    payload += extras_by_table(call.extras)
    payload += b"\x01" + bytes.fromhex(call.chain_hash) + b"\x01" + bytes.fromhex(call.cumulative_hash)
    return hashlib.sha256(b"nemo-gym-staging-call-v2" + payload).hexdigest()


# -------------------------------------------------------------------------------------------------------- strategies

TOKENS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12).map(tuple)
NAMES = st.text(max_size=12).filter(lambda value: not any("\ud800" <= char <= "\udfff" for char in value))
EXTRAS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def calls(draw: st.DrawFn) -> StagedCall:
    delta = draw(TOKENS)
    carried = draw(st.integers(0, len(delta) - 1))
    generated = len(delta) - carried
    prev_len = draw(st.just(0) | st.integers(1, 2**40))
    logs = draw(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=generated, max_size=generated)
    )
    parent = draw(st.binary(min_size=32, max_size=32)).hex() if prev_len else None
    return StagedCall(
        rollout_id=draw(NAMES),
        model_call_id=draw(NAMES),
        parent_call_id=draw(NAMES) if prev_len else None,
        mode="token_in" if prev_len else "text",
        prev_len=prev_len,
        delta_len=len(delta),
        cum_len=prev_len + len(delta),
        weight_version=draw(st.integers(0, 2**64 - 1)),
        delta=delta,
        mask=(0.0,) * carried + (1.0,) * generated,
        log_probabilities=(0.0,) * carried + tuple(logs),
        extras=draw(EXTRAS),
        chain_hash=chain_hash(parent, delta),
        cumulative_hash=draw(st.binary(min_size=32, max_size=32)).hex(),
    )


# ------------------------------------------------------------------------------------------------------------- tests


def test_vectors_computed_with_sha256sum() -> None:
    """`{ printf <domain>; printf <payload as hexadecimal> | xxd -r -p; } | sha256sum`, payloads written out by hand."""
    assert chain_hash(None, [1, 2, 3]) == "48e57a14b92bae4715336b34ecfc6570ae173a5248b845655d1446592c7c26c6"
    assert chain_hash("00" * 32, [7]) == "a45568f4eb4c6e57e104efc5e746d411d95e4342b1b4479a23b2fd6cb8e46328"
    assert extras_digest(None) == "a1edc33c107616cf344faf0103daa025cfb125f8e1c784ae5f6a49faf2b768b6"
    assert (
        extras_digest({"b": [True, -1, 0.5], "a": "é"})
        == "24aa104cd6629dda8622977629c64a20ec6e58f62b702e8cffe608945a7fa2ed"
    )
    assert (
        staging_digest(replace(ROOT, chain_hash="00" * 32, cumulative_hash="ff" * 32))
        == "3446c5cf9da2724b18d6b87cc2d9f46490dade1e94fe48765c05593af9a42abc"
    )


@given(calls())
def test_equals_the_table(call: StagedCall) -> None:
    assert staging_digest(call) == staged_by_table(call)


@given(EXTRAS)
def test_extras_equal_the_table(extras: Any) -> None:
    assert bytes.fromhex(extras_digest(extras)) == extras_by_table(extras)


@given(TOKENS, st.none() | st.binary(min_size=32, max_size=32))
def test_chain_equals_the_table(delta: tuple[int, ...], parent: bytes | None) -> None:
    link = b"\x00" if parent is None else b"\x01" + parent
    expected = hashlib.sha256(b"nemo-gym-staging-chain-v1" + link + ids(delta)).hexdigest()
    assert chain_hash(None if parent is None else parent.hex(), delta) == expected


@given(calls(), calls())
def test_other_calls_have_another_digest(left: StagedCall, right: StagedCall) -> None:
    assert (staging_digest(left) == staging_digest(right)) == (repr(left) == repr(right))


def test_every_field_is_bound_by_the_digest() -> None:
    other: dict[str, Any] = {
        "rollout_id": "q",
        "model_call_id": "c2",
        "parent_call_id": "c9",
        "weight_version": 6,
        "delta": (1, 2, 4),
        "mask": (0.0, 0.0, 1.0),
        "log_probabilities": (0.0, 0.0, -1.25),
        "extras": {},
        "chain_hash": "0" * 64,
        "cumulative_hash": "0" * 64,
    }
    base = replace(CHILD, log_probabilities=(0.0, 0.0, -1.5))
    digests = {staging_digest(base), *(staging_digest(replace(base, **{key: value})) for key, value in other.items())}
    assert len(digests) == len(other) + 1


def test_keys_are_sorted_by_their_utf8_and_not_by_their_length_or_code_units() -> None:
    assert extras_digest({"b": 1, "aa": 2}) == extras_digest({"aa": 2, "b": 1})
    value = {"\uffff": 1, "\U00010000": 2, "z": 3, "aaaa": 4}
    assert bytes.fromhex(extras_digest(value)) == extras_by_table(value)


F = StagingFault
BROKEN: list[tuple[str, StagedCall, dict[str, Any], StagingFault]] = [
    ("unknown mode", ROOT, {"mode": "tokens"}, F.UNKNOWN_MODE),
    ("root with a child's mode", ROOT, {"mode": "token_in"}, F.ROOT_MODE),
    ("root over a prefix", ROOT, {"prev_len": 2, "cum_len": 5}, F.ROOT_MODE),
    ("child with a root's mode", CHILD, {"mode": "text"}, F.CHILD_MODE),
    ("child over nothing", CHILD, {"prev_len": 0, "cum_len": 3}, F.CHILD_MODE),
    (
        "empty delta",
        ROOT,
        {"delta_len": 0, "cum_len": 0, "delta": (), "mask": (), "log_probabilities": ()},
        F.EMPTY_DELTA,
    ),
    ("cum_len off by one", CHILD, {"cum_len": 7}, F.LENGTH_MISMATCH),
    ("one token too few", ROOT, {"delta": (1, 2)}, F.LENGTH_MISMATCH),
    ("one mask too many", ROOT, {"mask": (0.0, 1.0, 1.0, 1.0)}, F.LENGTH_MISMATCH),
    ("one log-probability too few", ROOT, {"log_probabilities": (0.0, -1.0)}, F.LENGTH_MISMATCH),
    ("half a mask", ROOT, {"mask": (0.0, 0.5, 1.0)}, F.INVALID_MASK),
    ("carried after generated", ROOT, {"mask": (0.0, 1.0, 0.0)}, F.CARRIED_AFTER_GENERATED),
    ("carried with a log-probability", ROOT, {"log_probabilities": (-0.1, -0.5, -1.0)}, F.CARRIED_LOGPROB),
    ("nothing generated", ROOT, {"mask": (0.0, 0.0, 0.0), "log_probabilities": (0.0, 0.0, 0.0)}, F.NOTHING_GENERATED),
    ("infinite log-probability", ROOT, {"log_probabilities": (0.0, float("-inf"), -1.0)}, F.NOT_FINITE),
    ("log-probability that is no number", ROOT, {"log_probabilities": (0.0, float("nan"), -1.0)}, F.NOT_FINITE),
    ("beyond 32 bits", ROOT, {"log_probabilities": (0.0, -1e39, -1.0)}, F.NOT_FINITE),
    ("no float", ROOT, {"log_probabilities": (0.0, "x", -1.0)}, F.NOT_FINITE),
    ("integer beyond a float", ROOT, {"log_probabilities": (0.0, -(10**400), -1.0)}, F.NOT_FINITE),
    ("mask that is no number", ROOT, {"mask": (0.0, float("nan"), 1.0)}, F.NOT_FINITE),
    ("negative token", ROOT, {"delta": (1, -2, 3)}, F.INVALID_TOKEN),
    ("token beyond 64 bits", ROOT, {"delta": (1, 2**64, 3)}, F.INVALID_TOKEN),
    ("token that is true", ROOT, {"delta": (1, True, 3)}, F.INVALID_TOKEN),
    ("negative version", ROOT, {"weight_version": -1}, F.INVALID_NUMBER),
    ("version beyond 64 bits", ROOT, {"weight_version": 2**64}, F.INVALID_NUMBER),
    ("fraction of a token", ROOT, {"prev_len": 0.0}, F.INVALID_NUMBER),
    ("lone surrogate", ROOT, {"rollout_id": "\ud800"}, F.INVALID_TEXT),
    ("id that is no text", ROOT, {"model_call_id": 7}, F.INVALID_TEXT),
    ("upper-case hash", ROOT, {"chain_hash": "A" * 64}, F.INVALID_HASH),
    ("short hash", ROOT, {"cumulative_hash": "a" * 62}, F.INVALID_HASH),
    ("tuple in extras", ROOT, {"extras": {"a": (1,)}}, F.INVALID_EXTRAS),
    ("bytes in extras", ROOT, {"extras": [b"x"]}, F.INVALID_EXTRAS),
    ("big integer in extras", ROOT, {"extras": 2**63}, F.INVALID_EXTRAS),
    ("infinity in extras", ROOT, {"extras": float("inf")}, F.INVALID_EXTRAS),
    ("key that is no text", ROOT, {"extras": {1: 2}}, F.INVALID_EXTRAS),
    ("lone surrogate in extras", ROOT, {"extras": {"a": "\udc00"}}, F.INVALID_EXTRAS),
]


@pytest.mark.parametrize(("call", "fields", "reason"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_every_rule_broken_once_is_refused_with_its_reason(
    call: StagedCall, fields: dict[str, Any], reason: StagingFault
) -> None:
    staging_digest(call)
    with pytest.raises(InvalidStaging) as caught:
        staging_digest(replace(call, **fields))
    assert caught.value.reason is reason


def test_every_reason_is_seen() -> None:
    assert {case[3] for case in BROKEN} == set(StagingFault)


def test_endless_extras_are_refused_and_not_followed() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidStaging) as caught:
        extras_digest(loop)
    assert caught.value.reason is F.INVALID_EXTRAS


def test_the_edges_of_what_is_allowed() -> None:
    check(replace(ROOT, mask=(1.0, 1.0, 1.0), log_probabilities=(-0.5, 0.0, -3.4e38)))
    check(replace(ROOT, weight_version=2**64 - 1, delta=(0, 2**64 - 1, 3)))
    extras_digest([2**63 - 1, -(2**63), {"": None}])
