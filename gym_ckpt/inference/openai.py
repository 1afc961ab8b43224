"""The part of OpenAI's chat completions that the embedded worker reads.

Real clients send many fields that mean nothing here, so unknown ones pass; those that are used are checked strictly.
Everything is frozen and tuples are used for lists, so that a message can be a cache's key.

Pure: knows no tokens and no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gym_ckpt.errors import InvalidRequest

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]


class TextPart(msgspec.Struct, frozen=True):
    type: Literal["text"]
    text: str


class FunctionCall(msgspec.Struct, frozen=True):
    """`arguments`: JSON as text, kept as it is."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[TextPart, ...] | None = None
    tool_calls: tuple[ToolCall, ...] | None = None

    @property
    def text(self) -> str:
        """The content as one text; empty when there is none."""
        if isinstance(self.content, tuple):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Function(msgspec.Struct, frozen=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class NamedChoice(msgspec.Struct, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`return_token_ids` is vLLM's extension. `max_tokens` limits generated tokens; the newer name wins over it."""

    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    tools: tuple[Tool, ...] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    logprobs: bool | None = None

    @property
    def token_budget(self) -> int | None:
        """The most tokens that may be generated; None without a limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def offered(self) -> tuple[tuple[Tool, ...], bool]:
        """The tools that the answer may call, and whether it must call one.

        Raises:
            InvalidRequest: `tool_choice` asks for a tool that `tools` does not hold.
        """
        tools = self.tools or ()
        if self.tool_choice is None or self.tool_choice == "auto":
            return tools, False
        if self.tool_choice == "none":
            return (), False
        if isinstance(self.tool_choice, NamedChoice):
            wanted = self.tool_choice.function.name
            tools = tuple(tool for tool in tools if tool.function.name == wanted)
            if not tools:
                raise InvalidRequest(f"tool_choice.function.name: {wanted!r} is not among the tools")
        elif not tools:
            raise InvalidRequest("tool_choice: 'required' without tools")
        return tools, True


def messages_of(messages: Iterable[dict[str, Any]]) -> tuple[Message, ...]:
    """A conversation in plain data, typed. Raises `InvalidRequest` naming the field."""
    try:
        return msgspec.convert(list(messages), tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"messages: {error}") from None


def tools_of(tools: Iterable[dict[str, Any]]) -> tuple[Tool, ...]:
    """Tool definitions in plain data, typed. Raises `InvalidRequest` naming the field."""
    try:
        return msgspec.convert(list(tools), tuple[Tool, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"tools: {error}") from None
