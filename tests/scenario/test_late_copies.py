"""Calls that a network delivers once more when their rollout is over and forgotten (INV-37, INV-38, INV-39)."""

from __future__ import annotations

import anyio
import pytest

from gym_ckpt.core.forgotten import Ended, Forgotten
from gym_ckpt.errors import InvalidRequest
from gym_ckpt.limits import FORGOTTEN_MAX, FORGOTTEN_S
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX, RUN_HEADER
from tests.scenario.gate import ANSWER, TOKEN, Stage, play

R, NEXT = EpisodeId("r"), EpisodeId("r", 1)
OURS, THEIRS = ((RUN_HEADER, "run"),), ((RUN_HEADER, "another"),)


async def forget(stage: Stage, ended: str | None) -> int:
    headers = (("authorization", f"Bearer {TOKEN}"), *(() if ended is None else ((RUN_HEADER, ended),)))
    body = json.dumps({"rollout_ids": ["r"], "deadline_ts": 4e9})
    reply = await stage.world.client().request(
        "POST", f"http://policy:80{CONTROL_PREFIX}forget", headers=headers, body=body
    )
    return reply.status


async def answered(stage: Stage, episode: EpisodeId, sends: tuple[tuple[str, str], ...]) -> int | None:
    return (await stage.call(episode=episode, sends=sends)).status


def test_a_copy_of_a_call_is_refused_once_its_rollout_is_forgotten_and_nothing_is_made_of_it() -> None:
    async def story(stage: Stage) -> None:
        stage.worker.say(ANSWER)
        stage.worker.end()
        assert await answered(stage, R, OURS) == 200
        assert await forget(stage, "run 0") == 200
        calls = stage.worker.calls
        late = await stage.call(episode=R, sends=OURS)
        assert late.status == 409 and b"stale_attempt" in late.body and b"over" in late.body
        assert stage.worker.calls == calls and not list(stage.gate.it.live()), "it was begun again (INV-38)"

    play(story)


def test_whoever_uses_the_id_again_is_served() -> None:
    """A forget stops the refusing (INV-37): of another run, of a later attempt, of whoever does not say whose it is."""

    async def story(stage: Stage) -> None:
        stage.worker.say(ANSWER)
        stage.worker.end()
        assert await forget(stage, "run 0") == 200
        assert await answered(stage, R, THEIRS) == 200
        assert await answered(stage, R, ()) == 200
        assert await answered(stage, NEXT, OURS) == 200
        assert await answered(stage, EpisodeId("r-1"), OURS) == 200
        assert await answered(stage, R, OURS) == 409

    play(story)


def test_a_forget_that_does_not_say_whose_leaves_nothing() -> None:
    async def story(stage: Stage) -> None:
        stage.worker.say(ANSWER)
        stage.worker.end()
        assert await forget(stage, None) == 200
        assert await answered(stage, R, OURS) == 200
        assert len(stage.gate.it.admission.forgotten) == 0

    play(story)


def test_after_a_while_nothing_is_refused_any_more() -> None:
    async def story(stage: Stage) -> None:
        stage.worker.say(ANSWER)
        stage.worker.end()
        assert await forget(stage, "run 0") == 200
        await anyio.sleep(FORGOTTEN_S - 1)
        assert await answered(stage, R, OURS) == 409
        await anyio.sleep(2)
        assert await answered(stage, R, OURS) == 200

    play(story)


@pytest.mark.parametrize("said", ["run", " 1", "run one", "run -1", "run 99999999999"])
def test_a_forget_whose_header_says_something_else_is_refused_and_forgets_nothing(said: str) -> None:
    async def story(stage: Stage) -> None:
        stage.gate.it.admission.stop([R])
        assert await forget(stage, said) == 400
        assert stage.gate.it.admission.book.marks.refuses(R)

    play(story)
    with pytest.raises(InvalidRequest, match="whose the rollouts are"):
        Ended.parse(said)


def test_what_is_kept_of_forgotten_rollouts_is_bounded_in_number_and_in_time() -> None:
    """INV-39."""
    names, ended = Forgotten(), Ended("run", 0)
    names.add([f"a{number}" for number in range(FORGOTTEN_MAX)], ended, 0.0)
    names.add(["b"], ended, 1.0)
    assert len(names) == FORGOTTEN_MAX
    assert not names.refuses(EpisodeId("a0"), "run", 1.0), "the oldest made room"
    assert names.refuses(EpisodeId("a1"), "run", 1.0) and names.refuses(EpisodeId("b"), "run", 1.0)
    names.add(["c"], ended, FORGOTTEN_S)
    assert len(names) == 2, "those whose time is over are dropped by the next forget"
    names.add(["b"], Ended("run", 2), FORGOTTEN_S)
    names.add([], ended, FORGOTTEN_S + 1.0)
    assert names.refuses(EpisodeId("b", 2), "run", FORGOTTEN_S + 1.0), "forgotten again, its time begins anew"
    names.add(["c"], ended, FORGOTTEN_S + 2.0)
    names.add([], ended, 2 * FORGOTTEN_S + 1.0)
    assert len(names) == 1, "and those that were forgotten after it the first time are dropped before it"


def test_what_a_forget_says_travels_whole() -> None:
    assert Ended.parse(Ended("a run of words", 12).text) == Ended("a run of words", 12)
