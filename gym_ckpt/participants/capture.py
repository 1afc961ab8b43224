"""What the gate must know of a call to capture it: the request that asks for tokens, and the staged form of the answer.

A text completion is a conversation of its own, with its prompt as the only message: every such call is a root. An
answer that cannot be staged is served all the same; why not is the reason for its rollout's poison.

Pure: knows neither the ledger nor the token store.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gym_ckpt.core.fingerprints import Asked, NotAConversation, answered, asked
from gym_ckpt.core.lineage import Context, Generated, LedgerRow, Link, find_parent, fits_a_row, stage
from gym_ckpt.errors import NotLossless
from gym_ckpt.limits import ANSWER_PIECE_BYTES
from gym_ckpt.participants.completions import MalformedCompletion, Tokens, tokens_of, tokens_of_stream
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import InvalidStaging, StagedCall

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class NotCaptured(ValueError):
    """This call cannot be staged; the text says why."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One call's request. `body`: as the inference worker gets it; `asked`: where in which conversation it stands, or
    why that cannot be said."""

    body: bytes
    asked: Asked | NotCaptured


def asking(path: str, body: bytes) -> Asking:
    """The request to send on: it asks for token ids and log-probabilities too. Never raises."""
    try:
        value = json.loads(body)
    except ValueError as error:
        return Asking(body, NotCaptured(f"the request is not JSON: {error}"))
    if not isinstance(value, dict) or path not in (CHAT, TEXT):
        return Asking(body, NotCaptured(f"tokens of calls to {path[:80]} cannot be captured"))
    wanted = {"return_token_ids": True, "logprobs": True if path == CHAT else value.get("logprobs") or 0}
    try:
        whole = json.dumps(value | wanted)
    except NotLossless as error:
        return Asking(body, NotCaptured(f"the request cannot be sent on: {error}"))
    try:
        return Asking(whole, asked(_messages(path, value)))
    except NotAConversation as error:
        return Asking(whole, NotCaptured(f"not a conversation: {error}"))


def _messages(path: str, request: dict[str, Any]) -> list[Any]:
    if path == TEXT:
        return [{"role": "user", "content": request.get("prompt")}]
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise NotAConversation("messages is not a list")
    return messages


@dataclass(frozen=True, slots=True)
class Captured:
    """One answer with its tokens, and where it stands in its lineage."""

    call: StagedCall
    context: Context
    link: Link


def capture(
    episode: EpisodeId, call_id: str, admitted_at: float, asking: Asking, tokens: Tokens, rows: Sequence[LedgerRow]
) -> Captured:
    """The staged form of a call that continues one of `rows`, or none. `admitted_at`: seconds since the epoch.

    Raises:
        NotCaptured: it has none.
    """
    if isinstance(asking.asked, NotCaptured):
        raise asking.asked
    link = find_parent(rows, asking.asked, tokens.prompt_ids)
    made = Generated(tokens.prompt_ids, tokens.token_ids, tokens.log_probabilities, tokens.weight_version)
    try:
        call = stage(episode, call_id, link.parent, made)
        after = answered(asking.asked.request, tokens.message)
    except (InvalidStaging, NotAConversation) as error:
        raise NotCaptured(str(error)) from None
    context = Context(admitted_at, tokens.response_id, asking.asked.request, after)
    try:
        fits_a_row(call, context)
    except msgspec.ValidationError as error:
        raise NotCaptured(f"no row can hold it: {error}") from None
    return Captured(call, context, link)


def read_tokens(answer: bytes, *, streamed: bool) -> Generator[None, None, Tokens]:
    """What an answer says of its tokens, read step by step. Raises `NotCaptured`."""
    try:
        return (yield from tokens_of_stream(answer, ANSWER_PIECE_BYTES)) if streamed else tokens_of(answer)
    except MalformedCompletion as error:
        raise NotCaptured(str(error)) from None
