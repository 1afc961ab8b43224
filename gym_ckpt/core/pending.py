"""Restored attempts that nobody has called yet, and deletes that must be tried again.

A restored attempt is pending until its first admitted call, on any server that shares the ledger. A commit exports a
pending attempt in its scope again; one out of scope it deletes, unless the shared marker says that another server has
started it (INV-42, INV-43). A delete that fails stays pending for the next commit (INV-44); whatever is retired or
forgotten is dropped (INV-39).

Pure: the marker and the files are the ledger's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from gym_ckpt.types import EpisodeId


class PendingAttempts:
    """One server's view; the marker that all servers share has the last word."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        """By rollout: a restore installs one attempt of each, once in a server's life."""

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, episode: EpisodeId) -> bool:
        return self._attempts.get(episode.rollout_id) == episode.attempt

    def restored(self, episodes: Iterable[EpisodeId]) -> None:
        """These attempts were installed."""
        self._attempts.update((episode.rollout_id, episode.attempt) for episode in episodes)

    def out_of_scope(self, scope: Container[EpisodeId]) -> list[EpisodeId]:
        """What a commit of `scope` must try to delete, sorted."""
        pending = [EpisodeId(rollout_id, attempt) for rollout_id, attempt in self._attempts.items()]
        return sorted(episode for episode in pending if episode not in scope)

    def settled(self, episodes: Iterable[EpisodeId]) -> None:
        """Started by whomever, or deleted from the ledger. Those that could not be deleted stay."""
        for episode in episodes:
            if episode in self:
                del self._attempts[episode.rollout_id]

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Nothing is kept of these rollouts."""
        for rollout_id in rollout_ids:
            self._attempts.pop(rollout_id, None)

    def drop(self, episodes: Iterable[EpisodeId]) -> None:
        """Retired or forgotten: each attempt and all earlier ones."""
        for episode in episodes:
            if self._attempts.get(episode.rollout_id, episode.attempt + 1) <= episode.attempt:
                del self._attempts[episode.rollout_id]
