"""Rewards that notice every difference: a fraction made from a digest of what happened in an episode.

A gym whose task states no aim pays one, so that two runs of one input agree on the reward only if they agree on the
whole conversation (INV-1). Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

from gym_ckpt.errors import InvalidRequest, NotLossless
from gym_ckpt.wire import json


def fraction_of(value: Any) -> float:
    """A float in [0, 1) that is a function of `value` (JSON data) alone; exact in 32 bits.

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    try:
        digest = hashlib.sha256(json.dumps(value, sort_keys=True)).digest()
    except NotLossless as error:
        raise InvalidRequest(f"what is to be judged: {error}") from None
    return float(int.from_bytes(digest[:4], "big") / 2**32)


def said(messages: list[dict[str, Any]]) -> list[list[Any]]:
    """Role, text and tool calls of each message: what does not depend on which attempt or process produced it."""
    return [[message.get("role"), text_of(message), _calls(message)] for message in messages]


def text_of(message: dict[str, Any]) -> str:
    """The text of a message in OpenAI's form, of parts or whole; empty when there is none."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def final_answer(messages: list[dict[str, Any]]) -> str:
    """Text of the last message when the assistant spoke it without calling a tool; otherwise empty."""
    last = messages[-1] if messages else {}
    return text_of(last) if last.get("role") == "assistant" and not last.get("tool_calls") else ""


def _calls(message: dict[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
