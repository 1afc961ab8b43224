"""How a run ended, in words and figures.

It must not know how to end one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from gym_ckpt.controller.summary import RowFigures
from gym_ckpt.core.collection import Counts
from gym_ckpt.words import counted

KILLED_STATUS = 143
"""Of a process that SIGTERM ended."""
INTERRUPTED_STATUS = 130
"""Of a process that Ctrl-C ended."""
RESUME = "to go on, restart the servers and run it again with resume_from_cache = true (--resume)"
AGAIN = "to go on, run it again with resume_from_cache = true (--resume)"
"""... where the servers have done nothing yet that they could not do again."""


NOTHING_SAVED: Final = MappingProxyType({"model_calls": 0, "tokens": 0})


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run. `figures`: over all rows of the output, whichever run wrote them; None when none were read.

    `complete`: every row has ended, and is in a file. `began`: rows could be sent. `finished_before`: rows that had
    ended when this run began. `restored`: rows that this run took from a checkpoint; `continued`: those of them whose
    attempt was not lost or failed since. `lost`: rows of which this run lost an attempt; `begun_again`: those of them
    that it has sent again, from input, since. `restarted`: rows which earlier runs had sent and it has, from input.
    `unwritten`: rows that count as finished, and are not in the output: they run again.
    `saved`: work of the restored rows that was not repeated, by name: `model_calls`, `tokens` (generated); an upper
    bound where some, and nothing where all of them were not continued.
    `checkpoints`: published by this run, oldest first.
    """

    figures: RowFigures | None = None
    counts: Counts | None = None
    complete: bool = False
    began: bool = False
    finished_before: int = 0
    restored: int = 0
    continued: int = 0
    lost: int = 0
    begun_again: int = 0
    restarted: int = 0
    unwritten: int = 0
    saved: Mapping[str, int] = field(default_factory=lambda: dict(NOTHING_SAVED))
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`exit_code`: 0 when all rows finished or the run stopped as asked; 143 after a second SIGTERM, 130 after Ctrl-C;
    else 1. `later`: the same command may work later, though nobody mends anything of the run."""

    exit_code: int
    message: str
    summary: Summary = field(default_factory=Summary)
    later: bool = False


def before_dispatch(checkpoint_id: str | None, *, restored: bool) -> Outcome:
    """SIGTERM came before anything was sent: nothing had to be saved. `restored`: servers were told to restore."""
    kept = f"checkpoint {checkpoint_id} is still in force; " if checkpoint_id else ""
    return Outcome(0, f"stopped before any row was sent; {kept}{RESUME if restored else AGAIN}")


def cut_short(
    counts: Counts | None, checkpoint_id: str | None, *, interrupted: bool, restored: bool, unwritten: int = 0
) -> Outcome:
    """A second SIGTERM, or Ctrl-C (`interrupted`). `counts`: None when no row could be sent yet; `restored`: as for
    `before_dispatch`; `unwritten`: of the finished rows, those that were not in the output yet."""
    status, how = (
        (INTERRUPTED_STATUS, "interrupted") if interrupted else (KILLED_STATUS, "stopped at once by a second SIGTERM")
    )
    more = f", {unwritten:,} more not written yet, which run again" if unwritten else ""
    rows = f": {_finished(counts, unwritten)}{more}" if counts is not None else " before any row was sent"
    then = AGAIN if counts is None and not restored else RESUME
    return Outcome(status, f"{how}{rows}, {_kept(checkpoint_id)}; {then}")


def stopped(counts: Counts, checkpoint_id: str | None, failure: str | None, nothing_to_save: bool) -> Outcome:
    """A stop that was asked for. `failure`: why it has no checkpoint of its own."""
    rows, kept = _finished(counts), _kept(checkpoint_id)
    if failure is None or nothing_to_save:
        why = f" ({failure})" if failure else ""
        return Outcome(0, f"stopped{why}: {rows}, {kept}; {RESUME}")
    lost = "rows in flight since then" if checkpoint_id else "rows in flight"
    return Outcome(1, f"stopped without a checkpoint ({failure}): {rows}, {kept}, {lost} start from input; {RESUME}")


def unwritten(counts: Counts, checkpoint_id: str | None, output: str, why: str, left: int) -> Outcome:
    """The end came while `left` finished rows could not be written: they run again."""
    rows, kept = f"{_finished(counts, left)} and written", _kept(checkpoint_id)
    lacks = f"{left:,} more could not be, to {output}" if left else "failures could not be"
    return Outcome(1, f"{rows}; {lacks} ({why}), and run again; {kept}; {RESUME}")


def all_ended(counts: Counts, failures: str, *, resumable: bool) -> Outcome:
    """Every row ended. `resumable`: the run has a checkpoint_dir."""
    if counts.failed:
        again = "; to try them anew, remove that file and run this again with --resume" if resumable else ""
        return Outcome(1, f"{_finished(counts)}, {counts.failed} failed: see {failures}{again}")
    return Outcome(0, f"all {counted(counts.rows, 'row')} finished")


def changed(outcome: Outcome, counts: Counts, rows: int, output: str) -> Outcome:
    """The output does not hold what was written to it, however the run ended."""
    held = f"{output} holds {counted(rows, 'row')}, and {counts.finished} have finished: it was changed meanwhile"
    then = "run this again with --resume, and those that it lacks run again" if counts.finished > rows else "restore it"
    return replace(outcome, exit_code=outcome.exit_code or 1, message=f"{outcome.message}; but {held}; {then}")


def _finished(counts: Counts, unwritten: int = 0) -> str:
    return f"{counts.finished - unwritten:,} of {counted(counts.rows, 'row')} finished"


def _kept(checkpoint_id: str | None) -> str:
    return f"checkpoint {checkpoint_id} is in force" if checkpoint_id else "there is no checkpoint"


def saved_words(saved: Mapping[str, int]) -> str:
    """`31 model calls, 4,120 tokens`."""
    return ", ".join(counted(count, name.replace("_", " ").removesuffix("s")) for name, count in saved.items())


def lines_of(summary: Summary) -> list[str]:
    """What this run did, for people: where its rows came from, and which checkpoints it left."""
    counts = summary.counts
    assert counts is not None, "a run that began has counted its rows"
    at_most = "" if summary.continued == summary.restored else "at most "
    saves = f" ({at_most}{saved_words(summary.saved)} not repeated)" if any(summary.saved.values()) else ""
    gone = summary.restored - summary.continued
    waiting = summary.lost - summary.begun_again
    rows = [
        f"{summary.finished_before} ended before" if summary.finished_before else "",
        f"{summary.continued} continued from a checkpoint{saves}" if summary.continued else "",
        f"{gone} restored from a checkpoint, but lost or failed since" if gone else "",
        f"{summary.begun_again} lost and begun again from input" if summary.begun_again else "",
        f"{waiting} lost and not begun again{_by_the_next(summary)}" if waiting else "",
        f"{summary.restarted} sent by an earlier run and begun from input" if summary.restarted else "",
    ]
    lines = ["; ".join(part for part in rows if part)]
    if summary.checkpoints:
        published = counted(len(summary.checkpoints), "checkpoint")
        lines.append(f"{published} published, the last is {summary.checkpoints[-1]}")
    return [f"this run: {line}" if number == 0 else line for number, line in enumerate(lines) if line]


def _by_the_next(summary: Summary) -> str:
    return "" if summary.complete else " (the next start does, from the checkpoint in force if it has them, or input)"
