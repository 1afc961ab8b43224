"""`HttpServer` over uvicorn, run inside a task of ours.

uvicorn brings signal handlers, logging and process exits of its own; all of them are switched off, because signals are
the program's (a SIGTERM at a collector is first of all a checkpoint) and errors go to whoever called `serve`.

Draining: cancelled, it stops accepting, lets running requests end for DRAIN_S, resets the connections of those left,
cancels them, and returns. A reset is no answer: uvicorn's own 500 for a handler that it cancels would pass for one, and
a controller would book an episode as failed that only lost its server. The handlers run in tasks of the event loop, not
of the caller, so that cancelling the caller does not cut them off.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import anyio
import uvicorn

from gym_ckpt.adapters.tcp import PROBED
from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import ABORT_S, DRAIN_S, LISTEN_BACKLOG, SERVER_KEEP_ALIVE_S, UNIX_PATH_MAX_BYTES
from gym_ckpt.ports import ASGIApp


class UvicornServer:
    """`ports.HttpServer`. `drain_s` and `abort_s`: seconds, see DRAIN_S and ABORT_S."""

    def __init__(self, *, drain_s: float = DRAIN_S, abort_s: float = ABORT_S) -> None:
        self._drain_s = drain_s
        self._abort_s = abort_s

    async def serve(self, app: ASGIApp, url: str, *, ready: Callable[[], None]) -> None:
        """As `ports.HttpServer.serve`; `http+unix://<percent-encoded path>` listens on a Unix socket."""
        with _listening(url) as listener:
            await self._serve(_Quiet(_config(app, self._drain_s), ready), listener)

    async def _serve(self, server: _Quiet, listener: socket.socket) -> None:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            with anyio.CancelScope(shield=True):  # bounded by drain_s and abort_s
                _, late = await asyncio.wait([serving], timeout=self._drain_s)
                for connection in list(server.server_state.connections) if late else ():
                    connection.transport.abort()
                await asyncio.wait([serving])
                # uvicorn has cancelled what outlasted the drain, but does not wait for it.
                if tasks := list(server.server_state.tasks):
                    await asyncio.wait(tasks, timeout=self._abort_s)


class _Quiet(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()


def _config(app: ASGIApp, drain_s: float) -> uvicorn.Config:
    parser: Literal["httptools", "h11"] = "httptools" if importlib.util.find_spec("httptools") else "h11"
    return uvicorn.Config(
        app,
        http=parser,
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=LISTEN_BACKLOG,
        timeout_keep_alive=SERVER_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_s),
    )


# --------------------------------------------------------------------------------------------------- listening


@contextmanager
def _listening(url: str) -> Iterator[socket.socket]:
    """A socket that listens, closed at the end. Raises `ConfigError` naming what to change."""
    if url.startswith("http+unix://"):
        path = unquote(url.removeprefix("http+unix://").rstrip("/"))
        listener = _listen_unix(url, path)
    else:
        path = ""
        listener = _listen_tcp(url)
    try:
        yield listener
    finally:
        listener.close()
        if path:
            _remove_quietly(path)


def _listen_tcp(url: str) -> socket.socket:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"cannot listen on {url!r}: {error}; write http://host:port") from error
    if parts.scheme != "http" or not host or port is None or parts.path.strip("/"):
        raise ConfigError(f"cannot listen on {url!r}: write http://host:port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {url}: host {host!r}: {error.strerror or error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in PROBED:
        listener.setsockopt(*option)
    _bind(listener, address, url, f"stop what listens on port {port} (ss -ltnp), or configure another port")
    return listener


def _listen_unix(url: str, path: str) -> socket.socket:
    if not path.startswith("/") or len(os.fsencode(path)) > UNIX_PATH_MAX_BYTES:
        raise ConfigError(
            f"cannot listen on {url}: a socket's path is absolute and at most {UNIX_PATH_MAX_BYTES} bytes long"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if _is_stale(path):
        _remove_quietly(path)
    _bind(listener, path, url, "stop the process that listens there, or configure another path")
    return listener


def _bind(listener: socket.socket, address: Any, url: str, mend: str) -> None:
    try:
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {url}: {error.strerror or error}; {mend}") from error


def _is_stale(path: str) -> bool:
    """Whether a socket file is there that no process listens on any more."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _remove_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
