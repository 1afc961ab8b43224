"""A plain mapping into typed settings: unknown keys, missing keys and wrong types, each named by its path.

msgspec does the conversion; this module asks it one table at a time, because it does not name a mapping's keys in its
paths, and puts its words into the form `path: what is wrong; what is allowed`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from gym_ckpt.errors import ConfigError
from gym_ckpt.settings import (
    AgentSettings,
    CheckpointSettings,
    CollectSettings,
    EnvironmentSettings,
    GymSettings,
    InferenceSettings,
    ModelSettings,
    ResourcesSettings,
    ServerSettings,
)

S = TypeVar("S", bound=msgspec.Struct)

SERVER_KINDS: Final[Mapping[str, type[ServerSettings]]] = MappingProxyType(
    {
        "environment": EnvironmentSettings,
        "agent": AgentSettings,
        "resources": ResourcesSettings,
        "model": ModelSettings,
        "inference": InferenceSettings,
    }
)
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_TYPES: Final = MappingProxyType(
    {
        "str": "text",
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "array": "a list",
        "object": "a table",
        "null": "nothing",
    }
)


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?` or the list of what is allowed."""
    names = sorted(allowed)
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(names) or 'nothing'}"


def typed_settings(given: Mapping[str, Any]) -> GymSettings:
    """Raises `ConfigError`."""
    top = _table(given, "")
    _known(top, GymSettings, "")
    servers = {
        str(name): _server(_table(server, f"servers.{name}"), f"servers.{name}")
        for name, server in _table(top.get("servers", {}), "servers").items()
    }
    return _convert(
        {
            **top,
            "servers": servers,
            "checkpoint": _optional(top, "checkpoint", CheckpointSettings),
            "collect": _optional(top, "collect", CollectSettings),
        },
        GymSettings,
        "",
    )


def _optional(top: Mapping[str, Any], key: str, kind: type[S]) -> S | None:
    value = top.get(key)
    if value is None:
        return None
    table = _table(value, key)
    _known(table, kind, key)
    return _convert(table, kind, key)


def _server(table: Mapping[str, Any], path: str) -> ServerSettings:
    kind = table.get("kind")
    if kind is None:
        raise ConfigError(f"{path}.kind: is missing; one of {', '.join(SERVER_KINDS)}")
    if not isinstance(kind, str) or kind not in SERVER_KINDS:
        raise ConfigError(f"{path}.kind: there is no kind {kind!r}; {suggestion(str(kind), SERVER_KINDS)}")
    cls = SERVER_KINDS[kind]
    _known(table, cls, path, extra=("kind",))
    return _convert(table, cls, path)


def _table(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path or 'configuration'}: must be a table, not {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(f"{path or 'configuration'}: the key {key!r} must be text; put it in quotes")
    return dict(value)


def _known(table: Mapping[str, Any], kind: type[msgspec.Struct], path: str, extra: tuple[str, ...] = ()) -> None:
    allowed = (*extra, *kind.__struct_encode_fields__)
    for key, value in table.items():
        where = f"{path}.{key}" if path else key
        if key not in allowed:
            raise ConfigError(f"{where}: unknown key; {suggestion(key, allowed)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: must be a finite number, not {value}")


def _convert(table: Mapping[str, Any], kind: type[S], path: str) -> S:
    try:
        return msgspec.convert(table, kind, from_attributes=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_in_words(str(error), path)) from None


def _in_words(text: str, path: str) -> str:
    """msgspec's message as `path: what is wrong`."""
    message, _, where = text.partition(" - at `$")
    where = where.rstrip("`").lstrip(".")
    missing = _MISSING.fullmatch(message)
    if missing:
        return f"{_join(path, where, missing.group(1))}: is missing"
    words = re.sub(r"`(\w+)`", lambda found: _TYPES.get(found.group(1), found.group(0)), message)
    return f"{_join(path, where)}: {words[:1].lower()}{words[1:]}"


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part).replace(".[", "[")
