"""Gyms of authors: some assert what they believe of a session in a hook and are wrong, one counts its frees."""

from __future__ import annotations

from typing import Any

from gym_ckpt.gyms import InventoryGym

CLOSED: list[Any] = []
"""States that `Frees` was told to free."""


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
