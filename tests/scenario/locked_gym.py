"""A gym whose author put a lock beside the state, as authors do (scenario 61)."""

from __future__ import annotations

import threading
from typing import Any

from gym_ckpt import Gym
from gym_ckpt.gyms import InventoryGym

assert issubclass(InventoryGym, Gym)


class LockedGym(InventoryGym):
    """A session to which something has just been added is exported with a handle in them."""

    async def export_session_state(self, state: Any) -> Any:
        exported = await super().export_session_state(state)
        if [effect["tool"] for effect in state["log"]][-1:] == ["add_item"]:
            exported["items"]["guard"] = {"held by": threading.Lock()}
        return exported
