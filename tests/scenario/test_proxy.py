"""The policy-model server as a proxy in front of any OpenAI-compatible engines, situation by situation."""

from __future__ import annotations

import anyio
import pytest

from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.sse import KEEP_ALIVE
from tests.scenario.gate import ANSWER, CHAT, LAST, RESPONSES, TEXT, Stage, Worker, play, settle

R, NEXT = EpisodeId("r"), EpisodeId("r", 1)
PART = b'data: {"choices": []}\n\n'


def answer_all(stage: Stage) -> None:
    for worker in stage.workers:
        worker.say(ANSWER)
        worker.end()


def calls(stage: Stage) -> list[int]:
    return [worker.calls for worker in stage.workers]


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, CHAT + "?api-version=2"])
@pytest.mark.parametrize("tagged", [True, False])
def test_every_route_reaches_the_engine_as_it_was_asked_and_comes_back_as_it_was_said(path: str, tagged: bool) -> None:
    async def story(stage: Stage) -> None:
        answer_all(stage)
        asks = b'{"seed": 18446744073709551617, "temperature": NaN, "prompt": "\xc3\xa9"}'
        credentials = (("authorization", "Bearer engine"), ("api-key", "k"))
        sends = (*credentials, ("content-type", "application/json; charset=utf-8"))
        caller = await stage.call(episode=R if tagged else None, path=path, asks=asks, sends=sends)
        ((seen, headers, body),) = stage.worker.seen
        assert (seen, body) == (path, asks)
        assert [headers[name] for name, _ in sends] == [value for _, value in sends]
        assert stage.seen(caller) == (ANSWER, True) and caller.status == 200
        assert await stage.gate.rows(R) == (["call"] if tagged else [])

    play(story)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/org/tiny%20one%3F", "/v1/models?after=x"])
@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("captures", [True, False])
def test_questions_for_models_reach_an_engine_whatever_the_gate_does_and_are_not_counted(
    path: str, tagged: bool, captures: bool
) -> None:
    """OpenAI's clients ask at their start. Nothing is generated."""

    async def story(stage: Stage) -> None:
        gate = stage.gate.it
        gate.admission.stop([R])
        gate.admission.close()
        answer_all(stage)
        sends = (("authorization", "Bearer engine"),)
        caller = await stage.call(episode=R if tagged else None, path=path, method="GET", asks=b"", sends=sends)
        ((seen, headers, body),) = stage.worker.seen
        assert (seen.replace(" ", "%20").replace("one?", "one%3F"), body) == (path, b"")
        assert headers["authorization"] == "Bearer engine"
        assert (caller.status, stage.seen(caller)) == (200, (ANSWER, True))
        assert not gate.admission.book.served and gate.admission.book.quiet and list(gate.live()) == []

    play(story, captures=captures)


def test_a_question_for_models_goes_to_an_engine_that_is_up_and_its_refusal_comes_back() -> None:
    async def story(stage: Stage) -> None:
        answer_all(stage)
        stage.world.nodes["worker"].crash()
        for _ in range(2):
            assert (await stage.call(episode=None, path="/v1/models", method="GET", asks=b"")).status == 200
        assert calls(stage) == [0, 2]
        stage.workers[1].status = 404
        missing = await stage.call(episode=None, path="/v1/models/none", method="GET", asks=b"")
        assert (missing.status, missing.body) == (404, ANSWER), "the engine's own word for it"
        stage.world.nodes["other"].crash()
        asked = await stage.call(episode=None, path="/v1/models", method="GET", asks=b"")
        for _ in range(300):
            await settle()
        assert asked.status == 502 and b"inference worker" in asked.body

    play(story, workers=("worker", "other"))


@pytest.mark.parametrize("path", ["/v1/models/../../metrics", "/v1/models/%2e%2e/%2E%2e/metrics", "/v1/models/a/./b"])
def test_a_question_for_models_leads_nowhere_else(path: str) -> None:
    async def story(stage: Stage) -> None:
        answer_all(stage)
        asked = await stage.call(episode=None, path=path, method="GET", asks=b"")
        assert asked.status in (400, 404) and calls(stage) == [0]

    play(story)


@pytest.mark.parametrize("captures", [True, False])
def test_a_status_that_is_none_is_no_answer(captures: bool) -> None:
    async def story(stage: Stage) -> None:
        stage.worker.status = 999
        answer_all(stage)
        caller = await stage.call(episode=R)
        await settle()
        assert caller.status == 502 and b"999" in caller.body

    play(story, captures=captures)


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
def test_every_route_is_held_while_admission_is_closed(path: str) -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call(path=path)
        stage.gate.it.admission.close()
        answer_all(stage)
        await settle()
        assert stage.seen(caller) == (b"", False), "INV-11"
        stage.gate.it.admission.open()
        await settle()
        assert stage.seen(caller) == (ANSWER, True)

    play(story)


