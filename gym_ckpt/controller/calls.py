"""Control calls of a controller: one operation on one participant, repeated until answered or out of time.

Operations are idempotent, so a call whose reply is lost is simply made again. Deadlines go out on the receiver's clock
as far as it is known, and as a budget beside it: skew can only shorten them (INV-53).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import anyio
import msgspec

from gym_ckpt.core import coordination as rules
from gym_ckpt.core.coordination import Member
from gym_ckpt.errors import (
    DeadlineExceeded,
    GymCkptError,
    InvalidCheckpointState,
    ParticipantFailed,
    PeerTimeout,
    StaleCheckpoint,
    TransportError,
    Unavailable,
)
from gym_ckpt.limits import (
    CONTROL_ATTEMPT_TIMEOUT_S,
    CONTROL_RETRY_FIRST_S,
    CONTROL_RETRY_MAX_S,
    WAITING_SAID_AFTER_S,
    WAITING_SAID_EVERY_S,
)
from gym_ckpt.ports import Headers, Ports
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.peer import PeerRefused, accepted
from gym_ckpt.types import Kind
from gym_ckpt.wire.messages import CONTROL_PREFIX, Status, decode, encode

RENEW: Final = "renew"

SILENCE: Final = 2
"""... of a server says less than whatever one that answers says."""

R = TypeVar("R")
M = TypeVar("M", bound=msgspec.Struct)
Item = TypeVar("Item")
T = TypeVar("T")
Times = tuple[float, float]
"""`deadline_ts` on the receiver's clock, and `budget_s`."""
MEND: Final = "; if they do not run, gym-ckpt serve CONFIG starts them"
UNBOUNDED: Final = frozenset({"retire", "forget"})
"""Operations that a run makes anew for as long as a server is away: how long one try still lasts says nothing."""


