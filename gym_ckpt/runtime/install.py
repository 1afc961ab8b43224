"""Make any ASGI application a participant: control routes, bearer, admission and the episode's context.

Control routes bypass admission and every limit of the data plane, and are answered in every phase.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import msgspec

from gym_ckpt.core.forgotten import Ended
from gym_ckpt.errors import ConfigError, ProtocolError, Unauthorized
from gym_ckpt.limits import CONTROL_BODY_MAX_BYTES, DATA_BODY_MAX_BYTES
from gym_ckpt.ports import ASGIApp, Receive, Scope, Send
from gym_ckpt.runtime.asgi import (
    EPISODE,
    Answer,
    ClientGone,
    Request,
    Route,
    Router,
    Sending,
    answer_error,
    episode_context,
    respond,
)
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.participant import Participant
from gym_ckpt.wire.messages import (
    CONTROL_PREFIX,
    RUN_HEADER,
    CommitRequest,
    ForgetRequest,
    PrepareRequest,
    RenewRequest,
    RestoreRequest,
    ResumeRequest,
    RetireRequest,
    decode,
    encode,
)

CONTROL_ROOT = "/ng-control/"


def install(app: ASGIApp, control: ControlPlane, token: str | None, extra: tuple[Route, ...] = ()) -> ASGIApp:
    """`app` with the control routes of `control` beside it and its calls tagged with their episodes.

    `token`: the bearer of every control route. `extra`: more routes under `/ng-control/`, behind the same bearer.
    The application admits its own work through `participant.admission`; wrap it in `admitting` when it does not.

    Raises:
        ConfigError: no token; a server that could be checkpointed by anybody refuses to start.
    """
    routes = bearer(Router((*control_routes(control), *extra)), token)
    inner = episode_context(app)

    async def with_control(scope: Scope, receive: Receive, send: Send) -> None:
        control_call = scope["type"] == "http" and scope["path"].startswith(CONTROL_ROOT)
        await (routes if control_call else inner)(scope, receive, send)

    return with_control


def bearer(app: ASGIApp, token: str | None) -> ASGIApp:
    """`app` behind a bearer token, compared in constant time."""
    if not token:
        raise ConfigError("checkpointing is on but there is no control token: set control_token or control_token_env")
    expected = b"Bearer " + token.encode()

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given.strip(b" \t"), expected):
            await app(scope, receive, send)
        else:
            await respond(send, answer_error(Unauthorized("control routes need the gym's control token as a bearer")))

    return checked


def control_routes(control: ControlPlane) -> tuple[Route, ...]:
    """The operations of one participant."""

    async def status(_: Request) -> Answer:
        return Answer(encode(await control.status()))

    async def forget(request: Request) -> Answer:
        said = request.header(RUN_HEADER)
        body = decode(await request.body(CONTROL_BODY_MAX_BYTES), ForgetRequest)
        return Answer(encode(await control.forget(body, None if said is None else Ended.parse(said))))

    return (
        Route("GET", CONTROL_PREFIX + "status", status),
        _operation("prepare", PrepareRequest, control.prepare),
        _operation("renew", RenewRequest, control.renew),
        _operation("commit", CommitRequest, control.commit),
        _operation("restore", RestoreRequest, control.restore),
        _operation("resume", ResumeRequest, control.resume),
        _operation("retire", RetireRequest, control.retire),
        Route("POST", CONTROL_PREFIX + "forget", forget),
    )


def _operation(name: str, kind: type[Any], operation: Callable[[Any], Awaitable[msgspec.Struct]]) -> Route:
    async def handle(request: Request) -> Answer:
        return Answer(encode(await operation(decode(await request.body(CONTROL_BODY_MAX_BYTES), kind))))

    return Route("POST", CONTROL_PREFIX + name, handle)


def admitting(app: ASGIApp, participant: Participant) -> ASGIApp:
    """Admit each tagged request of `app` as one piece of work that a checkpoint waits for.

    For applications that know nothing of admission: a request that arrives during a checkpoint waits, one that runs
    finishes. Untagged requests pass (INV-22). What a waiting request's body has sent is kept for the application.
    """

    async def admitted(scope: Scope, receive: Receive, send: Send) -> None:
        episode = scope.get(EPISODE)
        if scope["type"] != "http" or episode is None:
            await app(scope, receive, send)
            return
        ahead, sending = _ReadAhead(receive), Sending(send)
        try:
            run = Request(scope, receive, {}).run
            async with participant.admission.enter(episode, run, ahead.disconnected) as work:
                await work.begin()
                await app(scope, ahead.receive, sending)
        except ProtocolError as error:
            if not sending.started:  # else too late for a status: the response is broken off, and the caller sees that
                await respond(send, answer_error(error))
        except ClientGone:
            return

    return admitted


class _ReadAhead:
    """`receive` of a request that may have to wait: that its caller goes is seen only behind what it has sent."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[MutableMapping[str, Any]] = deque()
        self._size = 0

    async def disconnected(self) -> None:
        """Returns when the caller has gone; of a body beyond the bound it reads no more, and does not see it."""
        while self._size <= DATA_BODY_MAX_BYTES:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            self._kept.append(message)
            self._size += len(message.get("body", b""))
        await anyio.sleep_forever()

    async def receive(self) -> MutableMapping[str, Any]:
        return self._kept.popleft() if self._kept else await self._receive()


async def health(_: Request) -> Answer:
    """Answers as soon as the server listens."""
    return Answer(b'{"status":"ok"}')


HEALTH = Route("GET", "/health", health)
