"""Arguments fit the schemas that tools use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.inference.arguments import Draw, fill

KEYS = st.binary(min_size=1, max_size=8)


def filled(schema: Any, key: bytes = b"k") -> Any:
    return fill(schema, Draw(key))


@given(KEYS, st.integers(-1000, 1000), st.integers(0, 50))
def test_whole_numbers_stay_within_their_bounds(key: bytes, low: int, width: int) -> None:
    high = low + width
    assert low <= filled({"type": "integer", "minimum": low, "maximum": high}, key) <= high
    exclusive = {"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
    assert low <= filled(exclusive, key) <= high
    assert filled({"type": "integer", "minimum": low}, key) >= low
    assert filled({"type": "integer", "maximum": high}, key) <= high
    assert low + 0.5 < filled({"type": "integer", "minimum": low + 0.5, "maximum": high + 1.5}, key) <= high + 1.5


@given(KEYS, st.integers(0, 30), st.integers(0, 30))
def test_strings_and_lists_have_an_allowed_length(key: bytes, low: int, width: int) -> None:
    assert low <= len(filled({"type": "string", "minLength": low, "maxLength": low + width}, key)) <= low + width
    listed = filled({"type": "array", "minItems": low, "maxItems": low + width, "items": {"enum": [1, "b"]}}, key)
    assert low <= len(listed) <= low + width and set(listed) <= {1, "b"}


@given(KEYS)
def test_objects_hold_what_is_required(key: bytes) -> None:
    schema = {
        "properties": {
            "a": {"enum": ["x", "é"]},
            "b": {"type": ["null", "boolean"]},
            "c": {"type": "object", "properties": {"d": {"const": 3}}, "required": ["d"]},
            "e": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        },
        "required": ["a", "c"],
    }
    value = filled(schema, key)
    assert {"a", "c"} <= set(value) <= {"a", "b", "c", "e"}
    assert value["a"] in ("x", "é") and value["c"] == {"d": 3} and isinstance(value.get("b", True), bool)
    assert value.get("e") is None or isinstance(value["e"], float)
    assert filled(schema, key) == value


def test_a_list_that_may_be_endless_stays_short() -> None:
    assert 2 <= len(filled({"type": "array", "minItems": 2, "maxItems": 10**9, "items": {"const": 1}})) <= 4


def test_every_choice_occurs() -> None:
    draw = Draw(b"k")
    assert {fill({"enum": list(range(8))}, draw) for _ in range(200)} == set(range(8))


def nested(depth: int) -> dict[str, Any]:
    return {"const": 1} if depth == 0 else {"type": "array", "minItems": 1, "items": nested(depth - 1)}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"enum": []}, r"parameters\.enum"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "parameters"),
        ({"type": "integer", "minimum": "1"}, r"parameters\.minimum"),
        ({"type": "integer", "minimum": float("nan")}, r"parameters\.minimum"),
        ({"type": "thing"}, r"parameters\.type"),
        ({"type": "object", "properties": {"a": 3}, "required": ["a"]}, r"parameters\.a"),
        ({"properties": []}, "parameters"),
        ({"type": "string", "minLength": -5, "maxLength": -1}, "parameters"),
        ({"type": "array", "minItems": 10**9}, r"parameters\.minItems"),
        ({"type": "string", "minLength": 10**9}, r"parameters\.minLength"),
        ({"type": "array", "minItems": 200, "items": {"type": "array", "minItems": 200}}, "values"),
        (nested(20), "deep"),
    ],
)
def test_a_malformed_schema_is_refused_with_its_path(schema: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        filled(schema)
