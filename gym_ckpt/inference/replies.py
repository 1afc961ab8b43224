"""Completions as bodies: OpenAI's shapes, with vLLM's names for token ids.

A stream's chunk carries everything of its step: the first one the role and the prompt's ids, the last one also the
finish reason, the usage when asked for, and the end of the stream. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gym_ckpt.inference import tokens
from gym_ckpt.inference.completion import CallDelta, Completion
from gym_ckpt.inference.openai import ChatRequest
from gym_ckpt.wire import json, sse


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one response share. `created`: seconds since the epoch."""

    id: str
    created: int
    model: str

    def body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def whole(head: Head, completion: Completion, request: ChatRequest) -> bytes:
    """The body of a response that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.text}
    if completion.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in completion.calls
        ]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": completion.finish_reason}
    body = head.body("chat.completion", [choice]) | {"usage": usage(completion)}
    if request.logprobs:
        choice["logprobs"] = _logprobs(completion.ids)
    if request.return_token_ids:
        choice["token_ids"] = list(completion.ids)
        body["prompt_token_ids"] = list(completion.prompt_ids)
    return json.dumps(body)


def chunk(head: Head, completion: Completion, request: ChatRequest, start: int, end: int) -> bytes:
    """Events for the generated ids `start`..`end`-1."""
    text, calls = completion.delta(start, end)
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if start == 0 else {}
    if text:
        delta["content"] = text
    if calls:
        delta["tool_calls"] = [_call_delta(call) for call in calls]
    last = end == len(completion.ids)
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": completion.finish_reason if last else None}
    body = head.body("chat.completion.chunk", [choice])
    if request.logprobs:
        choice["logprobs"] = _logprobs(completion.ids[start:end])
    if request.return_token_ids:
        choice["token_ids"] = list(completion.ids[start:end])
        if start == 0:
            body["prompt_token_ids"] = list(completion.prompt_ids)
    events = sse.event(json.dumps(body))
    if last and request.include_usage:
        events += sse.event(json.dumps(head.body("chat.completion.chunk", []) | {"usage": usage(completion)}))
    return events + sse.DONE_EVENT if last else events


def usage(completion: Completion) -> dict[str, int]:
    """Counts of tokens; the end marker is one of those generated."""
    prompt, generated = len(completion.prompt_ids), len(completion.ids)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def log_probability(token: int) -> float:
    """What the model says of a token that it generated: a function of the token, exact as a 32-bit float."""
    return -(1 + token % 127) / 64


def _logprobs(ids: Sequence[int]) -> dict[str, Any]:
    listed = [
        {"token": tokens.PIECES[each].decode("utf-8", "replace"), "logprob": log_probability(each)} for each in ids
    ]
    return {"content": listed}


def _call_delta(call: CallDelta) -> dict[str, Any]:
    if call.begins is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.begins.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.begins.id, "type": "function", "function": function}
