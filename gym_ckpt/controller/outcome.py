"""How a run ended, in words and figures.

It must not know how to end one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gym_ckpt.controller.summary import RowFigures
from gym_ckpt.core.collection import Counts

KILLED_STATUS = 143
"""Of a process that SIGTERM ended."""
RESUME = "to go on, restart the servers and run it again with resume_from_cache = true (--resume)"


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run. `figures`: over all rows of the output, whichever run wrote them.

    `continued`, `restarted`: rows that this run took from the checkpoint, and rows of earlier runs that it started from
    input again. `checkpoints`: published by this run, oldest first.
    """

    figures: RowFigures = field(default_factory=RowFigures)
    counts: Counts | None = None
    continued: int = 0
    restarted: int = 0
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`exit_code`: 0 when all rows finished or the run stopped as asked; 143 after a second SIGTERM; else 1."""

    exit_code: int
    message: str
    summary: Summary = field(default_factory=Summary)


def before_dispatch(checkpoint_id: str | None) -> Outcome:
    """SIGTERM came before anything was sent: there was nothing to save."""
    kept = f"checkpoint {checkpoint_id} is still in force; " if checkpoint_id else ""
    return Outcome(0, f"stopped before any row was sent; {kept}{RESUME}")


def killed(checkpoint_id: str | None) -> Outcome:
    """A second SIGTERM."""
    kept = f"checkpoint {checkpoint_id} is in force; " if checkpoint_id else "there is no checkpoint; "
    return Outcome(KILLED_STATUS, f"stopped at once by a second SIGTERM, without a checkpoint; {kept}{RESUME}")


def stopped(counts: Counts, checkpoint_id: str | None, failure: str | None, nothing_to_save: bool) -> Outcome:
    """A stop that was asked for. `failure`: why it has no checkpoint of its own."""
    rows = f"{counts.finished} of {counts.rows} rows finished"
    kept = f"checkpoint {checkpoint_id} is in force" if checkpoint_id else "there is no checkpoint"
    if failure is None or nothing_to_save:
        why = f" ({failure})" if failure else ""
        return Outcome(0, f"stopped{why}: {rows}, {kept}; {RESUME}")
    lost = "rows in flight since then" if checkpoint_id else "rows in flight"
    return Outcome(1, f"stopped without a checkpoint ({failure}): {rows}, {kept}, {lost} start from input; {RESUME}")


def complete(counts: Counts, failures: str) -> Outcome:
    """Every row ended."""
    if counts.failed:
        return Outcome(1, f"{counts.finished} of {counts.rows} rows finished, {counts.failed} failed: see {failures}")
    return Outcome(0, f"all {counts.rows} rows finished")
