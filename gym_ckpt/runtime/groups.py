"""Task groups whose errors come out as they are: the one that counts, and not an exception group around it.

A task group raises a group even for a single error, and one that was cancelled from outside in the same instant raises
the error *and* the cancellation. Nothing that catches the typed error sees either: it passes every `except` that was
written for it and ends the process. So all task groups of the package are made here (a lint rule says so).

Which error counts, of several: one that is not an `Exception` (the process ends), then a broken belief, then expected
trouble; the others become its notes. A cancellation gives way to any error: whoever cancelled is still there, so that
the next wait raises it again. It must not know whose tasks they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from gym_ckpt.errors import GymCkptError


class Tasks:
    """`async with Tasks() as tasks:` is `anyio.create_task_group()`, but for what it raises."""

    __slots__ = ("_group",)

    def __init__(self) -> None:
        self._group = anyio.create_task_group()  # noqa: TID251  the one place

    async def __aenter__(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        try:
            return await self._group.__aexit__(kind, error, where)
        except BaseExceptionGroup as group:
            counts = the_one_that_counts(group, anyio.get_cancelled_exc_class())
        # Outside of the handler, so that its own cause stays, and no group becomes its context.
        raise counts


def the_one_that_counts(group: BaseExceptionGroup[BaseException], cancelled: type[BaseException]) -> BaseException:
    """What leaves a task group that raised `group`; the group itself where nothing but cancellations is in it."""
    errors = [error for error in _leaves(group) if not isinstance(error, cancelled)]
    if not errors:
        return group
    first = min(errors, key=_rank)
    for other in errors:
        if other is not first:
            first.add_note(f"at the same time: {type(other).__name__}: {other}")
    return first


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _rank(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return 0
    return 2 if isinstance(error, GymCkptError | OSError) else 1