class ControlCalls:
    """The control routes of a gym's servers, as its controller calls them with its token."""

    def __init__(self, token: str, ports: Ports) -> None:
        self._headers = (("authorization", f"Bearer {token}"), ("content-type", "application/json"))
        self._ports = ports
        self.waiting = Waiting()

    async def member(self, server: tuple[str, str], until: float) -> Member | None:
        """The participant that a server (name, url) is; None when it takes no part.

        Raises:
            ParticipantFailed: it cannot be asked in time.
        """
        name, url = server

        async def once(timeout_s: float) -> Member | None:
            asked = self._ports.clock.wall()  # of this try: one that was refused says nothing about the server's clock
            status = await self._status(url, timeout_s)
            if status is None:
                return None
            skew_s = rules.skew_s(asked, self._ports.clock.wall(), status.server_time)
            return Member(name, url, Kind(status.kind), skew_s)

        return await self._repeated(name, "status", once, until)

    async def anybody(self, servers: Iterable[tuple[str, str]], until: float) -> bool:
        """Whether one of these servers (name, url) can be asked in time; the others are not waited for."""
        found = False

        async def one(server: tuple[str, str]) -> None:
            nonlocal found
            try:
                await self.member(server, until)
            except ParticipantFailed:
                return
            found = True
            asking.cancel_scope.cancel()

        async with Tasks() as asking:
            for server in servers:
                asking.start_soon(one, server)
        return found

    async def status(self, name: str, url: str, until: float) -> Status | None:
        """A server's status; None when it has no checkpoint routes. Raises `ParticipantFailed`."""
        return await self._repeated(name, "status", lambda timeout_s: self._status(url, timeout_s), until)

    async def _status(self, url: str, timeout_s: float) -> Status | None:
        target = f"{url}{CONTROL_PREFIX}status"
        reply = await self._ports.control.request("GET", target, headers=self._headers, timeout_s=timeout_s)
        return None if reply.status == 404 else decode(accepted(target, reply).body, Status)

    async def call(
        self,
        member: Member,
        operation: str,
        request: Callable[[Times], msgspec.Struct],
        reply_type: type[M],
        until: float,
        headers: Headers = (),
    ) -> M:
        """One operation on one participant, repeated until it is answered or `until` has passed.

        Raises:
            ParticipantFailed: it refused, or could not be reached in time.
        """
        target = f"{member.url}{CONTROL_PREFIX}{operation}"

        async def once(timeout_s: float) -> M:
            left = max(until - anyio.current_time(), 0.0)
            times = (self._ports.clock.wall() + member.skew_s + left, left)
            body = encode(request(times))
            await self._ports.probe(f"coordination.before_{operation}")
            reply = await self._ports.control.request(
                "POST", target, headers=(*self._headers, *headers), body=body, timeout_s=timeout_s
            )
            await self._ports.probe(f"coordination.after_{operation}")
            return decode(accepted(target, reply).body, reply_type)

        return await self._repeated(member.name, operation, once, until)

    async def of_all(
        self,
        members: Sequence[Member],
        operation: str,
        request: Callable[[Times], msgspec.Struct],
        reply_type: type[M],
        until: float,
    ) -> list[M]:
        """One operation on all of them at once, which is nothing unless all of them do it.

        So the first that refuses ends the calls of the others: the gym is closed, and waits for no answer that cannot
        change anything. What they do all the same is undone by whoever undoes the whole.

        Raises:
            ParticipantFailed: as `each` chooses.
        """
        cut_off = dict(self.waiting.cut_off)
        try:
            return await each(
                members, lambda member: self.call(member, operation, request, reply_type, until), or_none=True
            )
        except ParticipantFailed:
            self.waiting.cut_off = cut_off  # nobody was too slow
            raise

    async def _repeated(self, server: str, operation: str, once: Callable[[float], Awaitable[R]], until: float) -> R:
        pause = CONTROL_RETRY_FIRST_S
        while True:
            left = max(until - anyio.current_time(), 0.0)
            self.waiting.asked(server, operation)
            try:
                # A reply that the receiver holds back until the deadline needs a little longer than that to arrive.
                reply = await once(min(left, CONTROL_ATTEMPT_TIMEOUT_S) + CONTROL_RETRY_MAX_S)
            except GymCkptError as error:
                if _is_final(error):
                    self.waiting.answered(server, operation)
                    raise ParticipantFailed(server, operation, error) from None
                failure = error
            except BaseException:
                self.waiting.cut(server, operation)
                raise
            else:
                self.waiting.answered(server, operation)
                return reply
            self.waiting.failed(server, failure, math.inf if operation in UNBOUNDED else until)
            if anyio.current_time() + pause >= until:
                raise ParticipantFailed(server, operation, failure)
            await anyio.sleep(self._ports.entropy.uniform(pause / 2, pause))
            pause = min(pause * 2, CONTROL_RETRY_MAX_S)


def is_stale(error: GymCkptError) -> bool:
    """A participant says that nothing is left there of what it was asked about."""
    return isinstance(error, ParticipantFailed) and isinstance(error.error, StaleCheckpoint)


