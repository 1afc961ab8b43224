"""The least that a server needs on top of bare ASGI: read a body, answer, route, strip the episode's prefix.

Bare because a framework doubles the cost of a request, and because a middleware that buffers bodies or hides
`http.disconnect` breaks the gate's rules. The participant installs on any ASGI application all the same.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio
import msgspec

from gym_ckpt.errors import InvalidRequest, InvalidRolloutId, ProtocolError, RolloutIdRequired
from gym_ckpt.limits import DATA_BODY_MAX_BYTES, RUN_MAX_CHARS
from gym_ckpt.ports import ASGIApp, Headers, Receive, Scope, Send
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.outcome import Outcome
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import ROLLOUT_PREFIX, RUN_HEADER, decode, encode, error_reply

EPISODE = "gym_ckpt.episode"
"""Scope key under which the context middleware leaves the `EpisodeId` of a tagged call."""

_COOKIE_VALUE = re.compile(r"[!#-+\--:<-\[\]-~]+")
M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")


class ClientGone(Exception):
    """The caller closed its connection before its request was whole."""


class Refused(Exception):
    """An answer of an application's own route: a status and a plain reason (not an error of the protocol)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Raised(Exception):
    """An author's code raised `error` in a handler: the caller is told what, and the server logs where."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(f"{what} raised {error!r:.1000}")
        self.error = error


@dataclass(slots=True)
class Request:
    """One request as handlers see it."""

    scope: Scope
    receive: Receive
    params: Mapping[str, str]

    @property
    def episode(self) -> EpisodeId | None:
        """Whose call this is; None when it is untagged."""
        found: EpisodeId | None = self.scope.get(EPISODE)
        return found

    def required_episode(self) -> EpisodeId:
        """Raises `RolloutIdRequired` on an untagged call."""
        if self.episode is None:
            raise RolloutIdRequired(f"{self.scope['path']}: call it below {ROLLOUT_PREFIX}<capture key>/")
        return self.episode

    @property
    def run(self) -> str | None:
        """Which run the call says that it is made for; None when it does not.

        Raises:
            InvalidRequest: further calls that pass it on could not be sent.
        """
        said = self.header(RUN_HEADER) or None
        if said is not None and not (len(said) <= RUN_MAX_CHARS and said.isascii() and said.isprintable()):
            raise InvalidRequest(f"{RUN_HEADER}: up to {RUN_MAX_CHARS} printable ASCII characters")
        return said

    def header(self, name: str) -> str | None:
        """The first header of this (lower-case) name."""
        wanted = name.encode()
        return next((header_value(value) for key, value in self.scope["headers"] if key == wanted), None)

    def cookie(self, name: str) -> str | None:
        """The value of a cookie that came with the request."""
        return cookie_in(self.header("cookie") or "", name)

    async def body(self, limit: int = DATA_BODY_MAX_BYTES) -> bytes:
        """The whole body. Raises `InvalidRequest` beyond `limit` bytes, `ClientGone` on a disconnect."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise InvalidRequest(f"body of more than {limit} bytes")
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def typed(self, kind: type[M]) -> M:
        """The body as a `kind`. Raises `InvalidRequest` naming the field."""
        return decode(await self.body(), kind)

    async def json(self) -> Any:
        """The body as JSON. Raises `InvalidRequest`."""
        try:
            return json.loads(await self.body())
        except ValueError as error:
            raise InvalidRequest(f"body is not JSON: {error}") from None

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns; cancelled, with `ClientGone`, once the caller has gone. The body was read before."""
        results: list[T] = []
        async with Tasks() as tasks:
            tasks.start_soon(self._cancel_on_disconnect, tasks.cancel_scope)
            results.append(await work())
            tasks.cancel_scope.cancel()
        if not results:
            raise ClientGone
        return results[0]

    async def result_of(self, work: Outcome[T]) -> T:
        """The result of work that goes on whoever waits for it; `ClientGone` once the caller has gone."""
        result = await work.get_before(self.disconnected)
        if result is None:
            raise ClientGone
        return result

    async def disconnected(self) -> None:
        """Returns when the caller has gone. ASGI servers allow that it is cancelled: nothing else can still come."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _cancel_on_disconnect(self, scope: anyio.CancelScope) -> None:
        await self.disconnected()
        scope.cancel()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    content_type: str = "application/json"


