"""Lines for whoever reads them. Where nobody can any more, nothing ends for it: a terminal that went away, a pipe whose
reader has seen enough, a log on a full disk.
"""

from __future__ import annotations

import click


def tell(text: str, *, err: bool = False) -> bool:
    """Print a line on standard output, or error. False where it could not be."""
    try:
        click.echo(text, err=err)
    except (OSError, ValueError):  # the latter: closed
        return False
    return True
