"""A simulated file system, shared by many nodes, that forgets on a crash what POSIX lets it forget.

When a node crashes, each of its unsynced writes is lost, torn or kept. Of its unsynced changes to one directory a
prefix survives (`journalled`) or any subset does (what POSIX promises at the least). `fsync` and `fsync_dir` make
everything in that file or directory durable, whoever did it.

It helps to check INV-48 to INV-51 and INV-95. It must not know who uses it: no protocol, no layout, no time. Every
choice comes from the `random.Random` it is given, so one seed has one outcome.

Long because the calls of a file system share their state and are read side by side with POSIX.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gym_ckpt.ports import File, Lock
from sim.inodes import Change, Directory, Inode, Node, Write

NAME_MAX_BYTES = 255
"""Of one path component, as on every file system that matters."""

OnOp = Callable[[str, str, str], None]
"""`(owner, operation, path)`; the operation is the name of the `FileSystem` or `File` method, or `chunk`."""
LOOKS = frozenset({"chunk", "exists", "is_dir", "listdir", "read_chunks", "size", "try_lock"})
"""Operations without an effect, or whose effect a failure takes back."""


class DeadOwner(BaseException):
    """Code of a crashed node touched the disk. Not an `OSError`: the dead must not take it for a fault and go on."""


@dataclass(slots=True)
class Failing:
    """The `nth` call from now on fails, and those after it, `times` in all, before or `after` their effect; a look has
    none. `struck` is told which."""

    errno: int
    nth: int
    times: int
    after: bool
    struck: Callable[[str, str], None]
    holds: bool = False
    """It is the call under way that fails, once it is done."""


class SimFileSystem:
    """The disk. `view` gives one node's access to it; `crash` and `end` end that access."""

    def __init__(self, rng: random.Random, *, journalled: bool = True, torn: bool = True) -> None:
        self.rng = rng
        self.journalled = journalled
        self.torn = torn
        self.links = True
        """False: `link` fails with EPERM, as where hard links do not exist."""
        self.on_op: OnOp | None = None
        """Called before an operation takes effect; an `OSError` that it raises is the operation's."""
        self.on_done: OnOp | None = None
        """Called after it took effect: an `OSError` from here is a failure whose effect happened all the same."""
        self._serial = 0
        self._root = Directory(0)
        self._epochs: dict[str, int] = {}
        self._dirty: dict[str, dict[int, Node]] = {}
        self._locks: dict[int, str] = {}

    def view(self, owner: str) -> View:
        """The file system as `owner` sees it until its next crash or end; ask again after a restart."""
        return View(self, owner)

    def crash(self, owner: str) -> None:
        """The host of `owner` lost power: unsynced work is lost, torn or kept; locks go; old handles are dead."""
        for node in self._dirty.pop(owner, {}).values():
            if isinstance(node, Inode):
                node.crash(owner, self.rng, self.torn)
            else:
                node.crash(owner, self.rng, self.journalled)
        self.end(owner)

    def end(self, owner: str) -> None:
        """The process of `owner` ended, killed or not, and its host lives: locks go, and nothing is lost but what the
        kernel had dropped already."""
        for node in self._dirty.get(owner, {}).values():
            if isinstance(node, Inode):
                node.evict(owner)
        self._epochs[owner] = self.epoch(owner) + 1
        self._locks = {serial: holder for serial, holder in self._locks.items() if holder != owner}

    def make_dirs(self, path: str) -> None:
        """Set-up: create `path` and its parents, durable at once."""
        at = self._root
        for name in _parts(path):
            if name not in at.live:
                made = Directory(self._next_serial())
                at.durable[name] = at.live[name] = made
            node = at.live[name]
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", path)
            at = node

    def tree(self, prefix: str = "/") -> dict[str, bytes]:
        """Every file at or below `prefix` as it reads now, by path, sorted."""
        return self._tree(prefix, durable=False)

    def durable_tree(self, prefix: str = "/") -> dict[str, bytes]:
        """As `tree`, had everything unsynced been lost."""
        return self._tree(prefix, durable=True)

    def take_away(self, path: str) -> Node | None:
        """Move whatever is there out of reach, durably, for `put_back`; None where nothing is."""
        parent, name, there = self._slot(path)
        parent.durable.pop(name, None)
        parent.live.pop(name, None)
        return there

    def put_back(self, path: str, taken: Node) -> None:
        """As it was, durably, unless something else has its name by now: more than an empty directory."""
        parent, name, there = self._slot(path)
        if there is None or (isinstance(there, Directory) and not there.live):
            parent.durable[name] = parent.live[name] = taken

    def holds(self, path: str) -> bool:
        """Whether there is anything of this name now."""
        try:
            return self._lookup(path) is not None
        except NotADirectoryError:
            return False

    def flip(self, path: str, bit: int) -> None:
        """Rot at rest: invert one bit (taken modulo the size) of a non-empty file, for good."""
        inode = self._file(path)
        index, mask = (bit // 8) % len(inode.live), 1 << bit % 8
        inode.live[index] ^= mask
        if index < len(inode.durable):
            inode.durable[index] ^= mask
        for write in inode.pending:
            if write.data is not None and 0 <= index - write.offset < len(write.data):
                data = bytearray(write.data)
                data[index - write.offset] ^= mask
                write.data = bytes(data)

    def epoch(self, owner: str) -> int:
        """How often `owner` ended so far."""
        return self._epochs.get(owner, 0)

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _tree(self, prefix: str, *, durable: bool) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        at: Node | None = self._root
        for name in _parts(prefix):
            entries = (at.durable if durable else at.live) if isinstance(at, Directory) else {}
            at = entries.get(name)
        stack: list[tuple[str, Node]] = [("/" + "/".join(_parts(prefix)), at)] if at is not None else []
        while stack:
            path, node = stack.pop()
            if isinstance(node, Inode):
                found[path] = bytes(node.durable if durable else node.live)
            else:
                entries = node.durable if durable else node.live
                stack.extend((f"{path.rstrip('/')}/{name}", child) for name, child in entries.items())
        return dict(sorted(found.items()))

    def _lookup(self, path: str) -> Node | None:
        at: Node = self._root
        for name in _parts(path):
            if not isinstance(at, Directory):
                raise _error(errno.ENOTDIR, path)
            if name not in at.live:
                return None
            at = at.live[name]
        return at

    def _directory(self, path: str) -> Directory:
        node = self._lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> Inode:
        node = self._lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Inode):
            raise _error(errno.EISDIR, path)
        return node

    def _slot(self, path: str) -> tuple[Directory, str, Node | None]:
        """The directory that holds `path`, the last name of it, and what is bound there."""
        parts = _parts(path)
        if not parts:
            raise _error(errno.EBUSY, path)
        parent = self._directory("/" + "/".join(parts[:-1]))
        return parent, parts[-1], parent.live.get(parts[-1])

    def _touch(self, owner: str, node: Node) -> None:
        self._dirty.setdefault(owner, {})[node.serial] = node

    def _settle(self, node: Node) -> None:
        if not node.pending:
            for dirty in self._dirty.values():
                dirty.pop(node.serial, None)


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    if not path.startswith("/"):
        raise AssertionError(f"paths are absolute: {path!r}")
    parts = tuple(part for part in path.split("/") if part)
    if any(part in (".", "..") for part in parts):
        raise AssertionError(f"paths are plain: {path!r}")
    if any(len(part.encode()) > NAME_MAX_BYTES for part in parts):
        raise _error(errno.ENAMETOOLONG, path)
    return parts


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class View:
    """One node's `FileSystem`, dead once the node is. `failing`: a call that is to come fails."""

    def __init__(self, disk: SimFileSystem, owner: str) -> None:
        self._disk = disk
        self._owner = owner
        self._epoch = disk.epoch(owner)
        self.failing: Failing | None = None

    @property
    def alive(self) -> bool:
        return self._disk.epoch(self._owner) == self._epoch

    def begin(self, op: str, path: str) -> None:
        """Before an operation: the caller must be alive, and the fault hook may object."""
        if not self.alive:
            raise DeadOwner(self._owner)
        if self._disk.on_op is not None:
            self._disk.on_op(self._owner, op, path)
        if self.failing is not None:
            self.failing.nth -= 1
            self.failing.holds = self.failing.nth <= 0
            if self.failing.holds and (op in LOOKS or not self.failing.after):
                self._fail(self.failing, op, path)

    def _fail(self, failing: Failing, op: str, path: str) -> None:
        failing.times -= 1
        failing.holds = False
        if not failing.times:
            self.failing = None
        failing.struck(op, path)
        raise _error(failing.errno, path)

    def done(self, op: str, path: str) -> None:
        if self.failing is not None and self.failing.holds:
            self._fail(self.failing, op, path)
        if self._disk.on_done is not None:
            self._disk.on_done(self._owner, op, path)

    def _bind(self, directory: Directory, *names: tuple[str, Node | None]) -> None:
        directory.change(Change(self._owner, names))
        self._disk._touch(self._owner, directory)

    def mkdir(self, path: str) -> None:
        self.begin("mkdir", path)
        parent, name, there = self._disk._slot(path)
        if there is not None:
            raise _error(errno.EEXIST, path)
        self._bind(parent, (name, Directory(self._disk._next_serial())))
        self.done("mkdir", path)

    def create(self, path: str) -> File:
        self.begin("create", path)
        parent, name, there = self._disk._slot(path)
        if there is not None:
            raise _error(errno.EEXIST, path)
        inode = Inode(self._disk._next_serial())
        self._bind(parent, (name, inode))
        self.done("create", path)
        return _Handle(self, self._disk, self._owner, inode, path, append=False)

    def append(self, path: str) -> File:
        self.begin("append", path)
        inode = self._open_or_create(path)
        self.done("append", path)
        return _Handle(self, self._disk, self._owner, inode, path, append=True)

    def _open_or_create(self, path: str) -> Inode:
        parent, name, there = self._disk._slot(path)
        if isinstance(there, Directory):
            raise _error(errno.EISDIR, path)
        if there is None:
            there = Inode(self._disk._next_serial())
            self._bind(parent, (name, there))
        return there

    def size(self, path: str) -> int:
        self.begin("size", path)
        return len(self._disk._file(path).live)

    def read_chunks(self, path: str, chunk_bytes: int) -> Iterator[bytes]:
        self.begin("read_chunks", path)
        return self._chunks(self._disk._file(path), path, chunk_bytes)

    def _chunks(self, inode: Inode, path: str, chunk_bytes: int) -> Iterator[bytes]:
        at = 0
        while True:
            self.begin("chunk", path)
            chunk = bytes(inode.live[at : at + chunk_bytes])
            if not chunk:
                return
            at += len(chunk)
            yield chunk

    def rename(self, source: str, target: str) -> None:
        self.begin("rename", target)
        old_parent, old_name, node = self._disk._slot(source)
        new_parent, new_name, there = self._disk._slot(target)
        if node is None:
            raise _error(errno.ENOENT, source)
        if there is node:
            return  # POSIX: two names of one file stay as they are
        if isinstance(there, Directory):
            if not isinstance(node, Directory):
                raise _error(errno.EISDIR, target)
            if there.live:
                raise _error(errno.ENOTEMPTY, target)
        elif there is not None and isinstance(node, Directory):
            raise _error(errno.ENOTDIR, target)
        if old_parent is new_parent:
            self._bind(new_parent, (old_name, None), (new_name, node))
        else:
            self._bind(new_parent, (new_name, node))
            self._bind(old_parent, (old_name, None))
        self.done("rename", target)

    def link(self, source: str, target: str) -> None:
        self.begin("link", target)
        if not self._disk.links:
            raise _error(errno.EPERM, target)
        node = self._disk._file(source)
        parent, name, there = self._disk._slot(target)
        if there is not None:
            raise _error(errno.EEXIST, target)
        self._bind(parent, (name, node))
        self.done("link", target)

    def unlink(self, path: str) -> None:
        self.begin("unlink", path)
        parent, name, _ = self._disk._slot(path)
        self._disk._file(path)
        self._bind(parent, (name, None))
        self.done("unlink", path)

    def rmdir(self, path: str) -> None:
        self.begin("rmdir", path)
        parent, name, _ = self._disk._slot(path)
        if self._disk._directory(path).live:
            raise _error(errno.ENOTEMPTY, path)
        self._bind(parent, (name, None))
        self.done("rmdir", path)

    def listdir(self, path: str) -> list[str]:
        self.begin("listdir", path)
        return sorted(self._disk._directory(path).live)

    def is_dir(self, path: str) -> bool:
        return isinstance(self._stat("is_dir", path), Directory)

    def exists(self, path: str) -> bool:
        return self._stat("exists", path) is not None

    def _stat(self, op: str, path: str) -> Node | None:
        """What is there; nothing, too, where a fault says that nothing is."""
        try:
            self.begin(op, path)
            return self._disk._lookup(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def fsync_dir(self, path: str) -> None:
        self.begin("fsync_dir", path)
        directory = self._disk._directory(path)
        directory.sync()
        self._disk._settle(directory)
        self.done("fsync_dir", path)

    def try_lock(self, path: str, note: str) -> Lock | None:
        self.begin("try_lock", path)
        inode = self._open_or_create(path)
        if inode.serial in self._disk._locks:
            return None
        self._disk._locks[inode.serial] = self._owner
        inode.change(Write(self._owner, 0, None))
        inode.change(Write(self._owner, 0, note.encode()))
        self._disk._touch(self._owner, inode)
        return _SimLock(self, self._disk, inode.serial, path)


class _Handle:
    """A file open for writing."""

    def __init__(self, view: View, disk: SimFileSystem, owner: str, inode: Inode, path: str, *, append: bool) -> None:
        self._view = view
        self._disk = disk
        self._owner = owner
        self._inode = inode
        self._path = path
        self._append = append
        self._at = 0
        self._open = True

    def _begin(self, op: str) -> None:
        self._view.begin(op, self._path)
        if not self._open:
            raise _error(errno.EBADF, self._path)

    def write(self, data: bytes) -> None:
        try:
            self._begin("write")
        except OSError:
            # A disk that fills up takes a part of a write before it says so.
            if self._open and data:
                self._put(data[: self._disk.rng.randrange(len(data))])
            raise
        self._put(data)
        self._view.done("write", self._path)

    def _put(self, data: bytes) -> None:
        at = len(self._inode.live) if self._append else self._at
        self._at = at + len(data)
        if data:
            self._inode.change(Write(self._owner, at, data))
            self._disk._touch(self._owner, self._inode)

    def fsync(self) -> None:
        try:
            self._begin("fsync")
        except OSError:
            for write in self._inode.pending:
                write.doomed = write.doomed or self._disk.rng.random() < 0.5
            raise
        self._inode.sync()
        self._disk._settle(self._inode)
        self._view.done("fsync", self._path)

    def truncate(self, size: int) -> None:
        self._begin("truncate")
        self._inode.change(Write(self._owner, size, None))
        self._disk._touch(self._owner, self._inode)
        self._view.done("truncate", self._path)

    def close(self) -> None:
        self._open = False


class _SimLock:
    def __init__(self, view: View, disk: SimFileSystem, serial: int, path: str) -> None:
        self._view = view
        self._disk = disk
        self._serial = serial
        self._path = path
        self._held = True

    def stands(self) -> bool:
        """As `ports.Lock`. A look at a name that costs nothing and cannot fail."""
        named = self._disk._lookup(self._path)
        return self._held and isinstance(named, Inode) and named.serial == self._serial

    def release(self) -> None:
        """Give the lock up; nothing when it is gone already, so that the dead cannot free their heir's."""
        if self._held and self._view.alive:
            del self._disk._locks[self._serial]
        self._held = False
