"""The embedded inference worker: OpenAI's chat completions in front of the deterministic model, at a set speed.

Theory of operation: what a call will say is known as soon as its request is here; the worker only lets time pass. While
it waits for a point in time it waits for the client's disconnect, with that point as the deadline: one task per call,
and a client that goes away ends its generation at once. Targets are absolute (start + tokens / speed): nothing drifts.

Emits keep-alives that INV-13's rule recognises. Knows no episode, gate or checkpoint: it is no participant. Its calls
are untagged; a model call's id, for the trace, comes in a header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import anyio

from gym_ckpt.inference import replies
from gym_ckpt.inference.completion import Completion
from gym_ckpt.inference.language_model import plan
from gym_ckpt.inference.openai import ChatRequest
from gym_ckpt.limits import KEEP_ALIVE_S
from gym_ckpt.ports import ASGIApp, Ports, Receive, Send
from gym_ckpt.runtime.asgi import Answer, Request, Route, Router, answer, respond
from gym_ckpt.wire import sse
from gym_ckpt.wire.messages import CALL_ID

_STREAM_HEADERS: Final = ((b"content-type", sse.CONTENT_TYPE.encode()), (b"cache-control", b"no-cache"))


class _Left(Exception):
    """The client closed its connection."""


@dataclass(slots=True)
class _Call:
    """One generation. `started`: seconds of anyio's clock."""

    request: ChatRequest
    completion: Completion
    head: replies.Head
    call_id: str | None
    started: float


class EmbeddedWorker:
    """Serves `app`; each object is one worker's process.

    `tokens_per_s`: speed of each generation, however many there are. `step_tokens`: tokens per chunk of a stream.
    """

    def __init__(
        self, ports: Ports, *, tokens_per_s: float, step_tokens: int, model_seed: int, model_name: str
    ) -> None:
        assert tokens_per_s > 0 and step_tokens >= 1, f"no progress: {tokens_per_s} tokens/s, {step_tokens} a step"
        self._ports = ports
        self._tokens_per_s = tokens_per_s
        self._step_tokens = step_tokens
        self._seed = model_seed
        self._model = model_name
        self._active = 0
        self._begun = 0
        self.app: ASGIApp = Router(
            (
                Route("POST", "/v1/chat/completions", stream=self._chat),
                Route("GET", "/v1/models", self._models),
                Route("GET", "/v1/models/{id*}", self._one_model),
                Route("GET", "/health", self._health),
            )
        )

    async def _models(self, _: Request) -> Answer:
        return answer({"object": "list", "data": [self._described()]})

    async def _one_model(self, request: Request) -> Answer:
        name = request.params["id"]
        if name == self._model:
            return answer(self._described())
        said = {"message": f"there is no model {name!r:.100}", "type": "invalid_request_error"}
        return answer({"error": said | {"param": "model", "code": "model_not_found"}}, 404)

    def _described(self) -> dict[str, Any]:
        return {"id": self._model, "object": "model", "created": 0, "owned_by": "gym_ckpt"}

    async def _health(self, _: Request) -> Answer:
        """`active`: generations in progress; `calls`: generations begun since this worker was started."""
        return answer({"status": "ok", "active": self._active, "calls": self._begun})

    async def _chat(self, request: Request, send: Send) -> None:
        """Answer one call. Raises `InvalidRequest` before anything was sent."""
        call = self._begin(request, await request.typed(ChatRequest))
        self._active += 1
        self._begun += 1
        self._emit("started", call, prompt_tokens=len(call.completion.prompt_ids), stream=bool(call.request.stream))
        try:
            await (self._stream if call.request.stream else self._whole)(call, request.receive, send)
        except _Left:
            self._emit("aborted", call, tokens=self._generated(call), reason="client left")
        except anyio.get_cancelled_exc_class():
            self._emit("aborted", call, tokens=self._generated(call), reason="cancelled")
            raise
        else:
            self._emit("finished", call, tokens=len(call.completion.ids))
        finally:
            self._active -= 1

    def _begin(self, request: Request, body: ChatRequest) -> _Call:
        callable_tools, must_call = body.offered()
        completion = plan(
            body.messages,
            body.tools or (),
            seed=self._seed,
            callable_tools=callable_tools,
            must_call=must_call,
            max_tokens=body.token_budget,
        )
        head = replies.Head(f"chatcmpl-{self._ports.entropy.token(12)}", int(self._ports.clock.wall()), self._model)
        return _Call(body, completion, head, request.header(CALL_ID), anyio.current_time())

    async def _whole(self, call: _Call, receive: Receive, send: Send) -> None:
        await _wait(receive, self._when(call, len(call.completion.ids)))
        await respond(send, Answer(replies.whole(call.head, call.completion, call.request)))

    async def _stream(self, call: _Call, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)})
        last_sent = call.started
        total = len(call.completion.ids)
        for start in range(0, total, self._step_tokens):
            end = min(start + self._step_tokens, total)
            due = self._when(call, end)
            while last_sent + KEEP_ALIVE_S < due:
                await _wait(receive, last_sent + KEEP_ALIVE_S)
                await send({"type": "http.response.body", "body": sse.KEEP_ALIVE, "more_body": True})
                last_sent += KEEP_ALIVE_S
            await _wait(receive, due)
            chunk = replies.chunk(call.head, call.completion, call.request, start, end)
            await send({"type": "http.response.body", "body": chunk, "more_body": end < total})
            last_sent = due

    def _when(self, call: _Call, tokens: int) -> float:
        return call.started + tokens / self._tokens_per_s

    def _generated(self, call: _Call) -> int:
        """Tokens that exist by now."""
        by_now = int((anyio.current_time() - call.started) * self._tokens_per_s)
        return min(by_now, len(call.completion.ids))

    def _emit(self, event: str, call: _Call, **fields: Any) -> None:
        self._ports.tracer.emit(f"inference.{event}", call_id=call.call_id, response_id=call.head.id, **fields)


async def _wait(receive: Receive, until: float) -> None:
    """Let time pass to `until`. Raises `_Left` as soon as the client has gone.

    `receive` is cancelled at the deadline, which ASGI servers allow: nothing but a disconnect can still come.
    """
    with anyio.CancelScope(deadline=until):
        message = await receive()
        assert message["type"] == "http.disconnect", f"{message['type']} after the whole request"
        raise _Left
