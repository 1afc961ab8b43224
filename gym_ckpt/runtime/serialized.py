"""One control operation after the other, each waiting no longer than its deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from gym_ckpt.errors import DeadlineExceeded
from gym_ckpt.limits import DURABLE_MIN_S


class Serialized:
    """The transition lock, waited for no longer than a deadline."""

    def __init__(self, lock: anyio.Lock, until: float, doing: str) -> None:
        self._lock, self._until, self._doing = lock, until, doing

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
            return
        except anyio.WouldBlock:
            pass
        with anyio.move_on_at(self._until):
            await self._lock.acquire()
            return
        raise DeadlineExceeded(f"{self._doing}: another control call was still running at the deadline; repeat")

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


def refuse_late(until: float, operation: str) -> None:
    """Raises `DeadlineExceeded` when nothing can be done in time: not even the lease would outlive the reply."""
    if until <= anyio.current_time():
        raise DeadlineExceeded(f"{operation}: the deadline had passed when the call arrived")


@contextmanager
def within(until: float, doing: str) -> Iterator[None]:
    """What may be repeated is cut off at its deadline: it must not keep a checkpoint waiting behind it.

    It gets `DURABLE_MIN_S` at the least: where a wall clock is ahead every deadline has passed, and rollouts are
    retired and forgotten there all the same.

    Raises:
        DeadlineExceeded: it was cut off.
    """
    with anyio.CancelScope(deadline=max(until, anyio.current_time() + DURABLE_MIN_S)) as limit:
        yield
    if limit.cancelled_caught:
        raise DeadlineExceeded(f"{doing}: it could not be made durable in time: repeat")
