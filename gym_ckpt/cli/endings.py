"""How a command ends when an error ends it: the exit status, and one line that says what and how to mend it."""

from __future__ import annotations

import click

from gym_ckpt.errors import ConfigError, GymCkptError

USAGE_ERROR = 2
DID_NOT_HAPPEN = 1
INTERRUPTED = 130


class Said(Exception):
    """The error that is its cause has been told already, in whatever form was asked for; `status`: to exit with."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with status {status}")
        self.status = status


def cause_of(error: BaseException) -> BaseException:
    """The one error of a group of one, of such a group, …"""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def ending_of(error: BaseException) -> tuple[int, str]:
    """Exit status and line of an error that left a command."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "interrupted"
    error = cause_of(error)
    status = USAGE_ERROR if isinstance(error, ConfigError) else DID_NOT_HAPPEN
    if isinstance(error, GymCkptError | click.ClickException):
        return status, str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return status, f"{error.filename!s}: {error.strerror} (--debug shows where)"
    return status, f"{type(error).__name__}: {error} (--debug shows where)"
