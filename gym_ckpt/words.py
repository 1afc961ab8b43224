"""Counted nouns for people: the one place that knows that one row is no `1 rows`.

A test holds every text of the repository to it. It must not know what is counted.
"""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 row`, `2 rows`, `1,204 rows`; `plural` where it is not the noun with an `s`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
