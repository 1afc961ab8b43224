"""Numbers of the command line: a wrong one is answered with what is allowed and an example, in words.

It must not know what they count.
"""

from __future__ import annotations

from typing import Any

import click


class Whole(click.IntRange):
    """A whole number from `least` on, or up to `most`."""

    name = "N"

    def __init__(self, least: int, most: int | None = None, *, such_as: int) -> None:
        super().__init__(least, most)
        to = "on" if most is None else f"to {most:,}"
        self._wanted = f"a whole number from {least:,} {to}, such as {such_as}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises `click.BadParameter`."""
        try:
            number: int = super().convert(value, None, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not {self._wanted}", param, ctx)
        return number


class Real(click.FloatRange):
    """A number above 0, or from 0 to `most`."""

    name = "X"

    def __init__(self, most: float | None = None, *, such_as: float) -> None:
        super().__init__(0, most, min_open=most is None)
        allowed = "above 0" if most is None else f"from 0 to {most:g}"
        self._wanted = f"a number {allowed}, such as {such_as:g}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises `click.BadParameter`."""
        try:
            number: float = super().convert(value, None, ctx)
        except click.BadParameter:
            number = float("nan")
        if number != number:  # NaN passes every comparison that could refuse it
            self.fail(f"{value!r} is not {self._wanted}", param, ctx)
        return number
