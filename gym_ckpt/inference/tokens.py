"""A lossless tokenizer: any text to token ids and back, without a model file and without chance.

Ids 0..255 are the bytes of UTF-8. Above them stand `WORDS` two-syllable words, once as they are and once with a leading
space; then a few special tokens that mark the structure of a conversation and that no text can be encoded to (a user
cannot forge a turn by writing its marker).

Because a word's piece ends where the letters end, text made of pieces is always cut at the same places again: what the
model generated re-encodes to the ids that it generated (the lineage's prefix rule, INV-4).

Pure: knows no message, no model and no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

_SYLLABLES: Final = tuple(consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeio")
_WORDS: Final = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)
_SPECIALS: Final = ("tools", "system", "user", "assistant", "tool", "call", "arguments", "end")

WORDS: Final = len(_WORDS)
"""A power of two, so that uniform bits give uniform words."""
FIRST_BARE: Final = 256
"""Id of the first word without a leading space."""
FIRST_SPACED: Final = FIRST_BARE + WORDS
"""Id of the first word with a leading space."""
_FIRST_SPECIAL: Final = FIRST_SPACED + WORDS
TOOLS, SYSTEM, USER, ASSISTANT, TOOL, CALL, ARGUMENTS, END = range(_FIRST_SPECIAL, _FIRST_SPECIAL + len(_SPECIALS))
VOCABULARY: Final = END + 1
"""Number of ids."""

PIECES: Final = (
    *(bytes((byte,)) for byte in range(256)),
    *(word.encode() for word in _WORDS),
    *(b" " + word.encode() for word in _WORDS),
    *(f"<|{name}|>".encode() for name in _SPECIALS),
)
"""Bytes of each id."""

_SPLIT: Final = re.compile(r" ?[a-z]+|[^a-z ]+| ")

assert WORDS & (WORDS - 1) == 0 and len(PIECES) == VOCABULARY


def _word_ids() -> dict[str, int]:
    return {PIECES[token].decode(): token for token in range(FIRST_BARE, _FIRST_SPECIAL)}


_IDS: Final = _word_ids()
"""Read only, although a dict: it is looked into once per word."""


@lru_cache(maxsize=4096)
def encode(text: str) -> tuple[int, ...]:
    """Token ids of `text`; never a special token.

    Raises:
        ValueError: the text holds a surrogate, which UTF-8 cannot carry.
    """
    ids: list[int] = []
    known = _IDS.get
    for piece in _SPLIT.findall(text):
        token = known(piece)
        if token is None:
            ids.extend(piece.encode("utf-8"))
        else:
            ids.append(token)
    return tuple(ids)


def decode(ids: Iterable[int]) -> str:
    """The text of `ids`; the inverse of `encode`. Special tokens appear as their marker.

    Raises:
        ValueError: an id outside the vocabulary, or bytes that are not UTF-8 (a character cut in two).
    """
    given: Sequence[int] = ids if isinstance(ids, tuple | list) else tuple(ids)
    if given and not 0 <= min(given) <= max(given) < VOCABULARY:
        raise ValueError(f"token ids must lie in 0..{VOCABULARY - 1}, not {min(given)}..{max(given)}")
    return b"".join([PIECES[token] for token in given]).decode("utf-8")
