"""Gyms of authors: some assert what they believe of a session in a hook and are wrong, one counts its frees, one judges
with effects."""

from __future__ import annotations

from typing import Any

import anyio

from gym_ckpt.gyms import InventoryGym, StateMode, VerifyMode

CLOSED: list[Any] = []
"""States that `Frees` was told to free."""
JUDGED: list[Any] = []
"""Tasks that `Judges` has judged."""


def _believed(state: Any) -> None:
    assert not state["items"]["drum"], "nobody has a drum"


class Exports(InventoryGym):
    async def export_session_state(self, state: Any) -> Any:
        _believed(state)
        return await super().export_session_state(state)


class Checks(InventoryGym):
    async def check_session_state(self, exported: Any) -> None:
        _believed(exported)


class Restores(InventoryGym):
    async def restore_session_state(self, exported: Any) -> Any:
        _believed(exported)
        return await super().restore_session_state(exported)


class Frees(InventoryGym):
    async def close(self, state: Any) -> None:
        CLOSED.append(state)


class Judges(InventoryGym):
    """Its verification has an effect and takes a while; of some tasks it fails when it has had it."""

    verify_mode = VerifyMode.WAIT

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        JUDGED.append(task)
        await anyio.sleep(1.0)
        if task.get("fails"):
            raise RuntimeError("the score was posted, and then this")
        return {"reward": 1.0, "times": len(JUDGED)}


class JudgesAnswers(Judges):
    state_mode = StateMode.STATELESS
