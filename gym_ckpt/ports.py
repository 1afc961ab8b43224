"""The seam between the protocol and the world that it runs in.

Everything under `gym_ckpt/` reaches clocks, randomness, files, peers, listening sockets and signals through a `Ports`
value handed to it at start. Production builds one with `gym_ckpt.adapters.system`; the simulator one per node.
Tasks, relative time and cancellation come from anyio, which both worlds provide; so `anyio.current_time()` is the
monotonic clock and `anyio.sleep` the timer.

Rules for an implementation: every call may fail with the errors named here and nothing else; nothing returned is
shared with another node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gym_ckpt.wire.digests import StagedCall

T = TypeVar("T")
Headers = Sequence[tuple[str, str]]
"""Header lines in order; names lower-case."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Clock(Protocol):
    """The host's wall clock. It may be skewed, drift and jump; never measure a duration with it."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...


class Entropy(Protocol):
    """Identity and chance."""

    def token(self, nbytes: int = 8) -> str:
        """A fresh lower-case hexadecimal string of `2 * nbytes` characters."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high): jitter, never a decision about correctness."""
        ...


class File(Protocol):
    """A file open for writing. `write` may be lost or torn by a crash until `fsync` returns."""

    def write(self, data: bytes) -> None: ...

    def fsync(self) -> None: ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; durable after `fsync`."""
        ...

    def close(self) -> None:
        """Never syncs; never raises."""
        ...


class Lock(Protocol):
    """An exclusive lock on a path, gone when its process is, however that ended."""

    def release(self) -> None: ...

    def stands(self) -> bool:
        """Whether the path still names the file that is locked: once that was removed, it keeps nobody out."""
        ...


class FileSystem(Protocol):
    """POSIX calls, synchronous, on absolute paths with `/`. Every one may raise `OSError` with an errno.

    Directory entries (creation, link, rename, unlink) are durable only after `fsync_dir` of the directory holding them;
    file contents only after `File.fsync`.
    """

    def mkdir(self, path: str) -> None:
        """Create one directory; `FileExistsError` if there is anything of that name."""
        ...

    def create(self, path: str) -> File:
        """O_CREAT | O_EXCL; `FileExistsError` if it exists."""
        ...

    def append(self, path: str) -> File:
        """O_CREAT | O_APPEND."""
        ...

    def size(self, path: str) -> int: ...

    def read_chunks(self, path: str, chunk_bytes: int) -> Iterator[bytes]:
        """Contents from the start; `FileNotFoundError` is raised at the call, not at the first item."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically replaces a file `target`."""
        ...

    def link(self, source: str, target: str) -> None:
        """A second name for a file; `FileExistsError` if `target` exists. Unsupported: EPERM, ENOTSUP or ENOSYS."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def fsync_dir(self, path: str) -> None: ...

    def try_lock(self, path: str, note: str) -> Lock | None:
        """Take the exclusive lock of the file `path` (created if need be, never removed) and write `note` in it.

        None when a live process holds it; whose it is can then be read from the file.
        """
        ...


Job = Callable[[FileSystem], Generator[str, None, T]]
"""Work on files: a generator function that yields a step's name *before* each step that a crash could separate.

Production runs the whole job in one worker thread; the simulator runs it step by step with time, faults and crashes
between steps. A job touches nothing but the file system and its own arguments.
"""


class Disk(Protocol):
    async def run(self, job: Job[T]) -> T:
        """Run `job` to its end and return its result. Not interrupted by cancellation once it has begun.

        Raises: whatever the job raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first header of this (lower-case) name."""
        return first_header(self.headers, name)


class ReplyStream(Protocol):
    """A response whose body is still arriving."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def chunks(self) -> AsyncIterator[bytes]:
        """Non-empty body chunks; raises `PeerLost` if the peer goes away before the end."""
        ...


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged call that is durable and that nothing refers to yet. `key`: its staging key; `path`: where it waits."""

    key: str
    path: str


class TokenStore(Protocol):
    """Staged token arrays by staging key. They are in no checkpoint, which names their keys (INV-46, INV-52)."""

    async def stage(self, call: StagedCall) -> Staged:
        """Write a staged call, durably. Until it is kept nobody else finds it, and it goes with this server.

        Raises:
            InvalidStaging: the call breaks a rule of the format; nothing is written.
            OSError, Unavailable: it may or may not be written.
        """
        ...

    def keep(self, staged: Staged) -> Job[None]:
        """Make it found under its key from now on, durably: a job, for it belongs to the writing of the row.

        Raises (by the job):
            OSError: it may or may not be kept.
        """
        ...

    async def drop(self, staged: Staged) -> None:
        """Its call will have no row: remove it, unless it was kept. Raises `OSError`, `Unavailable`."""
        ...

    async def get(self, staging_key: str) -> StagedCall:
        """What was kept, every byte verified.

        Raises:
            StagedMissing: there is nothing under this key.
            StagedDamaged: what is there is not what was kept.
            OSError, Unavailable: it could not be read now.
        """
        ...


class HttpClient(Protocol):
    """Calls to peers. An implementation scales to thousands of calls in flight and follows no redirect or proxy."""

    async def request(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        """One exchange, whole. `timeout_s` limits all of it; None waits as long as it takes.

        Raises:
            PeerUnreachable: certainly not processed.
            PeerLost: may or may not have been processed (`PeerTimeout` when time ran out).
        """
        ...

    def stream(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[ReplyStream]:
        """As `request`, returning when the headers are here; `timeout_s` limits the wait for them.

        Leaving the context before the end of the body closes the connection, which the peer sees as a disconnect.
        """
        ...


class HttpServer(Protocol):
    async def serve(self, app: ASGIApp, url: str, *, ready: Callable[[], None]) -> None:
        """Listen on `url` (`http://host:port`) and run `app` for each request until cancelled, then drain.

        `ready` is called once connections are accepted. The ASGI `spec_version` is uvicorn's, 2.3; there is no
        lifespan. Raises `ConfigError` when the address cannot be listened on.
        """
        ...


class Tracer(Protocol):
    def emit(self, event: str, **fields: Any) -> None:
        """Something happened. Cheap, never blocks, never raises (INV-100).

        A field that is costly to compute is given as a function without arguments; a tracer that records calls it.
        """
        ...


class Probes(Protocol):
    async def __call__(self, point: str) -> None:
        """A named place in the code that is worth striking. Free in production."""
        ...


class Signals(Protocol):
    def listen(self) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Signals of this process from now on, as `SIGTERM` or `SIGUSR1`, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What one process is given at its start."""

    clock: Clock
    entropy: Entropy
    disk: Disk
    http: HttpClient
    control: HttpClient
    """For control calls: connections of its own, which the data plane cannot exhaust."""
    server: HttpServer
    signals: Signals
    tracer: Tracer
    probe: Probes
    pid: int


def first_header(headers: Headers, name: str) -> str | None:
    """The value of the first header called `name` (lower-case), or None."""
    return next((value for key, value in headers if key == name), None)
