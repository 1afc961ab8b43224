"""Marks: "attempts up to N of this rollout are retired". Refused from the mark until the rollout is forgotten.

Keeps INV-31 (a mark at N says nothing of N+1) and INV-39 (one integer per marked rollout, dropped by `forget`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gym_ckpt.types import EpisodeId


class Marks:
    """The highest retired attempt of each marked rollout."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._highest)

    def mark(self, episodes: Iterable[EpisodeId]) -> None:
        """Retire each attempt and all earlier ones; a mark never moves down."""
        for episode in episodes:
            if episode.attempt > self._highest.get(episode.rollout_id, -1):
                self._highest[episode.rollout_id] = episode.attempt

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Drop the marks of these rollouts."""
        for rollout_id in rollout_ids:
            self._highest.pop(rollout_id, None)

    def highest(self) -> dict[str, int]:
        """The highest retired attempt by rollout; a copy."""
        return dict(self._highest)

    def refuses(self, episode: EpisodeId) -> bool:
        """Whether this attempt is retired."""
        return episode.attempt <= self._highest.get(episode.rollout_id, -1)
