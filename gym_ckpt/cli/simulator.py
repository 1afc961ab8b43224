"""`gym-ckpt sim …`: the commands of `sim.cli`, where there is a source checkout to import it from.

The wheel holds `gym_ckpt` only and nothing in it may depend on the simulator, so it is looked up by name when used.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import ClassVar

import click

from gym_ckpt.errors import GymCkptError


class NoSimulator(GymCkptError):
    """`sim` cannot be imported."""


class SimulatorGroup(click.Group):
    """A group whose commands live in `sim.cli`."""

    verbs: ClassVar[tuple[str, ...]] = ("run", "fuzz", "failures", "replay", "bugs")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, for the help text."""
        return list(self.verbs)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their help, or without where the simulator is not."""
        try:
            super().format_commands(ctx, formatter)
        except NoSimulator as error:
            with formatter.section("Commands"):
                formatter.write_dl([(verb, str(error)) for verb in self.verbs[:1]])
                formatter.write_dl([(verb, "") for verb in self.verbs[1:]])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of `sim.cli` with this name. Raises `NoSimulator`."""
        if cmd_name not in self.verbs:
            return None
        command = getattr(_simulator(), cmd_name, None)
        assert isinstance(command, click.Command), f"sim.cli must define the click command {cmd_name!r}"
        return command


def _simulator() -> ModuleType:
    try:
        return importlib.import_module("sim.cli")
    except ModuleNotFoundError as error:
        if error.name not in ("sim", "sim.cli", "trio"):
            raise
        missing = "trio is missing: ./dev installs it" if error.name == "trio" else "clone it and use ./dev run"
        raise NoSimulator(f"the simulator runs from a source checkout ({missing} gym-ckpt sim ...)") from None
