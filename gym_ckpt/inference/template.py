"""The chat template: a conversation as the token ids of a prompt.

Each message is its role's marker, its text, its tool calls and an end marker; the prompt ends with the marker after
which the assistant speaks. What the assistant then generates, its end marker included, is exactly what its message is
rendered to in the next turn: the prompt of turn k+1 starts with prompt and generated ids of turn k (INV-4). Tools are
rendered as their names and a fingerprint: this model reads no descriptions, and a thousand tokens of schema in each
prompt would be carried, hashed and stored with every call. The fingerprint is of the schema with its keys in order: a
client that stores its tools may send them in another order later.

Ids of tool calls are not rendered: results follow their calls in order. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from gym_ckpt.errors import InvalidRequest, NotLossless
from gym_ckpt.inference import tokens
from gym_ckpt.inference.openai import Message, Tool
from gym_ckpt.inference.tokens import encode
from gym_ckpt.wire import json

_FINGERPRINT_BYTES = 8
_ROLES = (
    ("system", tokens.SYSTEM),
    ("developer", tokens.SYSTEM),
    ("user", tokens.USER),
    ("assistant", tokens.ASSISTANT),
    ("tool", tokens.TOOL),
)


def prompt_ids(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
    """Token ids of the prompt of the assistant's next turn.

    Raises:
        InvalidRequest: naming the message or tool whose text UTF-8 cannot carry.
    """
    ids: list[int] = list(_tools_ids(tools))
    for index, message in enumerate(messages):
        try:
            ids.extend(message_ids(message))
        except ValueError as error:
            raise InvalidRequest(f"messages[{index}]: {error}") from None
    ids.append(tokens.ASSISTANT)
    return tuple(ids)


def call_ids(name: str, arguments: str) -> tuple[int, ...]:
    """Token ids of one tool call."""
    return (tokens.CALL, *encode(name), tokens.ARGUMENTS, *encode(arguments))


@lru_cache(maxsize=4096)
def message_ids(message: Message) -> tuple[int, ...]:
    """Token ids of one message, markers included. Raises `ValueError` for text that holds a surrogate."""
    ids = [next(token for role, token in _ROLES if role == message.role), *encode(message.text)]
    for call in message.tool_calls or ():
        ids.extend(call_ids(call.function.name, call.function.arguments))
    ids.append(tokens.END)
    return tuple(ids)


def _tools_ids(tools: Sequence[Tool]) -> tuple[int, ...]:
    declared = [
        {"name": tool.function.name, "description": tool.function.description, "parameters": tool.function.parameters}
        for tool in tools
    ]
    if not declared:
        return ()
    try:
        text = json.dumps(declared, sort_keys=True).decode()
    except NotLossless as error:
        raise InvalidRequest(f"tools: {error}") from None
    names = [token for tool in tools for token in (*encode(tool.function.name), tokens.CALL)]
    return (tokens.TOOLS, *names, *hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest(), tokens.END)
