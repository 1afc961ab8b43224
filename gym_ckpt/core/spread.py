"""Which of several equal servers a key belongs to: the same for everybody, always, and evenly for keys that look alike.

Not a checksum: the low bits of a CRC-32 are equal for runs of neighbouring ids (`t0` to `t3`, `t4` to `t7`).
Pure.
"""

from __future__ import annotations

import hashlib


def spread(key: str, count: int) -> int:
    """A number below `count` that depends on nothing but `key`."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count
