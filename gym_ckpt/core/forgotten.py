"""Rollouts that were forgotten a short while ago: a copy of one of their calls is not taken for a new rollout's.

A network may deliver a call again, seconds after its rollout has ended and was forgotten: nothing that is kept per
rollout is left to know it by (INV-39), and begun once more it would repeat effects (INV-3, INV-38). So a forget that
says whose rollouts they are leaves their names, for a bounded time and in bounded number. Only calls that say they are
that run's, of attempts up to the one it names, are refused: whoever uses an id again, a later attempt of the run or
another run, is served, as after any forget (INV-37).

It must not know a clock: `now` and `until` are seconds of one that never goes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.limits import FORGOTTEN_MAX, FORGOTTEN_S
from gym_ckpt.types import ATTEMPT_MAX, EpisodeId


@dataclass(frozen=True, slots=True)
class Ended:
    """Whose rollouts a forget is about: a run's name, and the highest attempt that it has sent of each of them."""

    run: str
    attempt: int

    @property
    def text(self) -> str:
        """As it travels."""
        return f"{self.run} {self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Ended:
        """Raises `InvalidRequest`."""
        run, _, attempt = text.rpartition(" ")
        if not (run and attempt.isascii() and attempt.isdecimal() and len(attempt) <= len(str(ATTEMPT_MAX))):
            raise InvalidRequest(
                f"the header of a forget says whose the rollouts are and to which attempt, not {text!r:.100}"
            )
        return cls(run, int(attempt))


class Forgotten:
    """The names, oldest first."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, tuple[Ended, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, rollout_ids: Iterable[str], ended: Ended, now: float) -> None:
        """These were forgotten."""
        for rollout_id in rollout_ids:
            self._until[rollout_id] = ended, now + FORGOTTEN_S
            self._until.move_to_end(rollout_id)
        while self._until and (len(self._until) > FORGOTTEN_MAX or next(iter(self._until.values()))[1] <= now):
            self._until.popitem(last=False)

    def refuses(self, episode: EpisodeId, run: str | None, now: float) -> bool:
        """Whether a call of this run is a copy of one that was over before the rollout was forgotten."""
        found = self._until.get(episode.rollout_id)
        if found is None:
            return False
        ended, until = found
        return run == ended.run and episode.attempt <= ended.attempt and now < until
