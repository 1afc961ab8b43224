"""Which code is this? A digest over the sources that decide a run, and the versions that they run on.

A recorded run comes back event for event only under the same ones; `sim.replay` compares them and says what differs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from faults.plan import App

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gym_ckpt", "sim", "faults")
LIBRARIES = ("anyio", "msgspec", "trio")


def versions(apps: Iterable[App] = ()) -> dict[str, str]:
    """Python, the libraries below a run, one digest of all sources, and one of each application's file."""
    found = {name: metadata.version(name) for name in LIBRARIES}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **found, "sources": _digest(), **{app.factory: _digest_of(app.factory) for app in apps}}


def commit() -> str:
    """The commit of this checkout, with `+` where it was changed since; empty where git cannot tell."""
    described = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(described, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def digests() -> dict[str, str]:
    """A digest of each source file that decides a run, by its path in the repository."""
    return {
        path.relative_to(ROOT).as_posix(): hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def _digest_of(factory: str) -> str:
    """Of the module that the factory is in."""
    try:
        found = importlib.util.find_spec(factory.partition(":")[0])
    except ImportError:
        found = None
    if found is None or found.origin is None:
        return "nowhere"
    return hashlib.blake2b(Path(found.origin).read_bytes(), digest_size=6).hexdigest()


def _digest() -> str:
    text = "".join(f"{path}\0{digest}\0" for path, digest in digests().items())
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
