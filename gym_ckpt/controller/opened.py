"""A checkpoint that every participant has prepared, as the body of `Coordination.prepared` has it.

Must not know how participants are called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from gym_ckpt.core.coordination import Committed
from gym_ckpt.types import EpisodeId


class OpenCheckpoint:
    """A checkpoint that every participant has prepared.

    `restarts`: episodes that some participant cannot capture. `live`: episodes that some environment runs or holds; a
    `/run` of any other has its reply on the wire. `until`: the deadline, on the monotonic clock.
    """

    def __init__(self, commit: Committing, checkpoint_id: str, until: float) -> None:
        self._commit = commit
        self.checkpoint_id = checkpoint_id
        self.until = until
        self.restarts: frozenset[EpisodeId] = frozenset()
        self.live: frozenset[EpisodeId] = frozenset()
        self.stays_closed = False

    async def commit(self, checkpoint_dir: str, scope: Iterable[EpisodeId], *, stop: bool = False) -> Committed:
        """Make the scope durable on every participant and check their replies. `stop`: nobody will resume.

        Raises:
            InconsistentReplies: the replies contradict each other or the scope; publish nothing.
            ParticipantFailed: a participant failed, or its reply did not come in time.
        """
        return await self._commit(self, checkpoint_dir, scope, stop)

    def leave_closed(self) -> None:
        """Do not resume on the way out: the controller stops (INV-92)."""
        self.stays_closed = True


Committing = Callable[[OpenCheckpoint, str, Iterable[EpisodeId], bool], Awaitable[Committed]]
