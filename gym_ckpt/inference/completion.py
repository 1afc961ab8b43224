"""One finished plan of the embedded model: which ids it generates, and what any slice of them says to a client.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gym_ckpt.inference import tokens
from gym_ckpt.inference.template import call_ids
from gym_ckpt.inference.tokens import decode

FinishReason = Literal["stop", "tool_calls", "length"]


@dataclass(frozen=True)
class GeneratedCall:
    """A tool call that the model makes. `arguments`: JSON in ASCII, so that no slice of its ids cuts a character."""

    id: str
    name: str
    arguments: str

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return call_ids(self.name, self.arguments)

    @cached_property
    def head(self) -> int:
        """Number of ids before the arguments begin."""
        return self.ids.index(tokens.ARGUMENTS) + 1


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a slice adds to call number `index`: its id and name when `begins`, and a fragment of its arguments."""

    index: int
    begins: GeneratedCall | None
    arguments: str


@dataclass(frozen=True)
class Completion:
    """A turn of the assistant. `ended`: it came to its end marker, rather than to the limit of tokens."""

    prompt_ids: tuple[int, ...]
    text_ids: tuple[int, ...]
    calls: tuple[GeneratedCall, ...]
    ended: bool

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """All generated ids in order: text, tool calls, end marker."""
        ids = list(self.text_ids)
        for call in self.calls:
            ids.extend(call.ids)
        if self.ended:
            ids.append(tokens.END)
        return tuple(ids)

    @property
    def text(self) -> str:
        return decode(self.text_ids)

    @property
    def finish_reason(self) -> FinishReason:
        if not self.ended:
            return "length"
        return "tool_calls" if self.calls else "stop"

    def delta(self, start: int, end: int) -> tuple[str, tuple[CallDelta, ...]]:
        """What the generated ids `start`..`end`-1 add to the text and to the tool calls."""
        text = decode(self.text_ids[start:end])
        calls: list[CallDelta] = []
        first = len(self.text_ids)
        for index, call in enumerate(self.calls):
            body = first + call.head
            last = first + len(call.ids)
            begins = call if start < body <= end else None
            fragment = decode(call.ids[max(start, body) - first : max(min(end, last), first) - first])
            if begins is not None or fragment:
                calls.append(CallDelta(index, begins, fragment))
            first = last
        return text, tuple(calls)
