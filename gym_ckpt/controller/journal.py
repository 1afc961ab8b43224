"""The dispatch log: which attempts may be running somewhere, durable before they are.

Lines: `{"run_id": ...}` where a run begins; `{"rollout_id", "attempt"}` before that attempt's `/run` is sent, with
`"lost"` when that many attempts of the row had been lost by then; the same with `"restored": <checkpoint id>` before
its state is installed on the servers. A start that finds far more lines than rollouts writes it anew, a line for each.
It must not know what a restart makes of it (`gym_ckpt.core.collection_restart` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gym_ckpt.core.collection_restart import DispatchHistory
from gym_ckpt.errors import InvalidCheckpointState, InvalidRolloutId
from gym_ckpt.limits import DISPATCH_LOG_SLACK
from gym_ckpt.ports import Disk
from gym_ckpt.storage.appendlog import AppendLog, rewritten
from gym_ckpt.types import ATTEMPT_MAX, EpisodeId
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

    async def dispatched(self, episodes: Mapping[EpisodeId, int]) -> None:
        """These are about to be sent, each with how many attempts of its row were lost so far.

        Returns once that is durable. One fsync. Raises `OSError`: none may be sent.
        """
        await self._append([_row(episode, lost) for episode, lost in episodes.items()])

    async def compact(self, history: DispatchHistory, lines: int, attempt_token: str) -> None:
        """Write the log anew when it holds far more lines than `history`, which is all that they say.

        Before anything is appended. A full disk leaves the long log in use. Raises `OSError`: it is unknown which of
        the two files will be there after a crash, so that neither may be appended to.
        """
        if lines > DISPATCH_LOG_SLACK * (1 + len(history)):
            rows = [_row(at, lost) | ({"restored": ""} if was else {}) for at, was, lost in history.episodes()]
            data = [json.dumps(row) for row in rows]
            self._log = await self._disk.run(rewritten(self._log, data, attempt_token))

    async def restored(self, episodes: Iterable[EpisodeId], checkpoint_id: str) -> None:
        """The state of these (N+1) is about to be installed on the servers. Raises `OSError`: none may be."""
        await self._append([{**_row(episode), "restored": checkpoint_id} for episode in episodes])

    async def _append(self, rows: list[dict[str, Any]]) -> None:
        await self._disk.run(self._log.append([json.dumps(row) for row in rows], sync=True))


def _row(episode: EpisodeId, lost: int = 0) -> dict[str, Any]:
    row = {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
    return {**row, "lost": lost} if lost else row


class HistoryReader:
    """Folds the lines of a log into `history` while it is opened; keeps no line. `lines`: how many there were."""

    def __init__(self, path: str) -> None:
        self.history = DispatchHistory()
        self.lines = 0
        self._path = path

    def __call__(self, row: dict[str, Any]) -> bool | None:
        """One line; nothing is picked. Raises `InvalidCheckpointState` for one that no release wrote."""
        self.lines += 1
        if "run_id" not in row:
            lost = row.get("lost", 0)
            if type(lost) is not int:
                raise InvalidCheckpointState(f"{self._path}: a line's `lost` is no number; remove that line")
            self.history.add(episode_of(row, self._path), restored="restored" in row, lost=lost)
        return None


def episode_of(row: dict[str, Any], path: str) -> EpisodeId:
    """Whose line this is. Raises `InvalidCheckpointState` naming the file."""
    rollout_id, attempt = row.get("rollout_id"), row.get("attempt")
    if not isinstance(rollout_id, str) or type(attempt) is not int:
        raise InvalidCheckpointState(f"{path}: a line names no rollout_id and attempt; remove that line")
    try:
        episode = EpisodeId.checked(rollout_id, attempt)
    except InvalidRolloutId as error:
        raise InvalidCheckpointState(f"{path}: {error}; remove that line") from None
    if attempt == ATTEMPT_MAX:
        raise InvalidCheckpointState(f"{path}: no attempt comes after {episode}; remove that line")
    return episode
