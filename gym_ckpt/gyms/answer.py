"""A verifier without state: it looks at the final answer and nothing else.

Its verification may run any number of times (replay), and there is nothing of it in a checkpoint.
"""

from __future__ import annotations

from typing import Any

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.gyms.base import Gym, StateMode, VerifyMode
from gym_ckpt.gyms.rewards import final_answer, fraction_of


class AnswerGym(Gym):
    """A task may hold `expected`, a text that the final answer must contain."""

    state_mode = StateMode.STATELESS
    verify_mode = VerifyMode.REPLAY

    async def seed(self, task: dict[str, Any]) -> Any:
        """Nothing to keep. Raises `InvalidRequest` when the task's `expected` is not a text."""
        _expected(task)
        return {}

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """1.0 or 0.0 with an expected text (letter case is ignored); without, a fraction of task and answer."""
        found = final_answer(messages)
        expected = _expected(task)
        if expected is not None:
            return {"reward": float(expected.casefold() in found.casefold()), "answered": bool(found)}
        return {"reward": fraction_of([task, found]), "answered": bool(found)}


def _expected(task: dict[str, Any]) -> str | None:
    expected = task.get("expected")
    if expected is not None and (not isinstance(expected, str) or not expected):
        raise InvalidRequest("task.expected must be a text of at least one character")
    return expected
