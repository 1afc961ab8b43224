"""An agent session as a machine: what it needs next, and what a reply makes of it.

A session alternates between a model call and the tool calls that the model asked for, one at a time. Every state is a
boundary: the whole of what the session needs to go on, with nothing under way. A reply takes it to the next one, so a
call whose reply is lost leaves the session where it was (INV-15, INV-67).

Pure: no clock, no network, no ids of its own. States are never changed in place.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One delivered model call. Token ids stay out of checkpoints (INV-52): `tokens_hash` binds prompt and answer."""

    model_call_id: str
    prompt_tokens: int
    completion_tokens: int
    tokens_hash: str | None


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool call that the model asked for; `arguments` as the model wrote them."""

    id: str
    name: str
    arguments: str


class Reply(msgspec.Struct, frozen=True):
    """One answer of the model. `message` as it goes into the conversation."""

    message: dict[str, Any]
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    call: Call


class SessionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A boundary. `pending`: tool calls still to do; `revision`: of the resources session at this moment."""

    messages: tuple[dict[str, Any], ...]
    pending: tuple[ToolCall, ...] = ()
    calls: tuple[Call, ...] = ()
    tool_steps: int = 0
    revision: int = 0
    finish_reason: str | None = None
    """Why the session is over, when it is: the model's reason, or `max_steps`."""


def flaw(state: SessionState) -> str | None:
    """Why this is no boundary that a session can be at; None when it is one. For state that comes from a file."""
    if state.finish_reason is not None and state.pending:
        return "it is over and has tool calls to do"
    if min(state.tool_steps, state.revision, 0) < 0:
        return f"tool_steps {state.tool_steps} and revision {state.revision} count from 0"
    if any(min(call.prompt_tokens, call.completion_tokens) < 0 for call in state.calls):
        return "a model call has less than no tokens"
    if len({call.model_call_id for call in state.calls}) < len(state.calls):
        return "a model call comes twice"
    return None


def next_tool(state: SessionState) -> ToolCall | None:
    """The tool call to do next; None when a model call comes next or the session is over."""
    return state.pending[0] if state.pending else None


def after_model(state: SessionState, reply: Reply, max_steps: int) -> SessionState:
    """The model has answered. At the step limit the session ends, with the tool calls asked for left undone."""
    calls = (*state.calls, reply.call)
    over: str | None = None
    if not reply.tool_calls:
        over = reply.finish_reason
    elif len(calls) >= max_steps:
        over = "max_steps"
    return msgspec.structs.replace(
        state,
        messages=(*state.messages, reply.message),
        calls=calls,
        pending=() if over else reply.tool_calls,
        finish_reason=over,
    )


def after_tool(state: SessionState, content: str, revision: int) -> SessionState:
    """The first pending tool call has returned; `content` is what the model will read."""
    done, *rest = state.pending
    message = {"role": "tool", "tool_call_id": done.id, "content": content}
    return msgspec.structs.replace(
        state,
        messages=(*state.messages, message),
        pending=tuple(rest),
        tool_steps=state.tool_steps + 1,
        revision=max(revision, state.revision),
    )
