"""Calls a worker as a bare ASGI application, with a client that may leave, and a conversation loop over the model."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import anyio

from gym_ckpt.gyms import InventoryGym
from gym_ckpt.inference.completion import Completion
from gym_ckpt.inference.language_model import plan
from gym_ckpt.inference.openai import messages_of, tools_of
from gym_ckpt.inference.worker import EmbeddedWorker
from gym_ckpt.ports import Ports
from gym_ckpt.wire.sse import SseParser

TOOLS = list(InventoryGym.tools)


@dataclass
class Trace:
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


def worker(trace: Trace, *, tokens_per_s: float = 1e6, step_tokens: int = 8, model_seed: int = 7) -> EmbeddedWorker:
    ports = SimpleNamespace(
        clock=SimpleNamespace(wall=lambda: 1234.5),
        entropy=SimpleNamespace(token=lambda nbytes: "ab" * nbytes),
        tracer=trace,
    )
    return EmbeddedWorker(
        cast(Ports, ports),
        tokens_per_s=tokens_per_s,
        step_tokens=step_tokens,
        model_seed=model_seed,
        model_name="tiny",
    )


@dataclass
class Exchange:
    """One request and what came of it. Set `left` to close the client's connection."""

    body: bytes
    method: str = "POST"
    path: str = "/v1/chat/completions"
    status: int = 0
    content_type: str = ""
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False
    left: anyio.Event = field(default_factory=anyio.Event)
    first_chunk: anyio.Event = field(default_factory=anyio.Event)
    _sent_body: bool = False

    async def run(self, served: EmbeddedWorker) -> Exchange:
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "headers": [(b"x-ng-model-call-id", b"call-1")],
        }
        await served.app(scope, self._receive, self._send)
        return self

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._sent_body:
            self._sent_body = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.content_type = dict(message["headers"])[b"content-type"].decode()
        else:
            assert not self.complete and self.status, "a body outside of a response"
            self.chunks.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            self.first_chunk.set()

    def json(self) -> Any:
        assert self.complete, "the response has no end"
        return json.loads(b"".join(self.chunks))

    def events(self) -> list[str]:
        parser = SseParser()
        return [data for chunk in self.chunks for data in parser.feed(chunk)]


def request(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    return json.dumps({"model": "any", "temperature": 1.0, "messages": messages, **fields}).encode()


async def ask(served: EmbeddedWorker, messages: list[dict[str, Any]], **fields: Any) -> Exchange:
    return await Exchange(request(messages, **fields)).run(served)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Keep the stock."}, {"role": "user", "content": text}]


def spoken(completion: Completion) -> dict[str, Any]:
    """The completion as the message that an agent puts into its conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.text}
    if completion.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in completion.calls
        ]
    return message


def conversation(text: str, seed: int = 7) -> list[Completion]:
    """All turns of a conversation whose tools answer with the number of the call."""
    messages, turns = user(text), list[Completion]()
    while not turns or turns[-1].calls:
        turns.append(plan(messages_of(messages), tools_of(TOOLS), seed=seed))
        messages.append(spoken(turns[-1]))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": f"result {index} é"}
            for index, call in enumerate(turns[-1].calls)
        ]
    return turns
