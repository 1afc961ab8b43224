"""Which code is this? A digest over the sources that decide a run, and the versions that they run on.

A recorded run comes back event for event only under the same ones; `sim.replay` compares them and says what differs.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gym_ckpt", "sim", "faults")
LIBRARIES = ("anyio", "msgspec", "trio")


def versions() -> dict[str, str]:
    """Python, the libraries below a run, and one digest of all sources."""
    found = {name: metadata.version(name) for name in LIBRARIES}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **found, "sources": _digest()}


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


def _digest() -> str:
    text = "".join(f"{path}\0{digest}\0" for path, digest in digests().items())
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
