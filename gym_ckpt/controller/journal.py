"""The dispatch log: which attempts may be running somewhere, durable before they are.

Lines: `{"run_id": ...}` where a run begins; `{"rollout_id", "attempt"}` before that attempt's `/run` is sent;
the same with `"restored": <checkpoint id>` once its state was installed on the servers. It must not know what a restart
makes of it (`gym_ckpt.core.collection_restart` does).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gym_ckpt.core.collection_restart import DispatchHistory
from gym_ckpt.errors import InvalidCheckpointState, InvalidRolloutId
from gym_ckpt.ports import Disk
from gym_ckpt.storage.appendlog import AppendLog
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json


class DispatchLog:
    """The writing end. One append at a time: the start of the run, then its dispatcher."""

    def __init__(self, disk: Disk, log: AppendLog) -> None:
        self._disk = disk
        self._log = log
        self.path = log.path

    async def began(self, run_id: str) -> None:
        """A run begins. Raises `OSError`."""
        await self._append([{"run_id": run_id}])

    async def dispatched(self, episodes: Iterable[EpisodeId]) -> None:
        """These are about to be sent; returns once that is durable. One fsync. Raises `OSError`: none may be sent."""
        await self._append([_row(episode) for episode in episodes])

    async def restored(self, episodes: Iterable[EpisodeId], checkpoint_id: str) -> None:
        """The state of these (N+1) was installed on the servers. Raises `OSError`."""
        await self._append([{**_row(episode), "restored": checkpoint_id} for episode in episodes])

    async def _append(self, rows: list[dict[str, Any]]) -> None:
        await self._disk.run(self._log.append([json.dumps(row) for row in rows], sync=True))


def _row(episode: EpisodeId) -> dict[str, Any]:
    return {"rollout_id": episode.rollout_id, "attempt": episode.attempt}


class HistoryReader:
    """Folds the lines of a log into `history` while it is opened; keeps no line."""

    def __init__(self, path: str) -> None:
        self.history = DispatchHistory()
        self._path = path

    def __call__(self, row: dict[str, Any]) -> bool | None:
        """One line; nothing is picked. Raises `InvalidCheckpointState` for one that no release wrote."""
        if "run_id" not in row:
            self.history.add(episode_of(row, self._path), restored="restored" in row)
        return None


def episode_of(row: dict[str, Any], path: str) -> EpisodeId:
    """Whose line this is. Raises `InvalidCheckpointState` naming the file."""
    rollout_id, attempt = row.get("rollout_id"), row.get("attempt")
    if not isinstance(rollout_id, str) or type(attempt) is not int:
        raise InvalidCheckpointState(f"{path}: a line names no rollout_id and attempt; remove that line")
    try:
        return EpisodeId.checked(rollout_id, attempt)
    except InvalidRolloutId as error:
        raise InvalidCheckpointState(f"{path}: {error}; remove that line") from None
