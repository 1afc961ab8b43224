"""Control calls of a controller: one operation on one participant, repeated until answered or out of time.

Operations are idempotent, so a call whose reply is lost is simply made again. Deadlines go out on the receiver's clock
as far as it is known, and as a budget beside it: skew can only shorten them (INV-53).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import msgspec

from gym_ckpt.core.coordination import Member
from gym_ckpt.errors import (
    DeadlineExceeded,
    GymCkptError,
    NotCheckpointable,
    ParticipantFailed,
    TransportError,
    Unavailable,
)
from gym_ckpt.limits import (
    CONTROL_ATTEMPT_TIMEOUT_S,
    CONTROL_RETRY_FIRST_S,
    CONTROL_RETRY_MAX_S,
    DISCOVERY_BUDGET_S,
    WAITING_SAID_AFTER_S,
    WAITING_SAID_EVERY_S,
)
from gym_ckpt.ports import Headers, Ports
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.peer import PeerRefused, accepted
from gym_ckpt.types import Kind
from gym_ckpt.wire.messages import CONTROL_PREFIX, Status, decode, encode

R = TypeVar("R")
M = TypeVar("M", bound=msgspec.Struct)
Item = TypeVar("Item")
T = TypeVar("T")
Times = tuple[float, float]
"""`deadline_ts` on the receiver's clock, and `budget_s`."""


class ControlCalls:
    """The control routes of a gym's servers, as its controller calls them with its token."""

    def __init__(self, token: str, ports: Ports) -> None:
        self._headers = (("authorization", f"Bearer {token}"), ("content-type", "application/json"))
        self._ports = ports

    async def member(self, server: tuple[str, str], waiting: Waiting) -> Member | None:
        """The participant that a server (name, url) is; None when it takes no part.

        Raises:
            NotCheckpointable: it cannot be asked in time.
        """
        name, url = server
        asked = self._ports.clock.wall()
        try:
            until = anyio.current_time() + DISCOVERY_BUDGET_S
            status = await self.status(name, url, until, waiting)
        except ParticipantFailed as error:
            raise NotCheckpointable(f"server {name} cannot be asked for its status ({error.error})") from None
        if status is None:
            return None
        middle = (asked + self._ports.clock.wall()) / 2
        return Member(name, url, Kind(status.kind), status.server_time - middle)

    async def status(self, name: str, url: str, until: float, waiting: Waiting | None = None) -> Status | None:
        """A server's status; None when it has no checkpoint routes. Raises `ParticipantFailed`."""

        async def once(timeout_s: float) -> Status | None:
            target = f"{url}{CONTROL_PREFIX}status"
            reply = await self._ports.control.request("GET", target, headers=self._headers, timeout_s=timeout_s)
            return None if reply.status == 404 else decode(accepted(target, reply).body, Status)

        return await self._repeated(name, "status", once, until, waiting)

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

    async def _repeated(
        self,
        server: str,
        operation: str,
        once: Callable[[float], Awaitable[R]],
        until: float,
        waiting: Waiting | None = None,
    ) -> R:
        pause = CONTROL_RETRY_FIRST_S
        while True:
            left = max(until - anyio.current_time(), 0.0)
            try:
                # A reply that the receiver holds back until the deadline needs a little longer than that to arrive.
                reply = await once(min(left, CONTROL_ATTEMPT_TIMEOUT_S) + CONTROL_RETRY_MAX_S)
            except (TransportError, Unavailable, DeadlineExceeded) as error:
                failure: GymCkptError = error
            except GymCkptError as error:
                if isinstance(error, PeerRefused) and error.status >= 500:
                    failure = error
                else:
                    raise ParticipantFailed(server, operation, error) from None
            else:
                if waiting is not None:
                    waiting.answered(server)
                return reply
            if waiting is not None:
                waiting.failed(server, failure)
            if anyio.current_time() + pause >= until:
                raise ParticipantFailed(server, operation, failure)
            await anyio.sleep(self._ports.entropy.uniform(pause / 2, pause))
            pause = min(pause * 2, CONTROL_RETRY_MAX_S)


class Waiting:
    """Servers that are asked again and again, and a line about them now and then."""

    def __init__(self, say: Callable[[str], object] | None) -> None:
        self._say = say
        self._next = anyio.current_time() + WAITING_SAID_AFTER_S
        self._why: dict[str, str] = {}

    def failed(self, server: str, error: GymCkptError) -> None:
        """It did not answer this time."""
        self._why[server] = str(error)
        now = anyio.current_time()
        if self._say is not None and now >= self._next:
            self._next = now + WAITING_SAID_EVERY_S
            names = ", ".join(sorted(self._why))
            self._say(f"waiting for {names}, up to {DISCOVERY_BUDGET_S:g} s ({self._why[min(self._why)]})")

    def answered(self, server: str) -> None:
        self._why.pop(server, None)


async def each(items: Sequence[Item], one: Callable[[Item], Awaitable[T]]) -> list[T]:
    """`one` for every item at the same time; results in order. Waits for all; then raises the first error."""
    results: dict[int, T] = {}
    failures: dict[int, GymCkptError] = {}

    async def run(index: int, item: Item) -> None:
        try:
            results[index] = await one(item)
        except GymCkptError as error:
            failures[index] = error

    async with Tasks() as tasks:
        for index, item in enumerate(items):
            tasks.start_soon(run, index, item)
    if failures:
        raise failures[min(failures)]
    return [results[index] for index in range(len(items))]
