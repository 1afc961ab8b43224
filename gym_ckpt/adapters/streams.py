"""Standard input, output and error of a command, which may be closed, full, or lead to nobody."""

from __future__ import annotations

import os
import sys


def keep_standard_streams() -> None:
    """Let a command that was started without some of them write them to nowhere: a file that took their number would
    get what is meant for them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def let_go_of_streams() -> None:
    """At the end of a process: what could not be written is lost, and changes its status no more."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
