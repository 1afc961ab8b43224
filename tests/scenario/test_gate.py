"""The policy-model gate, situation by situation."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.sse import KEEP_ALIVE
from tests.scenario.gate import ANSWER, LAST, Stage, play, settle

R, NEXT = EpisodeId("r"), EpisodeId("r", 1)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_that_ends_while_closed_is_held_until_opening(streaming: bool) -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.gate.it.admission.close()
        stage.worker.say(LAST if streaming else ANSWER)
        stage.worker.end()
        await settle()
        assert stage.seen(caller) == (b"", False)
        assert stage.gate.it.report().ready, "a held answer does not delay readiness (INV-10)"
        assert await stage.gate.rows(R) == [], "an undelivered call is in no checkpoint (INV-17)"
        stage.gate.it.admission.open()
        await settle()
        assert stage.seen(caller) == (LAST if streaming else ANSWER, True)
        assert await stage.gate.rows(R) == ["call"]

    play(story, streaming=streaming)


def test_a_stream_that_has_begun_drains_while_closed_and_blocks_readiness() -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(b'data: {"choices": []}\n\n')
        await settle()
        stage.gate.it.admission.close()
        assert stage.gate.it.report().blockers == ("r",), "INV-12"
        stage.worker.say(LAST)
        stage.worker.end()
        await settle()
        assert caller.done and caller.body.endswith(LAST)
        assert stage.gate.it.report().ready
        assert await stage.gate.rows(R) == ["call"]

    play(story, streaming=True)


@pytest.mark.parametrize("cut", [1, 5, len(KEEP_ALIVE) - 1])
def test_headers_and_keep_alives_start_nothing(cut: int) -> None:
    """Wherever the transport splits the keep-alive (scenario 47)."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(KEEP_ALIVE[:cut], KEEP_ALIVE[cut:], KEEP_ALIVE)
        await settle()
        stage.gate.it.admission.close()
        assert stage.gate.it.report().ready
        assert caller.status == 200 and caller.body == KEEP_ALIVE * 2
        stage.worker.say(LAST)
        stage.worker.end()
        await settle()
        assert caller.body == KEEP_ALIVE * 2, "the first answer chunk is held"
        stage.gate.it.admission.open()
        await settle()
        assert stage.seen(caller) == (KEEP_ALIVE * 2 + LAST, True)

    play(story, streaming=True)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("said", [b"", KEEP_ALIVE])
