"""The worker over bare ASGI, on both of anyio's back ends."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from gym_ckpt.inference import worker as worker_module
from gym_ckpt.inference.completion import Completion
from gym_ckpt.inference.language_model import plan
from gym_ckpt.inference.openai import messages_of, tools_of
from gym_ckpt.inference.tokens import decode
from gym_ckpt.wire.sse import KEEP_ALIVE, StartDetector
from tests.unit.inference.driver import TOOLS, Exchange, Trace, ask, request, user, worker

CALLING = user("[[turns=2 tokens=37 calls=2]]")
FINAL = user("[[turns=0 tokens=37]]")


def expected(messages: list[dict[str, Any]], **options: Any) -> Completion:
    return plan(messages_of(messages), tools_of(TOOLS), seed=7, **options)


def assembled(exchange: Exchange) -> dict[str, Any]:
    """A stream's chunks put together into what the whole response would have been."""
    *bodies, done = exchange.events()
    assert done == "[DONE]" and exchange.complete
    message: dict[str, Any] = {}
    whole: dict[str, Any] = {"message": message, "finish_reason": None}
    calls: list[dict[str, Any]] = []
    for body in map(json.loads, bodies):
        whole.update({key: body[key] for key in ("id", "created", "model", "usage", "prompt_token_ids") if key in body})
        for choice in body["choices"]:
            assert whole["finish_reason"] is None, "a chunk after the finish reason"
            delta = choice["delta"]
            if "role" in delta:
                message.update(role=delta["role"], content="")
            message["content"] += delta.get("content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            whole["finish_reason"] = choice["finish_reason"]
            whole.setdefault("token_ids", []).extend(choice.get("token_ids", ()))
    return whole | {"message": message | ({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("messages", [CALLING, FINAL])
async def test_a_whole_response_says_what_the_model_planned(messages: list[dict[str, Any]]) -> None:
    exchange = await ask(worker(Trace()), messages, tools=TOOLS, return_token_ids=True)
    turn, body = expected(messages), exchange.json()
    assert (exchange.status, exchange.content_type) == (200, "application/json")
    (choice,) = body["choices"]
    assert choice["message"]["content"] == turn.text and choice["finish_reason"] == turn.finish_reason
    assert tuple(choice["token_ids"]) == turn.ids and tuple(body["prompt_token_ids"]) == turn.prompt_ids
    calls = choice["message"].get("tool_calls", [])
    made = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    assert made == [(call.id, call.name, call.arguments) for call in turn.calls]
    count = len(turn.prompt_ids), len(turn.ids)
    assert tuple(body["usage"].values()) == (*count, sum(count))


@pytest.mark.parametrize("messages", [CALLING, FINAL])
@pytest.mark.parametrize("step", [1, 8, 1000])
@pytest.mark.parametrize("limit", [None, 20, 45])
async def test_a_stream_adds_up_to_the_whole_response(
    messages: list[dict[str, Any]], step: int, limit: int | None
) -> None:
    fields = {"tools": TOOLS, "return_token_ids": True, "max_tokens": limit}
    whole = (await ask(worker(Trace()), messages, **fields)).json()
    streamed = await ask(
        worker(Trace(), step_tokens=step), messages, stream=True, stream_options={"include_usage": True}, **fields
    )
    assert streamed.content_type.startswith("text/event-stream")
    (choice,) = whole["choices"]
    assert assembled(streamed) == {
        "id": whole["id"], "created": whole["created"], "model": "tiny", "usage": whole["usage"],
        "prompt_token_ids": whole["prompt_token_ids"], "token_ids": choice["token_ids"],
        "finish_reason": choice["finish_reason"], "message": choice["message"],
    }  # fmt: skip
    assert len(streamed.chunks) == -(-len(choice["token_ids"]) // step)


async def test_token_ids_and_usage_come_only_when_asked_for() -> None:
    whole = (await ask(worker(Trace()), FINAL)).json()
    streamed = await ask(worker(Trace()), FINAL, stream=True)
    assert "prompt_token_ids" not in whole and "token_ids" not in whole["choices"][0]
    assert not any("token_ids" in data or "usage" in data for data in streamed.events())


async def test_a_generation_takes_the_time_that_its_tokens_need() -> None:
    for stream in (False, True):
        before = anyio.current_time()
        await ask(worker(Trace(), tokens_per_s=380), FINAL, stream=stream)
        taken = anyio.current_time() - before
        assert 0.1 <= taken < 5, "38 tokens, the end marker among them, at 380 a second"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_generation_at_once(stream: bool) -> None:
    trace = Trace()
    served = worker(trace, tokens_per_s=100)
    exchange = Exchange(request(user("[[turns=0 tokens=100000]]"), stream=stream))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(exchange.run, served)
            if stream:
                await exchange.first_chunk.wait()
            else:
                await anyio.sleep(0.05)
            assert not trace.named("inference.aborted")
            exchange.left.set()
    (aborted,) = trace.named("inference.aborted")
    assert aborted["call_id"] == "call-1" and aborted["reason"] == "client left"
    assert (1 if stream else 0) <= aborted["tokens"] < 500
    assert not exchange.complete and not trace.named("inference.finished")
    assert await active(served) == 0


async def test_cancellation_ends_a_generation_and_says_so() -> None:
    trace = Trace()
    served = worker(trace, tokens_per_s=100)
    with anyio.move_on_after(0.05) as scope:
        await ask(served, user("[[turns=0 tokens=100000]]"))
    assert scope.cancelled_caught
    assert [fields["reason"] for fields in trace.named("inference.aborted")] == ["cancelled"]
    assert await active(served) == 0


async def active(served: Any) -> int:
    count: int = (await Exchange(b"", "GET", "/health").run(served)).json()["active"]
    return count


async def test_started_and_finished_are_traced() -> None:
    trace = Trace()
    await ask(worker(trace), FINAL)
    turn = plan(messages_of(FINAL), seed=7)
    (started,), (finished,) = trace.named("inference.started"), trace.named("inference.finished")
    assert started["call_id"] == finished["call_id"] == "call-1"
    assert (started["prompt_tokens"], finished["tokens"]) == (len(turn.prompt_ids), len(turn.ids))


def test_silence_is_filled_with_keep_alives_that_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-13: until the first step is due only headers and keep-alives were sent. In virtual time: they are counted."""
    monkeypatch.setattr(worker_module, "KEEP_ALIVE_S", 0.025)
    messages = user("[[turns=0 tokens=15]]")

    async def asked() -> Exchange:
        return await ask(worker(Trace(), tokens_per_s=100), messages, stream=True)

    exchange = trio.run(asked, clock=trio.testing.MockClock(autojump_threshold=0))
    kept = exchange.chunks.count(KEEP_ALIVE)
    assert kept == 3 + 3, "each of two steps of 80 ms has three pauses of 25 ms before its end"
    detector = StartDetector()
    assert [detector.starts(chunk) for chunk in exchange.chunks] == [False] * 3 + [True] * 5
    assert assembled(exchange)["message"]["content"] == plan(messages_of(messages), seed=7).text


async def test_many_generations_run_beside_each_other() -> None:
    served = worker(Trace(), tokens_per_s=40)
    before = anyio.current_time()
    async with anyio.create_task_group() as group:
        for index in range(20):
            group.start_soon(ask, served, user(f"{index} [[turns=0 tokens=19]]"))
    assert anyio.current_time() - before < 5, "one takes half a second"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "ChatRequest"),
        (b"[]", "ChatRequest"),
        (b"{}", "messages"),
        (request([]), "messages"),
        (request([{"role": "poet", "content": "x"}]), "messages[0].role"),
        (request([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
        (request(FINAL, max_tokens=0), "max_tokens"),
        (request(FINAL, max_tokens="9"), "max_tokens"),
        (request(FINAL, n=2), "n"),
        (request(FINAL, stream="yes"), "stream"),
        (request(FINAL, tools=[{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
        (request(FINAL, tools=TOOLS, tool_choice={"function": {"name": "nothing"}}), "tool_choice.function.name"),
        (request(FINAL, tool_choice="required"), "tool_choice"),
        (request(CALLING, tools=[{"function": {"name": "t", "parameters": {"type": "x"}}}]), "tools[0].function"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "surrogate"),
    ],
)
async def test_a_bad_body_is_refused_by_the_name_of_its_field(body: bytes, named: str) -> None:
    trace = Trace()
    exchange = await Exchange(body).run(worker(trace))
    error = exchange.json()["error"]
    assert (exchange.status, error["code"]) == (400, "invalid_request")
    assert named in error["detail"] and not trace.events


async def test_tool_choice() -> None:
    async def finish(messages: list[dict[str, Any]], **fields: Any) -> tuple[str, list[str]]:
        (choice,) = (await ask(worker(Trace()), messages, tools=TOOLS, **fields)).json()["choices"]
        return choice["finish_reason"], [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]

    assert await finish(CALLING, tool_choice="none") == ("stop", [])
    assert (await finish(FINAL, tool_choice="required"))[0] == "tool_calls"
    named = {"type": "function", "function": {"name": "count_items"}}
    assert await finish(FINAL, tool_choice=named) == ("tool_calls", ["count_items"])


async def test_models_health_and_the_unknown() -> None:
    served = worker(Trace())
    models = await Exchange(b"", "GET", "/v1/models").run(served)
    described = {"id": "tiny", "object": "model", "created": 0, "owned_by": "gym_ckpt"}
    assert models.json() == {"object": "list", "data": [described]}
    assert (await Exchange(b"", "GET", "/v1/models/tiny").run(served)).json() == described
    other = await Exchange(b"", "GET", "/v1/models/org/other").run(served)
    assert (other.status, other.json()["error"]["code"]) == (404, "model_not_found")
    await ask(served, FINAL)
    health = await Exchange(b"", "GET", "/health").run(served)
    assert health.json() == {"status": "ok", "active": 0, "calls": 1}
    assert (await Exchange(b"", "GET", "/v1/elsewhere").run(served)).status == 404


async def test_content_in_parts_is_the_same_prompt() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]}]
    whole = [{"role": "user", "content": "a bc"}]
    bodies = [(await ask(worker(Trace()), messages, return_token_ids=True)).json() for messages in (parts, whole)]
    assert bodies[0] == bodies[1]
    assert "a bc" in decode(bodies[0]["prompt_token_ids"])
