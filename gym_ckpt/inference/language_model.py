"""A deterministic language model: what it says is a function of the conversation and a seed, and costs almost nothing.

The seed and the prompt's token ids make a key; an extendable hash of the key yields the words. So two runs that ask
the same say the same (INV-1), and a conversation that differs in one token goes on differently, which is what makes a
lost, repeated or invented token visible. How long a conversation is comes from its first user message: a directive such
as `[[turns=3 tokens=200 calls=1]]` sets the number of turns that call tools, the tokens of text per turn and the tool
calls per turn; turns and tokens that it leaves out are drawn from the message, calls are then 1.

Pure: knows no clock and no sockets; the worker decides when the tokens come.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gym_ckpt.errors import InvalidRequest, NotLossless
from gym_ckpt.inference import tokens
from gym_ckpt.inference.arguments import Draw, fill
from gym_ckpt.inference.completion import Completion, GeneratedCall
from gym_ckpt.inference.openai import Message, Tool
from gym_ckpt.inference.template import prompt_ids
from gym_ckpt.limits import COMPLETION_TOKENS_MAX, SCRIPT_CALLS_MAX, SCRIPT_TURNS_MAX
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import encode_ids

_DIRECTIVE = re.compile(r"\[\[((?:\s*(?:turns|tokens|calls)=[0-9]{1,9})+)\s*\]\]")
_KEY_BYTES = 32
_WORD_MASK = tokens.WORDS - 1
_TURNS = range(2, 6)
_TOKENS = range(100, 401)


@dataclass(frozen=True, slots=True)
class Script:
    """How a conversation goes. `turns`: how many turns call tools before the final answer; `tokens`: of text per turn,
    drawn anew for each turn when None; `calls`: tool calls per turn."""

    turns: int
    tokens: int | None
    calls: int = 1


def script_of(messages: Sequence[Message], seed: int) -> Script:
    """The script that the first user message asks for."""
    return _script(first_user_text(messages), seed)


def plan(
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    seed: int,
    callable_tools: Sequence[Tool] | None = None,
    must_call: bool = False,
    max_tokens: int | None = None,
) -> Completion:
    """The assistant's next turn.

    `callable_tools`: those of `tools` that may be called, all when None. `must_call`: call one although the script is
    at its end. `max_tokens`: a turn that does not fit is cut to whole words, without its calls.

    Raises:
        InvalidRequest: naming the message or tool that cannot be used.
    """
    offered = tools if callable_tools is None else callable_tools
    prompt = prompt_ids(messages, tools)
    key = _key(seed, prompt)
    script = script_of(messages, seed)
    turn = sum(1 for message in messages if message.role == "assistant" and message.tool_calls)
    count = _text_tokens(script, first_user_text(messages), seed, turn)
    if max_tokens is not None and count >= max_tokens:
        return Completion(prompt, _words(key, max_tokens), (), ended=False)
    calls = _calls(key, offered, script.calls) if offered and (must_call or turn < script.turns) else ()
    whole = Completion(prompt, _words(key, count), calls, ended=True)
    if max_tokens is not None and len(whole.ids) > max_tokens:
        return Completion(prompt, whole.text_ids, (), ended=False)
    return whole


def first_user_text(messages: Sequence[Message]) -> str:
    """Text of the first user message; empty without one."""
    return next((message.text for message in messages if message.role == "user"), "")


@lru_cache(maxsize=4096)
def _script(text: str, seed: int) -> Script:
    found = _DIRECTIVE.search(text)
    asked = {name: int(value) for name, _, value in (part.partition("=") for part in found[1].split())} if found else {}
    return Script(
        turns=min(asked.get("turns", _drawn(_TURNS, text, seed, "turns")), SCRIPT_TURNS_MAX),
        tokens=min(max(asked["tokens"], 1), COMPLETION_TOKENS_MAX) if "tokens" in asked else None,
        calls=min(max(asked.get("calls", 1), 1), SCRIPT_CALLS_MAX),
    )


def _text_tokens(script: Script, text: str, seed: int, turn: int) -> int:
    return _drawn(_TOKENS, text, seed, f"tokens {turn}") if script.tokens is None else script.tokens


def _drawn(options: range, text: str, seed: int, purpose: str) -> int:
    digest = hashlib.blake2b(f"{seed}\n{purpose}\n{text}".encode(), digest_size=16).digest()
    return options[int.from_bytes(digest, "big") % len(options)]


def _key(seed: int, prompt: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(b"%d\n" % seed + encode_ids(prompt), digest_size=_KEY_BYTES).digest()


def _words(key: bytes, count: int) -> tuple[int, ...]:
    """`count` words, of which any shorter list is a prefix: the first bare, the others with a space before them."""
    raw = struct.unpack(f">{count}H", hashlib.shake_128(key).digest(2 * count))
    spaced = tokens.FIRST_SPACED
    return (tokens.FIRST_BARE + (raw[0] & _WORD_MASK), *[spaced + (bits & _WORD_MASK) for bits in raw[1:]])


def _calls(key: bytes, tools: Sequence[Tool], count: int) -> tuple[GeneratedCall, ...]:
    draw = Draw(key)
    calls: list[GeneratedCall] = []
    for index in range(count):
        chosen = draw.below(len(tools))
        function = tools[chosen].function
        try:
            value = {} if function.parameters is None else fill(function.parameters, draw)
            arguments = _ascii_json(value)
        except (ValueError, NotLossless) as error:
            raise InvalidRequest(f"tools[{chosen}].function.{error}") from None
        identity = hashlib.blake2b(b"call %d" % index, key=key, digest_size=12).hexdigest()
        calls.append(GeneratedCall(f"call_{identity}", function.name, arguments))
    return tuple(calls)


def _ascii_json(value: object) -> str:
    text = json.dumps(value, sort_keys=True).decode()
    return text if text.isascii() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isascii():
        return character
    encoded = character.encode("utf-16-be")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    return "".join(f"\\u{unit:04x}" for unit in units)
