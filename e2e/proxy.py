"""A proxy between two processes of a test's gym, on TCP or Unix sockets, that can do to a link what networks do.

`Links` runs in a thread of its own, so that a test without an event loop can drive it. A link is one way of one pair:
what `src` asks of `dst`, and the replies. Knows bytes only, neither requests nor who is behind an address.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream
from anyio.from_thread import BlockingPortal, start_blocking_portal

CHUNK_BYTES = 65536
State = Literal["open", "refusing", "silent"]


@dataclass(slots=True, eq=False)
class _Pair:
    """One connection: the asker's stream and the one to whom it is passed on."""

    asker: SocketStream
    other: SocketStream
    scope: anyio.CancelScope
    silent: bool = False
    """Half-open: nothing passes any more, in either direction."""
    held: bool = False
    """Something of it was swallowed by a silence that ends: TCP has given it up by then."""


@dataclass(slots=True)
class Link:
    """`at`: where askers connect; `to`: where that leads. A `Path` is a Unix socket, an int a TCP port."""

    at: int | Path
    to: int | Path
    state: State = "open"
    pairs: list[_Pair] = field(default_factory=list)
    passed: int = 0
    """Bytes that have gone through."""


class Links:
    """A context manager; leaving it closes every link."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self._made: threading.Event = threading.Event()
        self._stop: anyio.Event | None = None

    def __enter__(self) -> Links:
        self._context = start_blocking_portal("asyncio")
        self._portal: BlockingPortal = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._portal.call(self._portal.stop, True)
        self._context.__exit__(None, None, None)

    def add(self, src: str, dst: str, at: int | Path, to: int | Path) -> Link:
        """Listen at `at` and pass everything on."""
        link = self._links[src, dst] = Link(at, to)
        _, future = self._portal.start_task(self._serve, link)
        del future
        return link

    def set(self, src: str, dst: str, state: State) -> None:
        """From now on. Whatever a silence has swallowed is reset when it ends."""
        self._portal.call(self._set, self._links[src, dst], state)

    def half_open(self, one: str, other: str) -> None:
        """Every connection between the two goes silent for good; new ones work."""
        for key in ((one, other), (other, one)):
            if key in self._links:
                self._portal.call(self._silence, self._links[key])

    def cut(self, src: str, dst: str) -> None:
        """Reset every connection."""
        self._portal.call(self._cut, self._links[src, dst])

    # In the loop's thread.

    async def _set(self, link: Link, state: State) -> None:
        if state == "open":
            for pair in [pair for pair in link.pairs if pair.held]:
                pair.scope.cancel()
        link.state = state

    async def _silence(self, link: Link) -> None:
        for pair in link.pairs:
            pair.silent = True

    async def _cut(self, link: Link) -> None:
        for pair in list(link.pairs):
            pair.scope.cancel()

    async def _serve(self, link: Link, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener: Listener[SocketStream]
        if isinstance(link.at, Path):
            listener = await anyio.create_unix_listener(link.at)
        else:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=link.at)
        async with listener:
            task_status.started()
            await listener.serve(self._accept(link))

    def _accept(self, link: Link) -> Callable[[SocketStream], Awaitable[None]]:
        async def accepted(asker: SocketStream) -> None:
            if link.state == "refusing":
                _reset(asker)
                await asker.aclose()
                return
            try:
                if isinstance(link.to, Path):
                    other: SocketStream = await anyio.connect_unix(link.to)
                else:
                    other = await anyio.connect_tcp("127.0.0.1", link.to)
            except OSError:
                _reset(asker)
                await asker.aclose()
                return
            await self._pass_on(link, asker, other)

        return accepted

    async def _pass_on(self, link: Link, asker: SocketStream, other: SocketStream) -> None:
        pair = _Pair(asker, other, anyio.CancelScope())
        link.pairs.append(pair)
        try:
            async with asker, other:
                with pair.scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._pump, link, pair, asker, other, True)
                        tasks.start_soon(self._pump, link, pair, other, asker, False)
                _reset(asker)
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, BaseExceptionGroup):
            return
        finally:
            link.pairs.remove(pair)

    async def _pump(self, link: Link, pair: _Pair, source: SocketStream, sink: SocketStream, asks: bool) -> None:
        while True:
            try:
                data = await source.receive(CHUNK_BYTES)
            except (anyio.EndOfStream, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pair.scope.cancel()
                return
            if pair.silent:
                continue
            if asks and link.state == "refusing":
                pair.scope.cancel()
                return
            if asks and link.state == "silent":
                pair.held = True
                continue
            link.passed += len(data)
            try:
                await sink.send(data)
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pair.scope.cancel()
                return


def _reset(stream: SocketStream) -> None:
    """Close it with a reset where there is such a thing."""
    raw = stream.extra(SocketAttribute.raw_socket)
    if raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