Handler = Callable[[Request], Awaitable[Answer]]
StreamHandler = Callable[[Request, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` may hold `{name}` segments, and `{name*}` for the rest. A `stream` handler sends its response itself."""

    method: str
    path: str
    handler: Handler | None = None
    stream: StreamHandler | None = None


def answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """`value` (a message struct or plain data) as a JSON response."""
    return Answer(encode(value), status, headers)


async def respond(send: Send, reply: Answer) -> None:
    """Send a whole response; of one to a `HEAD` the server leaves the body out."""
    headers = [(b"content-type", reply.content_type.encode()), (b"content-length", b"%d" % len(reply.body))]
    headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def answer_error(error: ProtocolError) -> Answer:
    """A typed error as a response."""
    status, body = error_reply(error)
    return Answer(body, status)


class Router:
    """Routes to handlers; typed errors become their answers.

    A path that no route has is a 404, and a method that no route of the path has a 405, both with a body of JSON: who
    asks whether there is a route (discovery does) must not take the one for the other. A `GET` with a handler answers
    `HEAD`, too.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        headed = [replace(route, method="HEAD") for route in routes if route.method == "GET" and route.handler]
        every = (*routes, *headed)
        self._exact = {(route.method, route.path): route for route in every if "{" not in route.path}
        self._patterns = [(_pattern(route.path), route) for route in every if "{" in route.path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", f"this application serves http only, not {scope['type']}"
        found, params = self._find(scope["method"], scope["path"])
        request = Request(scope, receive, params)
        sending: Sending | None = None
        try:
            if found is None:
                reply = self._nothing(scope["method"], scope["path"])
            elif found.stream is not None:
                sending = Sending(send)
                await found.stream(request, sending)
                return
            else:
                assert found.handler is not None, f"route {found.path} has no handler"
                reply = await found.handler(request)
        except ProtocolError as error:
            reply = answer_error(error)
        except Refused as error:
            reply = answer({"error": {"code": "refused", "detail": error.reason}}, error.status)
        except Raised as error:
            await respond(send, answer({"error": {"code": "refused", "detail": str(error)}}, 500))
            raise error.error from None
        except ClientGone:
            return
        if sending is not None and sending.started:
            return  # too late for a status: the server breaks the incomplete response off, and the caller sees that
        await respond(send, reply)

    def _find(self, method: str, path: str) -> tuple[Route | None, Mapping[str, str]]:
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact, {}
        for pattern, route in self._patterns:
            match = pattern.fullmatch(path)
            if match and route.method == method:
                return route, match.groupdict()
        return None, {}

    def _nothing(self, method: str, path: str) -> Answer:
        allowed = {there for there, exact in self._exact if exact == path}
        allowed |= {route.method for pattern, route in self._patterns if pattern.fullmatch(path)}
        said = ", ".join(sorted(allowed))
        if not allowed:
            return answer({"error": {"code": "not_found", "detail": f"no {method} {path}"}}, 404)
        error = {"code": "method_not_allowed", "detail": f"no {method} {path}: it takes {said}"}
        return answer({"error": error}, 405, (("allow", said),))


class Sending:
    """`send`, and whether a response has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self.started = True
        await self._send(message)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("".join(_expression(part) for part in re.split(r"(\{[a-z_]+\*?\})", path)))


def _expression(part: str) -> str:
    if part[:1] != "{":
        return re.escape(part)
    name = part[1:-1].removesuffix("*")
    return f"(?P<{name}>{'.+' if part[-2] == '*' else '[^/]+'})"


def episode_context(app: ASGIApp) -> ASGIApp:
    """Strip `/ng-rollout/<capture key>` from the path and leave the episode in the scope.

    Pure ASGI: bodies and disconnects pass through untouched. A malformed prefix is answered with
    `invalid_rollout_id`, never passed on as an untracked call (INV-22).
    """

    async def with_episode(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(ROLLOUT_PREFIX):
            raw, slash, rest = scope["path"][len(ROLLOUT_PREFIX) :].partition("/")
            try:
                if not slash:
                    raise InvalidRolloutId(f"nothing follows the capture key in {scope['path'][:300]!r}")
                episode = EpisodeId.from_key(raw)
            except InvalidRolloutId as error:
                await respond(send, answer_error(error))
                return
            scope = {**scope, "path": "/" + rest, "raw_path": ("/" + rest).encode(), EPISODE: episode}
        await app(scope, receive, send)

    return with_episode


def header_value(raw: bytes) -> str:
    """A header's value without the blanks around it, which are no part of it: not every ASGI server takes them off, and
    a client refuses to send them."""
    return raw.strip(b" \t").decode("latin-1")


def of_run(run: str | None) -> Headers:
    """What says of a further call for which run it is made."""
    return () if run is None else ((RUN_HEADER, run),)


def tagged(base_url: str, episode: EpisodeId, path: str) -> str:
    """URL of `path` on a server, below the episode's prefix."""
    return f"{base_url}{ROLLOUT_PREFIX}{episode.key}{path}"


def is_cookie_value(text: str) -> bool:
    """Whether `text` can be sent as a cookie's value, as it is."""
    return _COOKIE_VALUE.fullmatch(text) is not None


def cookie_in(text: str, name: str) -> str | None:
    """Value of a cookie in the text of a `cookie` or `set-cookie` header."""
    for part in text.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return None
