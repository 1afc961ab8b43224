"""Lines out of chunks, bounded, without holding more than one of them.

It must not know what a line holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class LineTooLong(ValueError):
    """A line is longer than any that we write."""


def split_lines(chunks: Iterable[bytes], limit: int) -> Iterator[tuple[bytes, bool]]:
    """Each line without its newline, and whether it had one (only the last may not).

    Raises:
        LineTooLong: over `limit` bytes.
    """
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            if size + len(piece) > limit:
                raise LineTooLong(f"a line is longer than {limit} bytes")
            if held:
                held.append(piece)
                piece = b"".join(held)
                held, size = [], 0
            yield piece, True
        if rest:
            held.append(rest)
            size += len(rest)
            if size > limit:
                raise LineTooLong(f"a line is longer than {limit} bytes")
    if held:
        yield b"".join(held), False