def test_a_session_keeps_to_its_engine_and_all_engines_have_some() -> None:
    async def story(stage: Stage) -> None:
        answer_all(stage)
        at: dict[str, int] = {}
        for number in range(60):
            before = calls(stage)
            name = f"r{number % 20}"
            await stage.call(episode=EpisodeId(name, number // 20))
            moved = [now - then for now, then in zip(calls(stage), before, strict=True)].index(1)
            assert at.setdefault(name, moved) == moved, name
        assert set(at.values()) == {0, 1, 2}

    play(story, workers=("worker", "other", "third"))


def test_calls_without_a_session_take_turns() -> None:
    async def story(stage: Stage) -> None:
        answer_all(stage)
        for _ in range(6):
            await stage.call(episode=None)
        assert calls(stage) == [3, 3]

    play(story, workers=("worker", "other"))


def test_an_engine_that_is_down_is_passed_over_and_has_its_sessions_back_when_it_is_up() -> None:
    async def story(stage: Stage) -> None:
        answer_all(stage)
        await stage.call(call_id="c0")
        (home,) = [worker for worker in stage.workers if worker.calls]
        node = stage.world.nodes[home.name]
        node.crash()
        moved = await stage.call(call_id="c1")
        assert moved.done and moved.status == 200 and sum(calls(stage)) == 2 and home.calls == 1
        node.start()
        await settle()
        await stage.call(call_id="c2")
        assert home.calls == 2
        assert await stage.gate.rows(R) == ["c0", "c1", "c2"]

    play(story, workers=("worker", "other"))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("silent", [False, True])
def test_an_engine_that_may_have_run_the_call_hands_it_to_no_other(streaming: bool, silent: bool) -> None:
    """Scenario 48: neither here nor at another engine is a call executed twice."""

    async def story(stage: Stage) -> None:
        for worker in stage.workers:
            worker.silent = silent
        caller = await stage.call()
        (home,) = [worker for worker in stage.workers if worker.calls]
        stage.world.nodes[home.name].crash()
        answer_all(stage)
        await settle()
        await settle()
        assert sum(calls(stage)) == 1 and await stage.gate.rows(R) == []
        assert caller.status == 502 and b"inference worker" in caller.body

    play(story, streaming=streaming, workers=("worker", "other"))


def test_when_no_engine_can_be_reached_for_long_the_caller_is_told() -> None:
    async def story(stage: Stage) -> None:
        for worker in stage.workers:
            stage.world.nodes[worker.name].crash()
        caller = await stage.call()
        for _ in range(300):
            await settle()
        assert caller.status == 502 and await stage.gate.rows(R) == []
        assert sum(stage.gate.it.admission.book.counts().values()) == 0

    play(story, workers=("worker", "other"))


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 422, 429, 500, 503, 529])
@pytest.mark.parametrize("tagged", [True, False])
def test_an_engines_error_is_passed_on_with_its_retry_after_and_asked_once(status: int, tagged: bool) -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker
        worker.status = status
        worker.headers = (
            (b"retry-after", b"7"), (b"retry-after-ms", b"6500"), (b"x-ratelimit-remaining-requests", b"0"),
            (b"x-request-id", b"engine-1"), (b"x-internal", b"secret"), (b"set-cookie", b"a=b"),
        )  # fmt: skip
        error = b'{"error": {"message": "slow down", "type": "rate_limit", "code": null}}'
        worker.say(error)
        worker.end()
        caller = await stage.call(episode=R if tagged else None)
        assert (caller.status, caller.body, worker.calls) == (status, error, 1)
        assert caller.headers["retry-after"] == "7" and caller.headers["retry-after-ms"] == "6500"
        assert caller.headers["x-ratelimit-remaining-requests"] == "0" and caller.headers["x-request-id"] == "engine-1"
        assert not {"x-internal", "set-cookie"} & caller.headers.keys()
        assert await stage.gate.rows(R) == [], "an error is no delivered call"

    play(story)


def test_an_error_in_an_event_stream_is_passed_on_too() -> None:
    async def story(stage: Stage) -> None:
        stage.worker.status = 503
        stage.worker.say(b'data: {"error": {"message": "overloaded"}}\n\n')
        stage.worker.end()
        caller = await stage.call()
        assert caller.status == 503 and caller.body.startswith(b"data: ") and caller.done
        assert await stage.gate.rows(R) == []

    play(story, streaming=True)


