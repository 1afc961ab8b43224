"""`gym-ckpt config show`: the effective configuration, each value with its source."""

from __future__ import annotations

from typing import Any

from gym_ckpt.cli.config import effective, load
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import plain


def show_config(config: str, *, as_json: bool) -> str:
    """The text to print. Raises `ConfigError`."""
    loaded = load(config)
    rows = effective(loaded)
    if as_json:
        values = {row.path: {"value": row.value, "source": row.source} for row in rows}
        return json.dumps(plain({"source": loaded.source, "values": values})).decode()
    width = max(len(row.path) for row in rows)
    texts = [_text(row.value) for row in rows]
    value_width = max(len(text) for text in texts)
    return "\n".join(
        f"{row.path:<{width}}  {text:<{value_width}}  {row.source}" for row, text in zip(rows, texts, strict=True)
    )


def _text(value: Any) -> str:
    return "unset" if value is None else json.dumps(plain(value)).decode()
