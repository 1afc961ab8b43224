"""The inventory of a later version, which keeps its sessions in another form and does not take back the old one."""

from __future__ import annotations

from typing import Any

from gym_ckpt.gyms.inventory import InventoryGym

VERSION = 2


class LaterInventory(InventoryGym):
    """Does what the inventory does."""

    async def export_session_state(self, state: Any) -> Any:
        return {"version": VERSION, "stock": await super().export_session_state(state)}

    async def check_session_state(self, exported: Any) -> None:
        if exported.get("version") != VERSION:
            raise ValueError(f"a session of version {exported.get('version', 1)}, and this is inventory {VERSION}")
        await super().check_session_state(exported["stock"])

    async def restore_session_state(self, exported: Any) -> Any:
        return await super().restore_session_state(exported["stock"])
