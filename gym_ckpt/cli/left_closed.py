"""A gym that is still in the checkpoint with which its last collector stopped: said at once, before anything is done.

Such servers can take nothing back (they have served), and refuse retires until their lease ends. Going on would wait
that and then start the rows in flight from input, although a checkpoint of them is there: restarting the servers first
loses nothing. It must not know what collection does next.
"""

from __future__ import annotations

from collections.abc import Callable

from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.core.coordination import Member
from gym_ckpt.core.phases import Phase
from gym_ckpt.errors import CoordinationError
from gym_ckpt.limits import DISCOVERY_BUDGET_S


class LeftClosed(CoordinationError):
    """Servers hold the rows of a published checkpoint, and nobody will resume them."""


class FreshCoordination(Coordination):
    """Coordination that begins with servers which no checkpoint was left open on."""

    _looked = False

    async def discover(
        self, say: Callable[[str], object] | None = None, budget_s: float = DISCOVERY_BUDGET_S
    ) -> tuple[Member, ...]:
        """As `Coordination.discover`. Raises also `LeftClosed`, the first time only."""
        members = await super().discover(say, budget_s)
        if not self._looked:
            self._looked = True
            await self._refuse_left_closed()
        return members

    async def _refuse_left_closed(self) -> None:
        for name, status in (await self.statuses()).items():
            if status.phase == Phase.COMMITTED:
                left_s = max(0.0, (status.lease_expires_at or status.server_time) - status.server_time)
                raise LeftClosed(
                    f"server {name} is still in checkpoint {status.checkpoint_id}, with which a collector stopped: "
                    f"restart the servers, then run this again (or wait {left_s:.0f} s, and rows in flight start from "
                    "input)"
                )
