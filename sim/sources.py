"""Which code is this? A digest over the sources that decide a run, and the versions that they run on.

A recorded run comes back event for event only under the same ones; `sim.replay` compares them and says what differs.
"""

from __future__ import annotations

import hashlib
import platform
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


def _digest() -> str:
    digest = hashlib.blake2b(digest_size=12)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
