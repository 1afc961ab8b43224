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

    async def wait(self, budget_s: float, doing: str) -> None:
        """Until it is done, however it went. Raises `DeadlineExceeded` when it is not in time; the work goes on."""
        if not self._done.is_set():
            with anyio.move_on_after(max(budget_s, 0)):
                await self._done.wait()
        if not self._done.is_set():
            raise DeadlineExceeded(f"{doing} was not done in time; it may still be: repeat the call, or resume")

    async def get(self, budget_s: float, doing: str) -> T:
        """The result, waited for as by `wait`; raises the error if the work failed."""
        await self.wait(budget_s, doing)
        if self.error is not None:
            raise self.error
        return self._result[0]
