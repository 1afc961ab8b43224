"""One life of one process. Every handle that its code holds carries the epoch, and a dead epoch has no effect.

`fence` is the rule of every asynchronous handle: alive, or wait for the reaper. It waits instead of raising, because a
loop that swallows everything would otherwise never yield to the scheduler again.

Must not know what the handles do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

import trio

from sim.determinism import park

if TYPE_CHECKING:
    from sim.exchange import Exchange


class NodeCrashed(BaseException):
    """The process is gone. Not an `Exception`: code that handles errors must not mistake it for one."""


class Epoch:
    """`number` counts the lives of node `name` from 1."""

    __slots__ = ("alive", "behave", "exchanges", "name", "number", "nursery", "pid")

    def __init__(self, name: str, number: int, pid: int) -> None:
        self.behave: Callable[[str], str] = _as_it_should
        """For code in this process that is somebody else's: `sim.fates.Fates.behave`."""
        self.name = name
        self.number = number
        self.pid = pid
        self.alive = True
        self.nursery: trio.Nursery | None = None
        """Where tasks that the network starts in this process run."""
        self.exchanges: dict[int, Exchange] = {}
        """Unfinished exchanges that this process takes part in, by number."""

    async def fence(self) -> None:
        """Return at once while alive; otherwise never."""
        if not self.alive:
            await park()

    async def checkpoint(self) -> None:
        """Let others run, and return only if still alive."""
        if not self.alive:  # as `fence` does, without its price: this is the most frequent call of all
            await park()
        await trio.lowlevel.checkpoint()
        await self.fence()

    def spawn(self, nursery: trio.Nursery, fn: Callable[..., Awaitable[object]], *args: Any, name: str) -> None:
        """Start a task of this process, with a context of its own: the caller may belong to another."""
        context = Context()
        context.run(_start, self, nursery, fn, args, name)


def _as_it_should(what: str) -> str:
    return ""


_CURRENT: ContextVar[Epoch | None] = ContextVar("sim_epoch", default=None)


def current_epoch() -> Epoch | None:
    """The process that the running task belongs to; None for the harness."""
    return _CURRENT.get()


def epoch_of(task: trio.lowlevel.Task) -> Epoch | None:
    """The process that a task belongs to; None for the harness."""
    return task.context.get(_CURRENT)


def _start(
    epoch: Epoch, nursery: trio.Nursery, fn: Callable[..., Awaitable[object]], args: tuple[Any, ...], name: str
) -> None:
    _CURRENT.set(epoch)
    nursery.start_soon(fn, *args, name=name)