def test_the_loss_of_an_inference_worker_is_told_once_admission_is_open(closed: bool, said: bytes) -> None:
    """INV-11: whatever there is instead of an answer is held as an answer is. INV-10: it delays no checkpoint."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        if said:
            stage.worker.say(said)
            await settle()
        if closed:
            stage.gate.it.admission.close()
        stage.world.nodes["worker"].crash()
        for _ in range(300):
            await settle()
        told = (caller.status == 502, caller.body) if not said else (b"broken_off" in caller.body, said)
        if closed:
            assert stage.seen(caller) == (said, False) and (caller.status is None) is (said == b"")
            assert stage.gate.it.report().ready and stage.gate.it.admission.book.counts()["parked"] == 1
            assert (await stage.control("prepare"))[1]["report"]["ready"]
            assert (await stage.control("resume"))[0] == 200
            await settle()
            told = (caller.status == 502, caller.body) if not said else (b"broken_off" in caller.body, said)
        assert told[0] and caller.done, told
        assert await stage.gate.rows(R) == [] and sum(stage.gate.it.admission.book.counts().values()) == 0

    play(story, streaming=bool(said))


def test_a_caller_that_leaves_and_a_retire_end_a_call_whose_loss_is_held() -> None:
    async def story(stage: Stage) -> None:
        caller, retired = await stage.call(call_id="a"), await stage.call(episode=NEXT, call_id="b")
        stage.gate.it.admission.close()
        stage.world.nodes["worker"].crash()
        for _ in range(300):
            await settle()
        assert stage.gate.it.admission.book.counts()["parked"] == 2
        caller.leave()
        await settle()
        assert stage.gate.it.admission.book.counts()["parked"] == 1
        stage.gate.it.admission.stop([NEXT])
        await settle()
        assert retired.status == 409 and sum(stage.gate.it.admission.book.counts().values()) == 0

    play(story)


@pytest.mark.parametrize("call_id", ["c" * 257, "c" * 100_000, "\xe9", "a\tb"])
@pytest.mark.parametrize("captures", [True, False])
def test_a_call_id_that_could_be_no_header_or_row_is_refused_and_the_server_lives_on(
    call_id: str, captures: bool
) -> None:
    async def story(stage: Stage) -> None:
        refused = await stage.call(call_id=call_id)
        assert refused.status == 400 and b"invalid_request" in refused.body and b"x-ng-model-call-id" in refused.body
        assert stage.worker.calls == 0
        assert (await stage.control("prepare"))[1]["report"]["ready"]

    play(story, captures=captures)


def test_a_new_call_waits_uncounted_and_is_then_served() -> None:
    async def story(stage: Stage) -> None:
        stage.gate.it.admission.close()
        caller = await stage.call()
        assert stage.worker.calls == 0 and not caller.done
        assert stage.gate.it.report().ready, "INV-14"
        stage.worker.say(ANSWER)
        stage.worker.end()
        stage.gate.it.admission.open()
        await settle()
        assert stage.seen(caller) == (ANSWER, True)

    play(story)


def test_a_waiting_call_refused_by_a_mark_stays_refused_when_the_rollout_is_forgotten() -> None:
    async def story(stage: Stage) -> None:
        gate = stage.gate.it
        gate.admission.close()
        caller = await stage.call()
        later = await stage.call(episode=NEXT)
        gate.admission.stop([R])
        gate.admission.book.marks.forget(["r"])
        await settle()
        assert caller.status == 409 and b"stale_attempt" in caller.body, "woken and refused at once (INV-35)"
        gate.admission.open()
        stage.worker.say(ANSWER)
        stage.worker.end()
        await settle()
        assert stage.worker.calls == 1 and later.status == 200, "N+1 is untouched (INV-31)"

    play(story)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_caller_that_leaves_stops_the_generation_and_books_are_right(after: int) -> None:
    """Before anything, after a keep-alive, in mid-answer (scenario 40)."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(*[KEEP_ALIVE, b'data: {"choices": []}\n\n'][:after])
        await settle()
        caller.leave()
        await settle()
        assert stage.worker.lost == 1, "the engine must stop"
        assert sum(stage.gate.it.admission.book.counts().values()) == 0
        delivered = ["call"] if after == 2 else []
        assert await stage.gate.rows(R) == delivered, "a row only for a call whose answer started (INV-16)"

    play(story, streaming=True)


def test_a_caller_that_leaves_while_held_leaves_no_row() -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.gate.it.admission.close()
        stage.worker.say(ANSWER)
        stage.worker.end()
        await settle()
        caller.leave()
        await settle()
        stage.gate.it.admission.open()
        await settle()
        assert await stage.gate.rows(R) == []
        assert sum(stage.gate.it.admission.book.counts().values()) == 0

    play(story)


