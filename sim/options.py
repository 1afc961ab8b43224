"""Types of the options of `gym-ckpt sim`: what is wrong with one is said before anything runs.

Must not know the commands.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import get_args, get_type_hints

import click
import msgspec

from faults.bugs import BUGS
from faults.plan import App
from gym_ckpt.errors import ConfigError
from sim.own import keys_of

SERVERS = get_args(get_type_hints(App)["server"])
"""Those that can be an author's own."""


class Seeds(click.ParamType[range]):
    """`A..B`: from A up to, and without, B."""

    name = "A..B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Raises `click.BadParameter`."""
        if isinstance(value, range):
            return value
        first, dots, last = str(value).partition("..")
        if not (dots and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
            self.fail(
                f"{value!r} is no range of seeds: A..B goes from A up to, and without, B, such as 0..2000", param, ctx
            )
        return range(int(first), int(last))


class BugName(click.ParamType[str]):
    """One of the planted bugs. There are too many of them for a help text."""

    name = "NAME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises `click.BadParameter`."""
        bug = str(value)
        if bug not in BUGS:
            near = difflib.get_close_matches(bug, BUGS, 1)
            hint = f"did you mean {near[0]!r}?" if near else "`gym-ckpt sim bugs --list` names them"
            self.fail(f"there is no planted bug {bug!r}; {hint}", param, ctx)
        return bug


class Application(click.ParamType[App]):
    """`SERVER=package.module:factory`, or a `Gym` in the place of the factory."""

    name = "SERVER=package.module:factory"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> App:
        """Raises `click.BadParameter`."""
        server, equals, factory = str(value).partition("=")
        if not equals or server not in SERVERS:
            self.fail(f"{value!r} is not SERVER=package.module:factory with {' or '.join(SERVERS)}", param, ctx)
        app = msgspec.convert({"server": server, "factory": factory}, App)
        try:
            keys_of(app)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return app


class Picture(click.ParamType[Path]):
    """A file to draw a run into, in a directory that is there: a whole run goes before the first byte of it."""

    name = "FILE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Raises `click.BadParameter`."""
        file = Path(str(value))
        if not file.parent.is_dir():
            self.fail(f"{file} cannot be written: there is no directory {file.parent}", param, ctx)
        if file.is_dir():
            self.fail(f"{file} is a directory", param, ctx)
        return file
