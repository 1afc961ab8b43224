"""How often, and after what pauses, a model call that failed is made again.

A call that was refused (429, 503, 529) was not executed: the engine is full or starting, and will say so for a while.
Any other failure that may pass (500, 502, 504, no answer) may have cost a generation, and is not tried for as long.
Neither is one whose id is taken, since a copy of it was faster: each try has an id of its own, so nothing is repeated.
Every other status fails the episode at once: it is about the call itself.

Pure: no clock, no network, no chance of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from gym_ckpt.limits import (
    MODEL_REFUSED_BUDGET_S,
    MODEL_REFUSED_FIRST_S,
    MODEL_REFUSED_MAX_S,
    MODEL_RETRY_AFTER_MAX_S,
    PEER_RETRY_BUDGET_S,
    PEER_RETRY_FIRST_S,
    PEER_RETRY_MAX_S,
)

REFUSED = frozenset({429, 503, 529})
PASSING = frozenset({500, 502, 504})


class Patience:
    """With one model call, over all its tries. What a session waits at a closed admission is not counted."""

    def __init__(self) -> None:
        self._refused = _Pauses(MODEL_REFUSED_FIRST_S, MODEL_REFUSED_MAX_S, MODEL_REFUSED_BUDGET_S)
        self._broken = _Pauses(PEER_RETRY_FIRST_S, PEER_RETRY_MAX_S, PEER_RETRY_BUDGET_S)

    def pause_s(self, status: int | None, asked_s: float | None, tried_s: float) -> float | None:
        """Seconds until the next try, at the most, or None: the call is given up.

        Args:
            status: of the answer; None if there was none.
            asked_s: what the engine asked for, and then the least.
            tried_s: how long the try that failed took.
        """
        if status in REFUSED:
            return self._refused.next_s(tried_s, min(asked_s or 0.0, MODEL_RETRY_AFTER_MAX_S))
        return self._broken.next_s(tried_s) if status is None or status in PASSING else None


class _Pauses:
    """Growing pauses within a budget, which begins with the first failure."""

    def __init__(self, first_s: float, max_s: float, budget_s: float) -> None:
        self._pause_s = first_s
        self._max_s = max_s
        self._left_s = budget_s
        self._failed = False

    def next_s(self, tried_s: float, least_s: float = 0.0) -> float | None:
        if self._failed:
            self._left_s -= tried_s
        self._failed = True
        if self._left_s <= 0:
            return None
        pause_s = max(self._pause_s, least_s)
        self._left_s -= pause_s
        self._pause_s = min(self._pause_s * 2, self._max_s)
        return pause_s


def asked_s(headers: Mapping[str, str], wall: float) -> float | None:
    """What `retry-after-ms` or `retry-after` asks for, in seconds from now; None where neither says anything usable.

    `headers`: by their lower-case names. `wall`: now, seconds since the epoch.
    """
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name)
        seconds = None if said is None else _seconds(said, unit_s, wall)
        if seconds is not None and seconds >= 0:  # which nan is not
            return seconds
    return None


def _seconds(said: str, unit_s: float, wall: float) -> float | None:
    try:
        return float(said) * unit_s
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - wall)
    except (ValueError, OverflowError):
        return None