@pytest.mark.parametrize("said", [(), (KEEP_ALIVE,)])
@pytest.mark.parametrize("streaming", [True, False])
def test_an_answer_that_says_nothing_is_an_answer(streaming: bool, said: tuple[bytes, ...]) -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.gate.it.admission.close()
        stage.worker.say(*said)
        stage.worker.end()
        await settle()
        assert not caller.done, "its end is held"
        stage.gate.it.admission.open()
        await settle()
        assert stage.seen(caller) == (b"".join(said), True) and caller.status == 200
        assert await stage.gate.rows(R) == ["call"]

    play(story, streaming=streaming)


# ------------------------------------------------------------------------------------------------- aborts


STREAMED = (KEEP_ALIVE, PART, PART, KEEP_ALIVE, PART, LAST)


@pytest.mark.parametrize("after", range(len(STREAMED) + 1))
@pytest.mark.parametrize("closed", [False, True])
def test_a_caller_that_leaves_after_any_chunk_of_a_stream(after: int, closed: bool) -> None:
    """Scenario 40, at every chunk; while admission is closed as well."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        if closed:
            stage.gate.it.admission.close()
        stage.worker.say(*STREAMED[:after])
        await settle()
        caller.leave()
        await settle()
        assert stage.worker.lost == 1, "the engine stops"
        assert sum(stage.gate.it.admission.book.counts().values()) == 0
        stage.gate.it.admission.open()
        await settle()
        started = after > 1 and not closed
        assert await stage.gate.rows(R) == (["call"] if started else []), "INV-16, 19"

    play(story, streaming=True)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("closed", [False, True])
def test_a_caller_that_leaves_after_any_part_of_an_answer(after: int, closed: bool) -> None:
    """Scenario 40: `after` 3 is the whole answer, held or delivered."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        if closed:
            stage.gate.it.admission.close()
        stage.worker.say(*(ANSWER[:5], ANSWER[5:9], ANSWER[9:])[:after])
        if after == 3:
            stage.worker.end()
        await settle()
        caller.leave()
        await settle()
        assert stage.worker.lost == (0 if after == 3 else 1)
        assert sum(stage.gate.it.admission.book.counts().values()) == 0
        stage.gate.it.admission.open()
        await settle()
        assert await stage.gate.rows(R) == (["call"] if after == 3 and not closed else [])

    play(story)


def test_a_caller_that_leaves_before_an_engine_was_reached_starts_nothing_later() -> None:
    """Scenario 45: submitted and not yet scheduled."""

    async def story(stage: Stage) -> None:
        node = stage.world.nodes["worker"]
        node.crash()
        caller = await stage.call()
        caller.leave()
        await settle()
        node.start()
        for _ in range(30):
            await settle()
        assert stage.worker.calls == 0
        assert sum(stage.gate.it.admission.book.counts().values()) == 0

    play(story)


def test_an_abort_of_one_attempt_leaves_the_next_although_both_have_one_id() -> None:
    """Scenario 41: a connection of its own aborts each; no id of the caller's names the engine's request."""

    async def story(stage: Stage) -> None:
        sends = (("x-request-id", "same"),)
        old = await stage.call(call_id="same", sends=sends)
        new = await stage.call(episode=NEXT, call_id="same", sends=sends)
        stage.gate.it.admission.stop([R])
        await settle()
        assert old.status == 409 and (stage.worker.calls, stage.worker.lost) == (2, 1)
        assert all("x-request-id" not in headers for _, headers, _ in stage.worker.seen)
        answer_all(stage)
        await settle()
        assert stage.seen(new) == (ANSWER, True)

    play(story)


def test_a_slow_reader_slows_its_engine_and_nobody_else() -> None:
    """Back-pressure: of a stream that nobody reads, the gate takes no more than connections hold."""

    async def story(stage: Stage) -> None:
        worker: Worker = stage.worker
        piece = b"data: " + b"x" * 65_000 + b"\n\n"
        blocked = Reader()
        stage.tasks.start_soon(blocked.run, stage)
        await settle()
        worker.say(*[piece] * 200)
        worker.end()
        await settle()
        assert 0 < worker.sent < 40, "the engine waits"
        other = await stage.call(episode=EpisodeId("s"))
        for _ in range(20):
            await settle()
        assert other.done and len(other.body) == 200 * len(piece)
        blocked.go.set()
        for _ in range(20):
            await settle()
        assert blocked.got == 200 * len(piece)

    play(story, streaming=True)


class Reader:
    """A caller that takes one chunk and no more until it is let `go`."""

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.got = 0

    async def run(self, stage: Stage) -> None:
        url = tagged("http://policy:80", R, CHAT)
        async with stage.world.client().stream("POST", url, body=b"{}") as reply:
            async for chunk in reply.chunks():
                self.got += len(chunk)
                await self.go.wait()
