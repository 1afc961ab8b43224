"""Fingerprints of conversations: how a call finds the call that it continues (INV-67).

A conversation's fingerprint is a chain over its messages, so that the fingerprint of every beginning falls out on the
way. It covers what a client must send back unchanged for the conversation to be the same one: role, name, text, tool
calls with their ids, the call that a tool's result answers. Null and absent are one, text in parts is the text, and
fields that a client may drop or a server may add do not count.

Pure: knows no tokens, no ledger and no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gym_ckpt.errors import NotLossless
from gym_ckpt.wire import json

_DOMAIN: Final = b"gym-ckpt-conversation-v1"
EMPTY: Final = hashlib.sha256(_DOMAIN).hexdigest()
"""The fingerprint of a conversation without messages."""


class NotAConversation(ValueError):
    """Messages that have no fingerprint; the call is served all the same."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request's messages say about where the call stands.

    `continues`: the fingerprint of the conversation up to its last answer, which the parent's row carries; None when
    the model has said nothing yet.
    """

    request: str
    continues: str | None


def asked(messages: Sequence[Any]) -> Asked:
    """Fingerprints of a chat request's messages.

    Raises:
        NotAConversation: a message is no object, or holds what JSON cannot carry.
    """
    fingerprint, continues = EMPTY, None
    for message in messages:
        fingerprint = _extend(fingerprint, message)
        if message.get("role") == "assistant":
            continues = fingerprint
    return Asked(fingerprint, continues)


def answered(request: str, answer: Any) -> str:
    """The fingerprint of the conversation after its answer (an assistant message).

    Raises:
        NotAConversation: as `asked`, or the message is no assistant's.
    """
    fingerprint = _extend(request, answer)
    if answer.get("role") != "assistant":
        raise NotAConversation("an answer is an assistant's message")
    return fingerprint


def _extend(fingerprint: str, message: Any) -> str:
    if not isinstance(message, dict):
        raise NotAConversation("a message is not an object")
    try:
        text = json.dumps(_canonical(message), sort_keys=True)
    except NotLossless as error:
        raise NotAConversation(str(error)) from None
    return hashlib.sha256(_DOMAIN + bytes.fromhex(fingerprint) + text).hexdigest()


def _canonical(message: dict[str, Any]) -> dict[str, Any]:
    kept = {
        "role": message.get("role"),
        "name": message.get("name"),
        "content": _content(message.get("content")),
        "tool_calls": [_call(call) for call in _list(message.get("tool_calls"))],
        "tool_call_id": message.get("tool_call_id"),
    }
    return {name: value for name, value in kept.items() if value not in (None, "", [])}


def _content(content: Any) -> Any:
    """Text as one string; parts of another kind stay apart, in order."""
    if not isinstance(content, list):
        return content
    pieces: list[Any] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            pieces.append(part)
        elif pieces and isinstance(pieces[-1], str):
            pieces[-1] += text
        else:
            pieces.append(text)
    return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], str) else pieces


def _call(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    return {"id": call.get("id"), "name": call["function"].get("name"), "arguments": call["function"].get("arguments")}


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise NotAConversation("tool_calls is not a list")
    return value
