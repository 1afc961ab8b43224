"""Answers of engines, whole and in chunks, read into one shape."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from gym_ckpt.errors import PeerLost
from gym_ckpt.participants import capture
from gym_ckpt.participants.capture import NotCaptured, read_tokens
from gym_ckpt.participants.completions import (
    MalformedCompletion,
    StreamedCompletion,
    Tokens,
    _Assembly,
    _Choice,
    _Completion,
    _Function,
    _Message,
    _ToolCall,
)
from gym_ckpt.wire import json

T = TypeVar("T")
COUNT = 40


def chunk(at: int, last: int, **more: Any) -> dict[str, Any]:
    """One token's part of an answer."""
    choice = {
        "index": 0,
        "delta": {"content": f"w{at} "},
        "token_ids": [at],
        "logprobs": {"content": [{"token": "w", "logprob": -0.5 * at}]},
        "finish_reason": "stop" if at == last else None,
    }
    return {"id": "x", "choices": [choice]} | ({"prompt_token_ids": [7, 8]} if at == 0 else {}) | more


def stream(*parts: dict[str, Any]) -> bytes:
    return b"".join(b": comment\n\ndata: " + json.dumps(part) + b"\r\n\r\n" for part in parts) + b"data: [DONE]\n\n"


WHOLE = stream(*(chunk(at, COUNT - 1) for at in range(COUNT)))


def ran(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What it returns, and how many times others had their turn."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, turns
        turns += 1


@pytest.mark.parametrize("piece", [1, 7, 100, 10_000])
def test_a_stream_is_read_in_pieces_that_may_end_anywhere(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "ANSWER_PIECE_BYTES", piece)
    tokens, turns = ran(read_tokens(WHOLE, streamed=True))
    assert isinstance(tokens, Tokens)
    assert (tokens.prompt_ids, tokens.token_ids) == ((7, 8), tuple(range(COUNT)))
    assert tokens.log_probabilities == tuple(-0.5 * at for at in range(COUNT))
    assert tokens.message["content"] == "".join(f"w{at} " for at in range(COUNT))
    assert turns == (len(WHOLE) - 1) // piece, "others have a turn between two of them"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (WHOLE.removesuffix(b"data: [DONE]\n\n"), "ended before its answer was whole"),
        (stream(chunk(0, 1)), "without finish_reason"),
        (stream(chunk(0, 0), {"error": {"message": "out of memory"}}), "out of memory"),
        (stream(chunk(0, 0), {"error": "overloaded"}), "overloaded"),
        (stream(chunk(0, 0), {"choices": [{"index": 1, "delta": {"content": "or"}}]}), "an answer of several choices"),
        (stream(chunk(0, 0, weight_version="v2")), "weight_version that is no whole number"),
        (stream(chunk(0, 0, weight_version=True)), "weight_version that is no whole number"),
        (b"data: {\n\n", "not a chat completion"),
    ],
)
def test_what_cannot_be_captured_says_why(answer: bytes, why: str) -> None:
    with pytest.raises(NotCaptured, match=why):
        ran(read_tokens(answer, streamed=True))


def test_the_text_of_a_text_completion_is_what_it_says() -> None:
    choice = {
        "index": 0,
        "text": "hi",
        "token_ids": [5],
        "logprobs": {"token_logprobs": [-0.5]},
        "finish_reason": "stop",
    }
    answer = json.dumps({"id": "x", "choices": [choice], "prompt_token_ids": [7, 8]})
    tokens, _ = ran(read_tokens(answer, streamed=False))
    assert (tokens.message["content"], tokens.token_ids, tokens.log_probabilities) == ("hi", (5,), (-0.5,))


@pytest.mark.parametrize("lacks", ["finish_reason", "usage"])
def test_an_agent_takes_no_answer_that_does_not_say_how_it_ended_or_what_it_used(lacks: str) -> None:
    usage = {} if lacks == "usage" else {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    completion = StreamedCompletion()
    completion.feed(stream(chunk(0, 1 if lacks == "finish_reason" else 0, **usage)))
    with pytest.raises(MalformedCompletion, match="without finish_reason or usage"):
        completion.reply("c")


def test_an_answer_costs_an_agent_time_in_proportion_to_its_tokens() -> None:
    """Sixty thousand chunks of one token: copied for each, the tokens so far took most of a minute."""
    assembly = _Assembly()
    part = _Completion(choices=[_Choice(token_ids=[5])])
    began = time.process_time()
    for _ in range(60_000):
        assembly.add(part)
    assert time.process_time() - began < 5.0


def test_the_arguments_of_a_tool_cost_time_in_proportion_to_their_length() -> None:
    """Sixty thousand chunks: copied for each, the text so far would be a hundred gigabytes."""
    assembly, piece = _Assembly(), "x" * 64
    part = _Completion(choices=[_Choice(delta=_Message(tool_calls=[_ToolCall(_Function(arguments=piece))]))])
    began = time.process_time()
    for _ in range(60_000):
        assembly.add(part)
    assert assembly._tool_calls()[0].arguments == piece * 60_000
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("error", ["overloaded", {"message": "overloaded", "code": 503}, ["overloaded"]])
def test_an_engine_that_breaks_off_is_lost_in_whatever_form_it_says_so(error: object) -> None:
    """So the call is made again (`core.patience`); as a malformed answer it would fail its episode."""
    completion = StreamedCompletion()
    with pytest.raises(PeerLost, match=r"broke its answer off: .*overloaded"):
        completion.feed(b"data: " + json.dumps({"error": error}) + b"\n\n")


def test_what_an_agent_does_not_use_cannot_fail_its_episode() -> None:
    """Of engines whose weights have names, and which send a tool call's id before its function."""
    calls: list[dict[str, Any]] = [
        {"index": 0, "id": "call-1", "type": "function"},
        {"index": 0, "function": {"name": "count", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
    ]
    completion = StreamedCompletion()
    for call in calls:
        part = {"choices": [{"delta": {"tool_calls": [call]}}], "weight_version": "v2"}
        completion.feed(b"data: " + json.dumps(part) + b"\n\n")
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    completion.feed(stream({"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": usage}))
    (tool,) = completion.reply("c").tool_calls
    assert completion.done and (tool.id, tool.name, tool.arguments) == ("call-1", "count", "{}")
