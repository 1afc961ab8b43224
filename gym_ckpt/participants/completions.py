"""Chat completions as a client sees them: whole answers and streams, made into one shape."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from gym_ckpt.core.agent_session import Call, Reply, ToolCall
from gym_ckpt.errors import PeerLost
from gym_ckpt.limits import REFUSAL_SAID_BYTES
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import InvalidStaging, cumulative_hash
from gym_ckpt.wire.sse import DONE, SseParser


class MalformedCompletion(ValueError):
    """The model server's answer is no chat completion; the text says what is missing."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None
    id: str | None = None
    index: int = 0


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _TokenLogprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    """Of chat completions `content`, of text completions `token_logprobs`."""

    content: list[_TokenLogprob] | None = None
    token_logprobs: list[float] | None = None

    def values(self) -> list[float]:
        return [each.logprob for each in self.content or ()] + (self.token_logprobs or [])


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    index: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None
    id: str | None = None
    weight_version: Any = None


class Tokens(msgspec.Struct, frozen=True):
    """What an answer says of its tokens, with vLLM's names for them. `response_id`: the inference worker's.

    `weight_version`: of the weights that generated, 0 where the worker does not say.
    """

    message: dict[str, Any]
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    response_id: str | None
    weight_version: int


def whole(body: bytes, call_id: str) -> Reply:
    """The reply in a JSON body. Raises `MalformedCompletion`."""
    assembled = _Assembly()
    assembled.add(_parse(body))
    return assembled.reply(call_id)


def tokens_of(body: bytes) -> Tokens:
    """The tokens in a JSON body. Raises `MalformedCompletion` when it does not say all of them."""
    assembled = _Assembly()
    assembled.add(_parse(body))
    return assembled.tokens()


def tokens_of_stream(body: bytes, piece: int) -> Generator[None, None, Tokens]:
    """The tokens of a whole event stream, read `piece` bytes between two steps. Raises as `tokens_of`."""
    stream = StreamedCompletion()
    try:
        for start in range(0, len(body), piece):
            if start:
                yield
            stream.feed(body[start : start + piece])
    except PeerLost as error:
        raise MalformedCompletion(str(error)) from None
    if not stream.done:
        raise MalformedCompletion("the stream ended before its answer was whole")
    return stream.tokens()


class StreamedCompletion:
    """Takes the chunks of an event stream; `reply` once `done`."""

    def __init__(self) -> None:
        self._parser = SseParser()
        self._assembly = _Assembly()
        self.done = False

    def feed(self, chunk: bytes) -> None:
        """Raises `MalformedCompletion`; `PeerLost` when the server broke the stream off and said so in it."""
        try:
            events = self._parser.feed(chunk)
        except ValueError as error:
            raise MalformedCompletion(f"not an event stream: {error}") from None
        for data in events:
            if data == DONE:
                self.done = True
                continue
            part = _parse(data.encode())
            if part.error is not None:
                raise PeerLost(f"the model server broke its answer off: {_said(part.error)}")
            self._assembly.add(part)

    def reply(self, call_id: str) -> Reply:
        """Raises `MalformedCompletion` when something is missing."""
        return self._assembly.reply(call_id)

    def tokens(self) -> Tokens:
        """Raises `MalformedCompletion` when something is missing."""
        return self._assembly.tokens()


def _said(error: Any) -> str:
    """Of an error in a stream, what is for people; engines send an object, or text."""
    return str(error.get("message", "no reason given") if isinstance(error, dict) else error)[:REFUSAL_SAID_BYTES]


def _parse(body: bytes) -> _Completion:
    try:
        return msgspec.convert(json.loads(body), _Completion)
    except (ValueError, msgspec.ValidationError) as error:
        raise MalformedCompletion(f"not a chat completion: {error}") from None


class _Assembly:
    """What a whole answer holds at once and a stream piece by piece."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._tools: dict[int, tuple[list[str], list[str], list[str]]] = {}
        """Id, name and arguments, each in the pieces that came: text that grows piece by piece is copied each time."""
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self._prompt_ids: list[int] | None = None
        self._ids: list[int] | None = None
        self._logprobs: list[float] = []
        self._id: str | None = None
        self._weights: Any = None
        self._several = False

    def add(self, part: _Completion) -> None:
        self._usage = part.usage or self._usage
        self._prompt_ids = part.prompt_token_ids or self._prompt_ids
        self._id = part.id or self._id
        self._weights = self._weights if part.weight_version is None else part.weight_version
        self._several = self._several or any(choice.index for choice in part.choices)
        for choice in part.choices[:1]:
            self._finish = choice.finish_reason or self._finish
            self._prompt_ids = choice.prompt_token_ids or self._prompt_ids
            if choice.token_ids is not None:
                self._ids = [] if self._ids is None else self._ids
                self._ids += choice.token_ids  # in place: a copy for each token of a long answer takes minutes
            if choice.logprobs is not None:
                self._logprobs += choice.logprobs.values()
            message = choice.message or choice.delta
            if message is not None:
                self._add_message(message, numbered=choice.delta is not None)
            self._content.append(choice.text or "")

    def _add_message(self, message: _Message, *, numbered: bool) -> None:
        self._content.append(message.content or "")
        for position, call in enumerate(message.tool_calls or ()):
            ids, names, arguments = self._tools.setdefault(call.index if numbered else position, ([], [], []))
            ids.append(call.id or "")
            if call.function is not None:
                names.append(call.function.name or "")
                arguments.append(call.function.arguments or "")

    def reply(self, call_id: str) -> Reply:
        if self._finish is None or self._usage is None:
            raise MalformedCompletion("a chat completion without finish_reason or usage")
        known = self._prompt_ids is not None and self._ids is not None
        try:
            tokens_hash = cumulative_hash([*(self._prompt_ids or ()), *(self._ids or ())]) if known else None
        except InvalidStaging as error:
            raise MalformedCompletion(f"token ids that are none: {error}") from None
        call = Call(call_id, self._usage.prompt_tokens, self._usage.completion_tokens, tokens_hash)
        return Reply(self._message(), self._tool_calls(), self._finish, call)

    def tokens(self) -> Tokens:
        if self._several:
            raise MalformedCompletion("an answer of several choices")
        if self._finish is None:
            raise MalformedCompletion("an answer without finish_reason")
        if self._prompt_ids is None or self._ids is None:
            raise MalformedCompletion("an answer without prompt_token_ids or token_ids")
        if type(self._weights or 0) is not int:
            raise MalformedCompletion(f"a weight_version that is no whole number: {self._weights!r:.80}")
        if len(self._logprobs) != len(self._ids):
            raise MalformedCompletion(f"{len(self._logprobs)} log-probabilities of {len(self._ids)} tokens")
        return Tokens(
            message=self._message(),
            prompt_ids=tuple(self._prompt_ids),
            token_ids=tuple(self._ids),
            log_probabilities=tuple(self._logprobs),
            response_id=self._id,
            weight_version=self._weights or 0,
        )

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(*("".join(pieces) for pieces in tool)) for _, tool in sorted(self._tools.items()))

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        tools = self._tool_calls()
        if tools:
            message["tool_calls"] = [
                {"id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": tool.arguments}}
                for tool in tools
            ]
        return message
