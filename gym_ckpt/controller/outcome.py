"""How a run ended, in words and figures.

It must not know how to end one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gym_ckpt.controller.summary import RowFigures
from gym_ckpt.core.collection import Counts

KILLED_STATUS = 143
"""Of a process that SIGTERM ended."""
RESUME = "to go on, restart the servers and run it again with resume_from_cache = true (--resume)"


NOTHING_SAVED: Final = MappingProxyType({"model_calls": 0, "tokens": 0})


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run. `figures`: over all rows of the output, whichever run wrote them.

    `began`: rows could be sent. `finished_before`: rows that had ended when this run began. `continued`, `restarted`:
    rows that this run took from a checkpoint, and rows which earlier runs had begun and it started from input.
    `saved`: work of the continued rows that was not repeated, by name: `model_calls`, `tokens` (generated).
    `checkpoints`: published by this run, oldest first.
    """

    figures: RowFigures = field(default_factory=RowFigures)
    counts: Counts | None = None
    began: bool = False
    finished_before: int = 0
    continued: int = 0
    restarted: int = 0
    saved: Mapping[str, int] = field(default_factory=lambda: dict(NOTHING_SAVED))
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


def saved_words(saved: Mapping[str, int]) -> str:
    """`31 model calls, 4,120 tokens`."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in saved.items())


def lines_of(summary: Summary) -> list[str]:
    """What this run did, for people: where its rows came from, and which checkpoints it left."""
    counts = summary.counts
    assert counts is not None, "a run that began has counted its rows"
    saves = f" ({saved_words(summary.saved)} not repeated)" if summary.continued and any(summary.saved.values()) else ""
    rows = [
        f"{summary.finished_before} finished before" if summary.finished_before else "",
        f"{summary.continued} continued from a checkpoint{saves}" if summary.continued else "",
        f"{summary.restarted} begun by an earlier run and started over from input" if summary.restarted else "",
    ]
    lines = ["; ".join(part for part in rows if part)]
    if summary.checkpoints:
        lines.append(f"{len(summary.checkpoints)} checkpoints published, the last is {summary.checkpoints[-1]}")
    return [f"this run: {line}" if number == 0 else line for number, line in enumerate(lines) if line]
