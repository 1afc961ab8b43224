"""Chat completions as a client sees them: whole answers and streams, made into one shape."""

from __future__ import annotations

from typing import Any

import msgspec

from gym_ckpt.core.agent_session import Call, Reply, ToolCall
from gym_ckpt.errors import PeerLost
from gym_ckpt.wire import json
from gym_ckpt.wire.digests import cumulative_hash
from gym_ckpt.wire.sse import DONE, SseParser


class MalformedCompletion(ValueError):
    """The model server's answer is no chat completion; the text says what is missing."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str | None = None
    index: int = 0


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: dict[str, Any] | None = None


def whole(body: bytes, call_id: str) -> Reply:
    """The reply in a JSON body. Raises `MalformedCompletion`."""
    assembled = _Assembly()
    assembled.add(_parse(body))
    return assembled.reply(call_id)


class StreamedCompletion:
    """Takes the chunks of an event stream; `reply` once `done`."""

    def __init__(self) -> None:
        self._parser = SseParser()
        self._assembly = _Assembly()
        self.done = False

    def feed(self, chunk: bytes) -> None:
        """Raises `MalformedCompletion`; `PeerLost` when the server broke the stream off and said so in it."""
        for data in self._parser.feed(chunk):
            if data == DONE:
                self.done = True
                continue
            part = _parse(data.encode())
            if part.error is not None:
                raise PeerLost(f"the model server broke its answer off: {part.error.get('message', 'no reason given')}")
            self._assembly.add(part)

    def reply(self, call_id: str) -> Reply:
        """Raises `MalformedCompletion` when something is missing."""
        return self._assembly.reply(call_id)


def _parse(body: bytes) -> _Completion:
    try:
        return msgspec.convert(json.loads(body), _Completion)
    except (ValueError, msgspec.ValidationError) as error:
        raise MalformedCompletion(f"not a chat completion: {error}") from None


class _Assembly:
    """What a whole answer holds at once and a stream piece by piece."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._tools: dict[int, list[str]] = {}
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self._prompt_ids: list[int] | None = None
        self._ids: list[int] | None = None

    def add(self, part: _Completion) -> None:
        self._usage = part.usage or self._usage
        self._prompt_ids = part.prompt_token_ids or self._prompt_ids
        for choice in part.choices[:1]:
            self._finish = choice.finish_reason or self._finish
            if choice.token_ids is not None:
                self._ids = [*(self._ids or ()), *choice.token_ids]
            message = choice.message or choice.delta
            if message is not None:
                self._add_message(message, numbered=choice.delta is not None)

    def _add_message(self, message: _Message, *, numbered: bool) -> None:
        self._content.append(message.content or "")
        for position, call in enumerate(message.tool_calls or ()):
            tool = self._tools.setdefault(call.index if numbered else position, ["", "", ""])
            tool[0] += call.id or ""
            tool[1] += call.function.name or ""
            tool[2] += call.function.arguments or ""

    def reply(self, call_id: str) -> Reply:
        if self._finish is None or self._usage is None:
            raise MalformedCompletion("a chat completion without finish_reason or usage")
        tools = tuple(ToolCall(*parts) for _, parts in sorted(self._tools.items()))
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if tools:
            message["tool_calls"] = [
                {"id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": tool.arguments}}
                for tool in tools
            ]
        known = self._prompt_ids is not None and self._ids is not None
        tokens_hash = cumulative_hash([*(self._prompt_ids or ()), *(self._ids or ())]) if known else None
        call = Call(call_id, self._usage.prompt_tokens, self._usage.completion_tokens, tokens_hash)
        return Reply(message, tools, self._finish, call)
