"""Independent streams of chance, all from one seed.

A stream is named, so that drawing more from one never shifts another: a world with one more message keeps its disk
faults. Knows nothing of what is drawn.
"""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, *name: str) -> random.Random:
    """A generator that depends on `seed` and `name` only, on every platform and under every PYTHONHASHSEED."""
    digest = hashlib.blake2b("\0".join((str(seed), *name)).encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))