def test_a_worker_that_is_lost_before_its_answer_is_not_asked_again() -> None:
    """Scenario 48: it may have run the call; whoever asked decides, under another id."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        node = stage.world.nodes["worker"]
        node.crash()
        node.start()
        stage.worker.say(ANSWER)
        stage.worker.end()
        await settle()
        assert stage.worker.calls == 1 and caller.status == 502
        assert await stage.gate.rows(R) == []
        again = await stage.call(call_id="again")
        assert stage.seen(again) == (ANSWER, True)
        assert await stage.gate.rows(R) == ["again"]

    play(story)


def test_a_worker_that_is_down_is_asked_once_it_is_up() -> None:
    async def story(stage: Stage) -> None:
        node = stage.world.nodes["worker"]
        node.crash()
        caller = await stage.call()
        assert not caller.done
        stage.worker.say(ANSWER)
        stage.worker.end()
        node.start()
        await settle()
        await settle()
        assert stage.worker.calls == 1 and stage.seen(caller) == (ANSWER, True)

    play(story)


def test_a_worker_that_is_lost_in_mid_answer_breaks_the_answer_and_is_not_asked_again() -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(b'data: {"choices": []}\n\n')
        await settle()
        stage.world.nodes["worker"].crash()
        await settle()
        assert b'"broken_off"' in caller.body and b"[DONE]" not in caller.body
        assert stage.worker.calls == 1

    play(story, streaming=True)


def test_untagged_calls_pass_a_closed_gate_and_leave_no_trace_in_it() -> None:
    async def story(stage: Stage) -> None:
        stage.gate.it.admission.close()
        stage.worker.say(ANSWER)
        stage.worker.end()
        judge = await stage.call(episode=None)
        assert judge.done and judge.status == 200, "INV-22"
        assert not stage.gate.it.admission.book.served
        assert list(stage.gate.it.live()) == []

    play(story)


def test_a_retire_stops_the_generation_of_its_attempt_only() -> None:
    async def story(stage: Stage) -> None:
        old = await stage.call()
        new = await stage.call(episode=NEXT)
        stage.gate.it.admission.stop([R])
        await settle()
        assert old.status == 409 and stage.worker.lost == 1
        stage.worker.say(ANSWER)
        stage.worker.end()
        await settle()
        assert new.done and new.status == 200

    play(story)


def test_a_retire_in_mid_answer_ends_the_stream_with_an_error_in_it() -> None:
    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(b'data: {"choices": []}\n\n')
        await settle()
        stage.gate.it.admission.stop([R])
        await settle()
        assert b'"broken_off"' in caller.body and stage.worker.lost == 1

    play(story, streaming=True)


def test_a_stream_that_never_ends_fails_its_prepare_in_time_and_is_named() -> None:
    """Scenario 44: a participant that reaches no boundary; prepare gives up at its deadline, and says who blocks."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(b'data: {"choices": []}\n\n')
        await settle()
        began = stage.world.now
        status, reply = await stage.control("prepare", budget_s=3.0)
        assert 3.0 <= stage.world.now - began < 4.0, "not before its deadline, nor long after"
        assert status == 200 and reply["phase"] == "preparing" and not reply["report"]["ready"]
        assert reply["report"]["blockers"] == ["r"] and reply["report"]["blocker_count"] == 1
        stage.gate.it.admission.stop([R])
        status, reply = await stage.control("prepare", budget_s=3.0)
        assert reply["phase"] == "prepared" and b"broken_off" in caller.body, "the same one again, without its blocker"

    play(story, streaming=True)


def test_a_resume_that_arrives_while_a_drain_is_waited_for_ends_the_wait_only() -> None:
    """Scenario 46."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        stage.worker.say(b'data: {"choices": []}\n\n')
        await settle()
        prepared: list[tuple[int, Any]] = []

        async def prepare() -> None:
            prepared.append(await stage.control("prepare"))

        stage.tasks.start_soon(prepare)
        await settle()
        waiting = await stage.call(episode=EpisodeId("s"), call_id="late")
        assert prepared == [] and stage.worker.calls == 1
        assert (await stage.control("resume"))[0] == 200
        await settle()
        ((status, reply),) = prepared
        assert status == 409 and reply["error"]["code"] == "stale_checkpoint", "whoever waited is told"
        assert stage.worker.calls == 2, "admission is open"
        stage.worker.say(LAST)
        stage.worker.end()
        await settle()
        assert caller.done and caller.body.endswith(LAST) and waiting.done
        assert (await stage.control("prepare", "next"))[1]["phase"] == "prepared"
        assert await stage.gate.rows(R, EpisodeId("s")) == ["call", "late"]

    play(story, streaming=True)


def test_a_prepare_that_cannot_settle_names_whose_poison_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nobody could be retired, and each prepare after it would fail in the same way."""

    async def story(stage: Stage) -> None:
        participant = stage.gate.it
        monkeypatch.setattr(participant.book, "unsettled", lambda: [R], raising=False)
        assert participant.report().ready, "while admission is open nothing has to settle"
        participant.admission.close()
        report = participant.report()
        assert (report.ready, report.blockers, report.blocker_count) == (False, ("r",), 1)
        participant.admission.open()

    play(story)
