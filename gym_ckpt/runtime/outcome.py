"""The result of work that outlives the call that started it, for every call that joins it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from gym_ckpt.errors import DeadlineExceeded

T = TypeVar("T")


class Outcome(Generic[T]):
    """Set once to a result or an error; waited for by any number of calls, each with its own deadline."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._waits: list[anyio.CancelScope] = []
        """Of those who wait for something else too."""
        self._result: list[T] = []
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def succeed(self, result: T) -> None:
        self._result.append(result)
        self._end()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        self._done.set()
        for scope in self._waits:
            scope.cancel()

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
        return self._got()

    async def get_before(self, other: Callable[[], Awaitable[object]]) -> T | None:
        """The result; None where `other` returns first. Takes no task of its own: `other` is cancelled instead."""
        if not self.done:
            with anyio.CancelScope() as scope:
                self._waits.append(scope)
                try:
                    await other()
                finally:
                    self._waits.remove(scope)
        return self._got() if self.done else None

    def _got(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result[0]
