"""Calls from one server of the gym to another, repeated after transport failures for as long as it makes sense.

Only calls that may be repeated are made through here: reads, and steps that carry an idempotency key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from gym_ckpt.errors import BY_CODE, GymCkptError, ProtocolError, TransportError, Unavailable
from gym_ckpt.limits import PEER_RETRY_BUDGET_S, PEER_RETRY_FIRST_S, PEER_RETRY_MAX_S, REFUSAL_SAID_BYTES
from gym_ckpt.ports import Headers, HttpClient, Ports, Reply, ReplyStream
from gym_ckpt.wire import json

IDEMPOTENCY_KEY = "x-ng-idempotency-key"
JSON_HEADERS: Headers = (("content-type", "application/json"),)
T = TypeVar("T")
REPEATABLE = frozenset({502, 503, 504})


class PeerRefused(GymCkptError):
    """A peer answered with a status that repeating will not change."""

    def __init__(self, url: str, reply: Reply) -> None:
        said = reply.body[:REFUSAL_SAID_BYTES].decode("utf-8", "replace")
        super().__init__(f"{url} answered {reply.status}: {said}")
        self.status = reply.status
        self.headers = reply.headers


async def call(
    ports: Ports,
    method: str,
    url: str,
    body: bytes,
    *,
    headers: Headers = (),
    client: HttpClient | None = None,
    budget_s: float = PEER_RETRY_BUDGET_S,
) -> Reply:
    """A reply below 400, repeating after transport failures and 502, 503, 504.

    `budget_s`: seconds from the first failure until the call is given up; a call that is merely slow is waited for.

    Raises:
        ProtocolError: the peer answered with a code of the protocol.
        PeerRefused: it answered with another status of 400 or more.
        TransportError: it could not be reached within the budget.
    """

    async def once() -> Reply:
        reply = await (client or ports.http).request(method, url, headers=(*JSON_HEADERS, *headers), body=body)
        return accepted(url, reply)

    return await _repeated(ports, once, budget_s)


async def claim(ports: Ports, url: str, headers: Headers) -> None:
    """Say at `url` that an attempt goes on; a peer without such a route keeps nothing that it would have to know for.

    Raises: as `call`.
    """
    try:
        await call(ports, "POST", url, b"{}", headers=headers)
    except PeerRefused as error:
        if error.status not in (404, 405):
            raise


async def _repeated(ports: Ports, once: Callable[[], Awaitable[T]], budget_s: float) -> T:
    """What `once` returns, called again with growing pauses after failures that may pass.

    Raises: the last such failure when `budget_s` seconds have gone by since the first; any other at once.
    """
    pause, give_up = PEER_RETRY_FIRST_S, None
    while True:
        try:
            return await once()
        except (TransportError, Unavailable) as error:
            failure: Exception = error
        except PeerRefused as error:
            if error.status not in REPEATABLE:
                raise
            failure = error
        now = anyio.current_time()
        give_up = give_up if give_up is not None else now + budget_s
        if now >= give_up:
            raise failure
        await anyio.sleep(ports.entropy.uniform(pause / 2, pause))
        pause = min(pause * 2, PEER_RETRY_MAX_S)


def accepted(url: str, reply: Reply) -> Reply:
    """`reply` when its status is below 400; otherwise the typed error that it carries, or `PeerRefused`."""
    if reply.status < 400:
        return reply
    error = typed_error(reply)
    raise error if error is not None else PeerRefused(url, reply)


async def refusal(url: str, reply: ReplyStream) -> GymCkptError:
    """The error that a streaming reply of 400 or more carries."""
    body = b"".join([chunk async for chunk in reply.chunks()])
    whole = Reply(reply.status, reply.headers, body)
    return typed_error(whole) or PeerRefused(url, whole)


def typed_error(reply: Reply) -> ProtocolError | None:
    """The error of the protocol that a reply carries, if it does."""
    try:
        body = json.loads(reply.body)
    except ValueError:
        return None
    match body:
        case {"error": {"code": str(code), "detail": str(detail)}} if code in BY_CODE:
            return BY_CODE[code](detail)
    return None
