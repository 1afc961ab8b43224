"""Carries out `gym_ckpt.core.admission` with anyio: waiting, waking, stopping.

One event per pause wakes everything that it held; a retired piece of work is stopped through its cancel scope and
leaves with `StaleAttempt`. A call that waits to be admitted leaves as soon as its caller has gone: admitted later, it
would count as served work (INV-61), and a client that tries again and again would fill the books.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType

import anyio

from gym_ckpt.core.admission import AdmissionBook, State, Ticket, over, stale
from gym_ckpt.core.forgotten import Forgotten
from gym_ckpt.ports import Tracer
from gym_ckpt.runtime.asgi import ClientGone
from gym_ckpt.types import EpisodeId

Gone = Callable[[], Awaitable[None]]


class Admission:
    """The admission of one participant."""

    def __init__(self, tracer: Tracer) -> None:
        self.book = AdmissionBook()
        self.forgotten = Forgotten()
        self._tracer = tracer
        self._opened = anyio.Event()
        self._opened.set()
        self._changed: anyio.Event | None = None
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._waits: dict[int, anyio.CancelScope] = {}
        """Of those who wait to be admitted, or for their callers to go."""
        self.on_forgotten: Callable[[str], None] | None = None
        """Called with a rollout that was forgotten while work of it went on, once the last of that has left."""
        self.on_change: Callable[[bool], None] | None = None
        """Called with whether admission is closed now, each time that changes."""

    def enter(self, episode: EpisodeId, run: str | None = None, gone: Gone = anyio.sleep_forever) -> Entering:
        """One piece of work of `episode`: waits while admission is closed, then runs the body parked.

        Args:
            run: whose the call says that it is (`Request.run`).
            gone: returns once the caller has gone (`Request.disconnected`); cancelled when the wait is over. Work that
                is nobody's call has none.

        Raises:
            StaleAttempt: the attempt is retired already, or is retired while the body runs; or the call is a copy that
                has come after its rollout was forgotten.
            ClientGone: the caller went while the call waited.
        """
        return Entering(self, episode, run, gone)

    def close(self) -> None:
        """Close; work that is past a boundary goes on to its next one."""
        if not self.book.closed:
            self.book.close()
            self._opened = anyio.Event()
            self._changed_to(closed=True)

    def open(self) -> None:
        """Open; everything that waited or was held goes on."""
        if self.book.closed:
            admitted = self.book.open()
            self._changed_to(closed=False)
            for ticket in admitted:
                self._admitted(ticket)
                if ticket.number in self._waits:
                    self._waits[ticket.number].cancel()
            self._opened.set()
            self.notify()

    def _admitted(self, ticket: Ticket) -> None:
        self._tracer.emit("admission.admitted", episode=ticket.episode, ticket=ticket.number)

    def _changed_to(self, *, closed: bool) -> None:
        self._tracer.emit("admission.closed" if closed else "admission.opened")
        if self.on_change is not None:
            self.on_change(closed)

    def stop(self, episodes: Iterable[EpisodeId]) -> None:
        """Mark these attempts and cancel their work, each piece once (INV-32, INV-34)."""
        asked = tuple(episodes)
        tickets = self.book.mark(asked)
        self._tracer.emit(
            "admission.stopped",
            asked=asked,
            refused=lambda: [self.book.marks.refuses(episode) for episode in asked],
            stopped=lambda: [[ticket.number, ticket.episode] for ticket in tickets],
        )
        for ticket in tickets:
            self._scopes[ticket.number].cancel()

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until `met()` holds; it is asked again after each change of the books."""
        while not met():
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()

    def notify(self) -> None:
        """The books changed."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None


class Entering:
    """`Admission.enter`. A class, because every call of every server comes through here and a generator costs twice."""

    __slots__ = ("_admission", "_episode", "_gone", "_run", "_scope", "_ticket")
    _ticket: Ticket

    def __init__(self, admission: Admission, episode: EpisodeId, run: str | None, gone: Gone) -> None:
        self._admission = admission
        self._episode = episode
        self._run = run
        self._gone = gone
        self._scope = anyio.CancelScope()

    async def __aenter__(self) -> Pass:
        admission = self._admission
        if admission.forgotten.refuses(self._episode, self._run, anyio.current_time()):
            raise over(self._episode)
        self._ticket = ticket = admission.book.arrive(self._episode)
        admission._scopes[ticket.number] = self._scope
        self._scope.__enter__()
        if ticket.state is State.WAITING:
            await self._admitted(ticket)
        else:
            admission._admitted(ticket)
        return Pass(admission, ticket)

    async def _admitted(self, ticket: Ticket) -> None:
        try:
            await self._until_admitted(ticket, self._admission._waits)
        except BaseException as error:
            if self._leave(type(error), error, error.__traceback__):
                raise stale(self._episode) from None
            raise

    async def _until_admitted(self, ticket: Ticket, waits: dict[int, anyio.CancelScope]) -> None:
        with anyio.CancelScope() as wait:
            waits[ticket.number] = wait
            try:
                await self._gone()
            finally:
                del waits[ticket.number]
        if ticket.state is State.WAITING:
            raise ClientGone

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        taken = self._leave(kind, error, where)
        if self._ticket.stopping and (taken or error is None):
            raise stale(self._episode)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        """Whether `error`, if there was one, was the cancellation of this piece of work."""
        admission, ticket = self._admission, self._ticket
        try:
            return bool(self._scope.__exit__(kind, error, where))
        finally:
            del admission._scopes[ticket.number]
            if admission.book.leave(ticket) and admission.on_forgotten is not None:
                admission.on_forgotten(self._episode.rollout_id)
            admission.notify()


class Pass:
    """Leave to do one piece of work."""

    __slots__ = ("_admission", "ticket")

    def __init__(self, admission: Admission, ticket: Ticket) -> None:
        self._admission = admission
        self.ticket = ticket

    @property
    def working(self) -> bool:
        """Whether it is past the boundary."""
        return self.ticket.state is State.WORKING

    async def begin(self) -> None:
        """Go past the boundary; waits while admission is closed."""
        while not self._admission.book.begin(self.ticket):
            if self.ticket.stopping:
                await anyio.sleep_forever()
            await self._admission._opened.wait()

    def park(self) -> None:
        """Back at a boundary: what is recorded is enough to go on from here."""
        self._admission.book.park(self.ticket)
        self._admission.notify()

    def go_on(self) -> None:
        """Admission is open again: past the boundary, if this was parked while it went on with its work."""
        self._admission.book.begin(self.ticket)

    async def boundary(self) -> None:
        """`park`, where a checkpoint wants it; then `begin`."""
        if self._admission.book.closed:
            self.park()
        await self.begin()
