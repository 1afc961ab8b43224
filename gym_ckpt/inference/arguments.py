"""Filling in a tool's arguments: a value that fits a JSON schema, chosen by a deterministic draw.

Knows the keywords that tools use in practice (type, enum, const, bounds, properties, items, anyOf, oneOf); others are
ignored. Pure: all chance comes from the draw's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from gym_ckpt.inference import tokens
from gym_ckpt.limits import SCHEMA_DEPTH_MAX, SCHEMA_SIZE_MAX

_SPAN = 100
"""Width of a range that a schema leaves open."""
_ITEMS = 3
_STRING_WORDS = 3


class Draw:
    """A deterministic sequence of choices. The only mutable thing here; it lives for one completion."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._values = 0

    def spend(self) -> None:
        """Count one value. Raises `ValueError` beyond `SCHEMA_SIZE_MAX` of them: lists of lists multiply."""
        self._values += 1
        if self._values > SCHEMA_SIZE_MAX:
            raise ValueError(f"arguments of more than {SCHEMA_SIZE_MAX} values")

    def below(self, bound: int) -> int:
        """The next choice in 0..bound-1; `bound` is at least 1."""
        assert bound >= 1, f"nothing to choose from: {bound}"
        self._count += 1
        digest = hashlib.blake2b(self._count.to_bytes(8, "big"), key=self._key, digest_size=16).digest()
        return int.from_bytes(digest, "big") % bound

    def pick(self, options: Sequence[Any]) -> Any:
        """One of `options`."""
        return options[self.below(len(options))]


def fill(schema: Any, draw: Draw, path: str = "parameters", depth: int = 0) -> Any:
    """A value that fits `schema`.

    Raises:
        ValueError: naming the path of a schema that is malformed, empty or nested too deeply.
    """
    draw.spend()
    if not isinstance(schema, Mapping):
        raise ValueError(f"{path}: a schema must be an object")
    if depth > SCHEMA_DEPTH_MAX:
        raise ValueError(f"{path}: nested more than {SCHEMA_DEPTH_MAX} deep")
    if "const" in schema:
        return schema["const"]
    for keyword in ("enum", "anyOf", "oneOf"):
        if keyword in schema:
            options = schema[keyword]
            if not isinstance(options, list) or not options:
                raise ValueError(f"{path}.{keyword}: must be a list with at least one entry")
            chosen = draw.pick(options)
            return chosen if keyword == "enum" else fill(chosen, draw, f"{path}.{keyword}", depth + 1)
    match _type(schema, path):
        case "object":
            return _object(schema, draw, path, depth)
        case "array":
            low, high = _lengths(schema, "minItems", "maxItems", path, low=1, span=_ITEMS - 1)
            count = low + draw.below(min(high - low + 1, _ITEMS))
            return [fill(schema.get("items", {}), draw, f"{path}.items", depth + 1) for _ in range(count)]
        case "integer":
            low, high = _range(schema, "minimum", "maximum", path)
            return low + draw.below(high - low + 1)
        case "number":
            low, high = _range(schema, "minimum", "maximum", path)
            return float(low + draw.below(high - low + 1))
        case "boolean":
            return draw.below(2) == 1
        case "null":
            return None
        case _:
            return _string(schema, draw, path)


def _type(schema: Mapping[str, Any], path: str) -> str:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((entry for entry in kind if entry != "null"), "null")
    if kind not in ("object", "array", "integer", "number", "boolean", "null", "string"):
        raise ValueError(f"{path}.type: {kind!r} is not a type of JSON schema")
    return str(kind)


def _object(schema: Mapping[str, Any], draw: Draw, path: str, depth: int) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise ValueError(f"{path}: 'properties' must be an object and 'required' a list")
    return {
        name: fill(properties[name], draw, f"{path}.{name}", depth + 1)
        for name in sorted(properties)
        if name in required or draw.below(2) == 1
    }


def _string(schema: Mapping[str, Any], draw: Draw, path: str) -> str:
    low, high = _lengths(schema, "minLength", "maxLength", path, low=0, span=SCHEMA_SIZE_MAX)
    count = max(1 + draw.below(_STRING_WORDS), low // 4)
    words = (tokens.PIECES[tokens.FIRST_BARE + draw.below(tokens.WORDS)].decode() for _ in range(count))
    return " ".join(words).ljust(low, "a")[:high]


def _lengths(schema: Mapping[str, Any], least: str, most: str, path: str, *, low: int, span: int) -> tuple[int, int]:
    first, last = _range(schema, least, most, path, low=low, span=span)
    if not 0 <= first <= SCHEMA_SIZE_MAX:
        raise ValueError(f"{path}.{least}: must be a whole number from 0 to {SCHEMA_SIZE_MAX}")
    return first, last


def _range(
    schema: Mapping[str, Any], least: str, most: str, path: str, *, low: int = 0, span: int = _SPAN
) -> tuple[int, int]:
    """Whole numbers from `least` to `most`; an open side lies `span` away from the other, else it starts at `low`."""
    floor, ceiling = _bound(schema, least, path), _bound(schema, most, path)
    if floor is not None and (exact := int(floor)) < floor:
        floor = exact + 1
    if least == "minimum":
        above, below = _bound(schema, "exclusiveMinimum", path), _bound(schema, "exclusiveMaximum", path)
        floor = floor if above is None else max(int(above // 1) + 1, above if floor is None else floor)
        ceiling = ceiling if below is None else min(-int(-below // 1) - 1, below if ceiling is None else ceiling)
    if floor is None:
        floor = low if ceiling is None else min(low, int(ceiling // 1))
    first = -int(-floor // 1)
    last = first + span if ceiling is None else int(ceiling // 1)
    if first > last:
        raise ValueError(f"{path}: no value lies between {least} and {most}")
    return first, last


def _bound(schema: Mapping[str, Any], keyword: str, path: str) -> float | int | None:
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise ValueError(f"{path}.{keyword}: must be a number")
    return value
