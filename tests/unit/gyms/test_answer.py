"""The stateless verifier looks at the final answer and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.gyms import AnswerGym, StateMode, ToolError, VerifyMode

CALL = {"role": "assistant", "content": "blue", "tool_calls": [{"function": {"name": "t", "arguments": "{}"}}]}


def answered(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "which?"}, {"role": "assistant", "content": content}]


async def reward(task: dict[str, Any], messages: list[dict[str, Any]]) -> float:
    gym = AnswerGym()
    found: float = (await gym.verify(await gym.seed(task), task, messages))["reward"]
    return found


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (answered("It is Blue."), 1.0),
        (answered([{"type": "text", "text": "bl"}, {"type": "text", "text": "ue"}]), 1.0),
        (answered("red"), 0.0),
        (answered(None), 0.0),
        ([CALL], 0.0),
        ([*answered("blue"), {"role": "user", "content": "blue?"}], 0.0),
        ([], 0.0),
    ],
)
async def test_an_expected_text_must_be_in_the_final_answer(messages: list[dict[str, Any]], expected: float) -> None:
    assert await reward({"expected": "blue"}, messages) == expected


async def test_without_one_the_reward_notices_every_difference_of_task_and_answer() -> None:
    rewards = [
        await reward({"id": 1}, answered("a")),
        await reward({"id": 2}, answered("a")),
        await reward({"id": 1}, answered("b")),
    ]
    assert len(set(rewards)) == 3 and all(0.0 <= found < 1.0 for found in rewards)
    assert await reward({"id": 1}, answered("a")) == rewards[0], "replay changed the reward"


@pytest.mark.parametrize("expected", ["", 3, ["a"]])
async def test_a_wrong_task_is_refused(expected: object) -> None:
    with pytest.raises(InvalidRequest, match=r"task\.expected"):
        await AnswerGym().seed({"expected": expected})


async def test_it_has_neither_state_nor_tools() -> None:
    assert (AnswerGym.state_mode, AnswerGym.verify_mode) == (StateMode.STATELESS, VerifyMode.REPLAY)
    with pytest.raises(ToolError):
        await AnswerGym().call({}, "anything", {})
