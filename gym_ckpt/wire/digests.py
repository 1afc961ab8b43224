"""Digests over token ids, in NeMo Gym 0.7's encodings (version 2): each side can check the other's rows.

SHA-256 over length-prefixed, domain-separated encodings; `u64` is eight bytes big-endian. A digest stands for the
tokens wherever the tokens themselves may not go: checkpoints and ledgers hold digests, never token arrays (INV-52).

Pure: knows no tokenizer and no store.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

_PREFIX_DOMAIN: Final = b"nemo-gym-staging-prefix-v2"


def encode_ids(token_ids: Sequence[int]) -> bytes:
    """`ids(x)`: the count, then each id, as u64.

    Raises:
        ValueError: an id that is not an integer in 0..2**64-1.
    """
    try:
        return struct.pack(f">{len(token_ids) + 1}Q", len(token_ids), *token_ids)
    except struct.error as error:
        raise ValueError(f"a token id is not an unsigned 64-bit integer: {error}") from None


def cumulative_hash(token_ids: Sequence[int]) -> str:
    """Lower-case hexadecimal digest of a whole prefix of tokens: prompt and everything generated since.

    Raises:
        ValueError: an id that is not an integer in 0..2**64-1.
    """
    return hashlib.sha256(_PREFIX_DOMAIN + encode_ids(token_ids)).hexdigest()
