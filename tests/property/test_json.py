"""Lossless JSON: what `dumps` takes comes back equal in value, type and order; the rest is refused with its path."""

from __future__ import annotations

import enum
import json
import math
import socket
import sys
import threading
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.errors import NotLossless
from gym_ckpt.limits import JSON_DEPTH_MAX, JSON_INT_DIGITS_MAX
from gym_ckpt.wire.json import dumps, loads

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ATOMS = st.none() | st.booleans() | st.integers() | st.integers(-(2**300), 2**300) | st.floats() | TEXT
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=30
)


def same(left: Any, right: Any) -> bool:
    """Equal in type, value, sign of zero, NaN-ness and order of keys."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    return bool(left == right)


@given(VALUES)
def test_what_is_written_comes_back(value: Any) -> None:
    data = dumps(value)
    assert same(loads(data), value)
    assert b"\n" not in data, "a record is one line"


@given(VALUES, st.booleans())
def test_values_have_one_spelling_whoever_writes_them(value: Any, sort_keys: bool) -> None:
    """Two writers share the work, and digests are of bytes: which of them it was must not show."""
    separators = (",", ":")
    assert dumps(value, sort_keys=sort_keys) == (
        json.dumps(value, ensure_ascii=False, separators=separators, sort_keys=sort_keys).encode()
    )


def test_every_character_has_one_spelling() -> None:
    for first in [*range(0, 0xD800, 256), *range(0xE000, sys.maxunicode + 1, 256)]:
        text = "".join(map(chr, range(first, first + 256)))
        assert dumps(text) == json.dumps(text, ensure_ascii=False).encode()


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_others_write_is_read_as_the_standard_library_reads_it(
    value: Any, ensure_ascii: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    assert same(loads(text.encode()), json.loads(text))


@given(st.dictionaries(TEXT, VALUES, max_size=6))
def test_sorted_keys_make_one_text_of_equal_values(value: dict[str, Any]) -> None:
    backwards = dict(reversed(value.items()))
    assert dumps(value, sort_keys=True) == dumps(backwards, sort_keys=True)


@given(st.binary(max_size=60) | st.text('[]{}",:0123456789eE+-.\\udDlnatrusfI \n', max_size=60).map(str.encode))
def test_any_bytes_are_a_value_that_can_be_written_again_or_a_plain_refusal(data: bytes) -> None:
    try:
        value = loads(data)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert same(loads(dumps(value)), value)


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    pass


REFUSED: list[tuple[Any, str]] = [
    ((1, 2), "a tuple would come back as a list"),
    ({1}, "builtins.set is not JSON"),
    (b"x", "builtins.bytes is not JSON"),
    (bytearray(b"x"), "bytearray is not JSON"),
    (Colour.RED, "Colour would come back as a plain int"),
    (Name("x"), "Name would come back as a plain str"),
    (OrderedDict(a=1), "OrderedDict would come back as a plain dict"),
    (1j, "complex is not JSON"),
    (object(), "object is not JSON"),
    (threading.Lock(), "lock is not JSON"),
    (len, "builtin_function_or_method is not JSON"),
    ("a\ud800", "holds a lone surrogate"),
    ("\ud83d\ude00", "holds a lone surrogate"),
    ({1: 2}, "a key is of type int, not a plain string"),
    ({Name("x"): 2}, "a key is of type Name, not a plain string"),
    ({"\udfff": 2}, "holds a lone surrogate"),
    (10**JSON_INT_DIGITS_MAX, "integer of too many digits"),
    (-(10**JSON_INT_DIGITS_MAX), "integer of too many digits"),
]


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_would_not_come_back_is_refused_with_its_path(value: Any, why: str) -> None:
    for whole, path in (
        (value, "$"),
        ({"state": [0, {"a b": value}]}, "$.state[1]['a b']"),
        ({"first": [], "second": value, "third": (1,)}, "$.second"),
    ):
        with pytest.raises(NotLossless) as caught:
            dumps(whole)
        assert caught.value.path == path
        assert why in caught.value.why


def test_a_socket_is_found_by_its_path() -> None:
    with socket.socket() as held, pytest.raises(NotLossless, match=r"\$\.tool\.connection: socket\.socket is not JSON"):
        dumps({"tool": {"connection": held}})


def test_the_largest_integer_comes_back() -> None:
    largest = 10**JSON_INT_DIGITS_MAX - 1
    assert loads(dumps([largest, -largest])) == [largest, -largest]
    with pytest.raises(ValueError, match="too many digits"):
        loads(b"1" + b"0" * JSON_INT_DIGITS_MAX)


def test_the_limit_of_digits_is_not_the_interpreters() -> None:
    usual = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        with pytest.raises(NotLossless, match=r"\$\[0\]"):
            dumps([10**JSON_INT_DIGITS_MAX])
        assert dumps("1" * 5000) == b'"' + b"1" * 5000 + b'"'
        sys.set_int_max_str_digits(640)
        with pytest.raises(NotLossless, match=r"\$\[0\]"):
            dumps([10**700])
    finally:
        sys.set_int_max_str_digits(usual)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


def test_depth_is_bounded_and_a_cycle_is_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    deepest = nested(JSON_DEPTH_MAX)
    assert same(loads(dumps(deepest)), deepest)
    with pytest.raises(NotLossless, match="nested deeper"):
        dumps(nested(JSON_DEPTH_MAX + 1))
    with pytest.raises(NotLossless, match="nested deeper"):
        dumps(nested(100_000))
    monkeypatch.setattr("gym_ckpt.wire.json.JSON_ITEMS_MAX", 10_000)  # counted before it is known why there are so many
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    with pytest.raises(NotLossless, match="nested deeper"):
        dumps(cycle)


def test_parts_shared_beyond_measure_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ckpt.wire.json.JSON_ITEMS_MAX", 10_000)
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(NotLossless, match="more than 10000 items"):
        dumps(value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a":1,"b":{"c":1,"c":2}}', "key 'c' occurs twice"),
        (b'"\\ud800"', "lone surrogate"),
        (b'["\\uDFFFx"]', "lone surrogate"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"", "not JSON: Expecting value at character 0"),
        (b"{} {}", "not JSON: Extra data at character 3"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{'a':1}", "not JSON"),
    ],
)
def test_text_with_two_readings_or_none_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        loads(data)
    assert type(caught.value) is ValueError


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert loads(b'"\\ud83d\\ude00"') == "\U0001f600"
