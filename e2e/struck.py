"""A file system that fails where a file says: for processes of a test, never part of the package.

The file, while it is there, is JSON: `nth` call from now on (of those named `only`) that names a path with `part` in
it, `errno`, and whether it fails `after` its effect. Once it has struck, the file is renamed to end in `.done` and says
which `call` it was, and all is well until there is another.
"""

from __future__ import annotations

import errno
import functools
import json
import threading
from pathlib import Path
from typing import Any

from gym_ckpt.adapters import posix, system

CALLS = frozenset({
    "mkdir", "create", "append", "read_chunks", "rename", "link", "unlink", "rmdir", "listdir", "fsync_dir", "size",
    "exists", "is_dir", "try_lock", "write", "fsync", "truncate",
})  # fmt: skip


class Strike:
    """Counts calls down. Several threads may call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._armed: dict[str, Any] = {}
        self._left = 0
        self._lock = threading.Lock()

    def due(self, call: str, path: str) -> dict[str, Any] | None:
        """What strikes this call, which names `path`, if anything does."""
        with self._lock:
            try:
                text = self._path.read_text()
            except FileNotFoundError:
                text = ""
            if text != self._text:  # another, also where the one before was taken away between two calls
                self._text, self._armed = text, json.loads(text or "{}")
                self._left = self._armed.get("nth", 0)
            if not text:
                return None
            if self._armed.get("part", "") in path and self._armed.get("only") in (None, call):
                self._left -= 1
            if self._left > 0:
                return None
            self._path.write_text(json.dumps({**self._armed, "call": call}))
            self._path.rename(self._path.with_suffix(".done"))
            self._text = ""
            return self._armed


class Struck:
    """A file system, or an open file of it, whose calls a strike may fail."""

    def __init__(self, real: Any, strike: Strike, path: str = "") -> None:
        self._real, self._strike, self._path = real, strike, path

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)
        return functools.partial(self._call, call, name) if name in CALLS else call

    def _call(self, call: Any, name: str, *arguments: Any) -> Any:
        path = self._path or str(arguments[-1] if name in ("rename", "link") else arguments[0])
        struck = self._strike.due(name, path)
        result = call(*arguments) if struck is None or struck["after"] else None
        if struck is not None:
            number = getattr(errno, struck["errno"])
            if number == errno.ENOENT and name in ("exists", "is_dir"):  # the question's own way to hear it
                return False
            raise OSError(number, f"struck with {struck['errno']} in {name}", path)
        return Struck(result, self._strike, path) if name in ("create", "append") else result


def strike_files(path: Path) -> None:
    """From now on this process's disk fails as the file at `path` says."""
    files: Any = Struck(posix.PosixFileSystem(), Strike(path))
    vars(system)["ThreadDisk"] = functools.partial(posix.ThreadDisk, files)
