"""What a campaign of some size must have come by, and how it says how far it is."""

from __future__ import annotations

import pytest

from faults.catalogue import KINDS
from faults.draw import POINTS
from faults.plan import Plan, dump
from faults.schedule import SCHEDULES
from faults.situations import SITUATIONS
from sim.jobs import Figures, Job, Outcome
from sim.oracle import Violation
from sim.rare import RARE
from sim.summary import ENOUGH_SEEDS, MUST_LOOK, PLENTY_S, PLENTY_SEEDS, SELDOM, Summary, progress_text
from tools.invariants import checks

FAILED = Outcome(Job(1, "default"), 0.1, Violation("RUN-x", 1.0, "agent", 3, "this", "that"), dump(Plan()))


def figures_of(seeds: int) -> Figures:
    """Everything was come by."""
    figures = Figures(seeds=seeds)
    figures.checked.update(MUST_LOOK)
    figures.probes.update(POINTS)
    figures.rare.update(RARE)
    figures.faults.update(KINDS)
    figures.situations.update(situation.name for situation in SITUATIONS)
    figures.schedules.update(SCHEDULES)
    figures.points.update(POINTS)
    return figures


def test_every_check_of_the_oracle_must_look() -> None:
    assert tuple(f"INV-{number}" for number in sorted(checks())) == MUST_LOOK
    assert set(MUST_LOOK) > SELDOM


@pytest.mark.parametrize(
    ("kind", "name", "seeds", "fails"),
    [
        ("checked", "INV-1", ENOUGH_SEEDS, True),
        ("checked", "INV-1", ENOUGH_SEEDS - 1, False),
        ("checked", "INV-47", ENOUGH_SEEDS, False),
        ("checked", "INV-47", PLENTY_SEEDS, True),
        ("probes", POINTS[0], ENOUGH_SEEDS, True),
        ("probes", POINTS[0], ENOUGH_SEEDS - 1, False),
        ("rare", "restored-twice", ENOUGH_SEEDS, False),
        ("rare", "restored-twice", PLENTY_SEEDS, True),
        ("faults", "half_open", ENOUGH_SEEDS, False),
        ("faults", "half_open", PLENTY_SEEDS, True),
        ("faults", "lose.in_frame", PLENTY_SEEDS, True),
        ("situations", "uncertain", PLENTY_SEEDS, True),
        ("schedules", "one_by_one", PLENTY_SEEDS, True),
        ("points", POINTS[0], ENOUGH_SEEDS, False),
        ("points", POINTS[0], PLENTY_SEEDS, True),
    ],
)
def test_a_mixed_campaign_of_some_size_fails_by_what_it_never_came_by(
    kind: str, name: str, seeds: int, fails: bool
) -> None:
    figures = figures_of(seeds)
    assert Summary("default", None, figures, 1.0, 1).ok
    del getattr(figures, kind)[name]
    summary = Summary("default", None, figures, 1.0, 1)
    name = {"situations": "situation ", "schedules": "schedule ", "points": "a fault at "}.get(kind, "") + name
    assert summary.ok is not fails and summary.owed == [name] * fails
    told = f"a campaign of this size must have come by {name}"
    assert (told in summary.words()) is fails and ("nothing found" in summary.words()) is not fails
    assert Summary("network", None, figures, 1.0, 1).ok, "a profile of one area need not"
    assert not Summary("default", None, figures, PLENTY_S, 1).ok, "half an hour is plenty, too"


def test_the_progress_line_says_how_far_and_what_was_found() -> None:
    figures = Figures(seeds=50, twice=3, failed=[FAILED])
    figures.rare.update(["restored"])
    text = progress_text(figures, 10.0, None, 60.0)
    assert text == f"50 seeds, 5.0 worlds/s, 0 faults, 1/{len(RARE)} rare states, 3 twice, 50 s left, 1 failing"
    assert progress_text(figures, 10.0, 200, None).startswith("50 of 200 seeds, ")
