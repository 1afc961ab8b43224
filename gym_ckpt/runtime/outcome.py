"""The result of work that outlives the call that started it, for every call that joins it."""

from __future__ import annotations

from typing import Generic, TypeVar

import anyio

from gym_ckpt.errors import DeadlineExceeded

T = TypeVar("T")


class Outcome(Generic[T]):
    """Set once to a result or an error; waited for by any number of calls, each with its own deadline."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._result: list[T] = []
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def succeed(self, result: T) -> None:
        self._result.append(result)
        self._done.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._done.set()

    async def get(self, budget_s: float, doing: str) -> T:
        """The result; `DeadlineExceeded` when it is not there in time (the work goes on); the error if it failed."""
        if not self._done.is_set():
            with anyio.move_on_after(max(budget_s, 0)):
                await self._done.wait()
        if not self._done.is_set():
            raise DeadlineExceeded(f"{doing} was not done in time; it may still be: repeat the call, or resume")
        if self.error is not None:
            raise self.error
        return self._result[0]
