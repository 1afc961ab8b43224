"""Whatever an engine answers, it is captured or there is a reason why not, and an agent takes it or says why not."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ckpt.core.agent_session import Reply
from gym_ckpt.errors import NotLossless, PeerLost
from gym_ckpt.participants.capture import CHAT, TEXT, NotCaptured, asking, capture, read_tokens
from gym_ckpt.participants.completions import MalformedCompletion, StreamedCompletion, whole
from gym_ckpt.storage.tokens import encode
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import InvalidStaging, staging_digest

T = TypeVar("T")
TOOL = {"index": 0, "id": "t", "type": "function", "function": {"name": "count", "arguments": "{}"}}
CHOICE = {
    "index": 0,
    "finish_reason": "stop",
    "token_ids": [5, 6],
    "logprobs": {"content": [{"token": "h", "logprob": -1.0}, {"token": "i", "logprob": -2.0}]},
}
SAID = {"role": "assistant", "content": "hi", "tool_calls": [TOOL]}
REST = {
    "id": "x",
    "prompt_token_ids": [1, 2],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    "weight_version": 3,
    "error": None,
}
ODD: st.SearchStrategy[Any] = st.sampled_from([
    None, True, 0, -1, 2**31, 2**32, 2**63, 2**70, -(2**70), 1.5, float("nan"), float("inf"), 1e300, "", "x", "\udcff",
    "\0", "x" * 2000, [], [None], [[]], {}, {"message": None}, {"message": {"a": [1]}}, [1, "2"], [True],
    {"content": None},
])  # fmt: skip


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands, in every depth."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, each in inside for path in paths(each, (*here, key)))]


def changed(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    if not path:
        return put
    if isinstance(value, dict):
        return {key: changed(each, path[1:], put) if key == path[0] else each for key, each in value.items()}
    return [changed(each, path[1:], put) if at == path[0] else each for at, each in enumerate(value)]


@st.composite
def odd(draw: st.DrawFn, good: Any) -> Any:
    """`good`, but for up to three places."""
    for _ in range(draw(st.integers(0, 3))):
        good = changed(good, draw(st.sampled_from(paths(good))), draw(ODD))
    return good


def answers(part: str) -> st.SearchStrategy[Any]:
    return odd({"choices": [CHOICE | {part: SAID}], **REST})


def ran(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def captured(answer: bytes, *, streamed: bool) -> bool:
    """Whether its tokens are, as far as a file. Raises nothing that a gate would not expect."""
    asked = asking(CHAT, b'{"messages": [{"role": "user", "content": "hello"}]}')
    try:
        tokens = ran(read_tokens(answer, streamed=streamed))
        call = capture(EpisodeId("r"), "c0", 1.0, asked, tokens, []).call
        staging_digest(call)
        encode(call)
    except (NotCaptured, InvalidStaging, NotLossless):
        return False
    return True


def sent(value: Any) -> bytes:
    """As an engine writes it, which may be less careful than we are."""
    import json as plain

    return plain.dumps(value).encode()


@given(answers("message"))
@settings(max_examples=300)
def test_a_whole_answer(answer: Any) -> None:
    body = sent(answer)
    captured(body, streamed=False)
    try:
        assert isinstance(whole(body, "c0"), Reply)
    except MalformedCompletion:
        pass


@given(answers("delta"), st.booleans())
@settings(max_examples=300)
def test_a_streamed_answer(answer: Any, ended: bool) -> None:
    body = b"data: " + sent(answer) + b"\n\n" + (b"data: [DONE]\n\n" if ended else b"")
    assert not captured(body, streamed=True) or ended
    completion = StreamedCompletion()
    try:
        completion.feed(body)
        assert completion.done is ended
        assert isinstance(completion.reply("c0"), Reply)
    except (MalformedCompletion, PeerLost):
        pass


@given(st.binary(max_size=80), st.booleans())
def test_bytes_that_are_no_answer(body: bytes, streamed: bool) -> None:
    assert not captured(body, streamed=streamed)


ASKS = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": None, "tool_calls": [TOOL]},
        {"role": "tool", "tool_call_id": "t", "content": "4"},
    ],
    "prompt": [1, 2],
    "logprobs": 2,
    "stream": True,
}


@given(odd(ASKS), st.sampled_from([CHAT, TEXT, "/v1/responses"]))
def test_a_request_is_passed_on_whatever_it_is_and_says_where_its_call_stands_or_why_not(value: Any, path: str) -> None:
    body = sent(value)
    asked = asking(path, body)
    if isinstance(asked.asked, NotCaptured):
        assert str(asked.asked)
    else:
        assert len(asked.asked.request) == 64
    if asked.body != body:
        asks, passed_on = json.loads(body), json.loads(asked.body)
        wanted = {"return_token_ids": True, "logprobs": True if path == CHAT else asks.get("logprobs") or 0}
        assert json.dumps(passed_on) == json.dumps(asks | wanted), "NaN is not itself, but its text is"


def test_the_answer_that_is_made_odd_is_a_good_one() -> None:
    for part, streamed in (("message", False), ("delta", True)):
        body = json.dumps({"choices": [CHOICE | {part: SAID}], **REST})
        assert captured(b"data: " + body + b"\n\ndata: [DONE]\n\n" if streamed else body, streamed=streamed)