class Waiting:
    """Servers that are asked again and again, and a line about them now and then. `say`: gets the line.

    `cut_off`: servers whose answer the caller could not wait for, and to what first, since whoever looks cleared it.
    Renewals do not count: they go on beside another call, and end with it.
    """

    def __init__(self) -> None:
        self.say: Callable[[str], object] | None = None
        self.cut_off: dict[str, str] = {}
        self._next = 0.0
        self._why: dict[str, GymCkptError] = {}
        self._asked: dict[str, tuple[str, float]] = {}

    def asked(self, server: str, operation: str) -> None:
        """It is asked now, for the first time or again."""
        if operation != RENEW and self._asked.get(server, ("", 0.0))[0] != operation:
            self._asked[server] = (operation, anyio.current_time())

    def cut(self, server: str, operation: str) -> None:
        """Its answer is not waited for any longer."""
        if operation != RENEW:
            self.cut_off.setdefault(server, operation)

    def failed(self, server: str, error: GymCkptError, until: float) -> None:
        """It did not answer this time, and is asked again until then, which may be for ever."""
        now = anyio.current_time()
        if not self._why:
            self._next = now + WAITING_SAID_AFTER_S
        self._why[server] = error
        if self.say is not None and now >= self._next:
            self._next = now + WAITING_SAID_EVERY_S
            long = "until they answer" if until == math.inf else f"up to {max(0.0, until - now):.0f} s more"
            self.say(f"waiting for {self.words()}, {long}{self.mend()}")

    def answered(self, server: str, operation: str) -> None:
        """It did."""
        self._why.pop(server, None)
        if operation != RENEW:
            self._asked.pop(server, None)

    def silent(self, for_s: float = 0.0) -> dict[str, str]:
        """Servers that have not answered what they were asked last, so many seconds ago or more, and what that is."""
        now = anyio.current_time()
        return {server: operation for server, (operation, since) in self._asked.items() if now - since >= for_s}

    def __contains__(self, server: str) -> bool:
        """Whether it has not answered when last asked."""
        return server in self._why

    def words(self) -> str:
        """Who does not answer, and why the first of them does not."""
        names = sorted(self._why)
        return f"{', '.join(names)} ({self._why[names[0]]})"

    def mend(self) -> str:
        """What to do about it, where that is known."""
        if not all(isinstance(error, TransportError) for error in self._why.values()):
            return ""
        hang = sorted(name for name, error in self._why.items() if isinstance(error, PeerTimeout))
        look = f"; {', '.join(hang)}: takes calls and does not answer, look at its process and its log" if hang else ""
        return look if len(hang) == len(self._why) else f"{look}{MEND}"


class WayOut:
    """The time of whatever a controller undoes on its way out of something, which a stop shortens."""

    def __init__(self) -> None:
        self._rest_s: float | None = None
        self._under_way = anyio.CancelScope()

    @property
    def hurried(self) -> bool:
        return self._rest_s is not None

    def hurry(self, rest_s: float) -> None:
        """From now on `rest_s` seconds and no more, for what is under way, too."""
        self._rest_s = rest_s
        self._under_way.cancel()

    async def take(self, work: Callable[[float], Awaitable[T]], budget_s: float) -> T | None:
        """`work(budget_s)`; begun again with what is left of its time once somebody hurries. None: it was cut off."""
        while True:
            rest_s = self._rest_s
            with anyio.move_on_after(rest_s) as self._under_way:
                return await work(budget_s if rest_s is None else rest_s)
            if rest_s == self._rest_s:
                return None


def to_what(servers: Mapping[str, str]) -> str:
    """Servers and the operations that they do not answer, for people."""
    return ", ".join(f"{server} (to {operation})" for server, operation in sorted(servers.items()))


async def each(items: Sequence[Item], one: Callable[[Item], Awaitable[T]], *, or_none: bool = False) -> list[T]:
    """`one` for every item at the same time; results in order.

    Waits for all, or where it is all of them `or_none`, until one is refused for good. Raises the error that says most:
    that a server will not have a state, then another refusal, then a silence; of several the first in order.
    """
    results: dict[int, T] = {}
    failures: dict[int, GymCkptError] = {}

    async def run(index: int, item: Item) -> None:
        try:
            results[index] = await one(item)
        except GymCkptError as error:
            failures[index] = error
            if or_none and _says(error) < SILENCE:
                together.cancel()

    last = len(items) - 1
    together = anyio.CancelScope()
    if last > 0:
        async with Tasks() as tasks:
            together = tasks.cancel_scope
            for index in range(last):
                tasks.start_soon(run, index, items[index])
            await run(last, items[last])  # one is done here: a task costs more than what most of them do
    elif not last:
        await run(0, items[0])
    if failures:
        raise failures[min(failures, key=lambda index: (_says(failures[index]), index))]
    return [results[index] for index in range(len(items))]


def _is_final(error: GymCkptError) -> bool:
    """Whether asking again cannot help."""
    if isinstance(error, PeerRefused):
        return error.status < 500
    return not isinstance(error, (TransportError, Unavailable, DeadlineExceeded))


def _says(error: GymCkptError) -> int:
    cause = error.error if isinstance(error, ParticipantFailed) else error
    if isinstance(cause, InvalidCheckpointState):
        return 0
    return 1 if _is_final(cause) else SILENCE
