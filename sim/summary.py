"""What a campaign says while it runs and at its end, for people and for machines.

Must not know how runs are made or where.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from faults.apps import options_of
from faults.catalogue import KINDS
from faults.draw import POINTS
from faults.plan import App
from faults.schedule import SCHEDULES
from faults.situations import SITUATIONS
from gym_ckpt.wire import json
from gym_ckpt.words import counted
from sim.jobs import Figures, Outcome
from sim.rare import RARE
from sim.report import failure_id, violation_json
from sim.run import Verdict

ENOUGH_SEEDS = 300
"""From so many seeds of a mixed profile on, a check that never looked is a failure, and a named point that no run came
by: of those that are asked for here, the rarest is seen by one seed in thirty."""
PLENTY_SEEDS, PLENTY_S = 6000, 1800.0
"""From so many seeds of a mixed profile, or seconds, on, so is a rare state that no run was in, by one in 600, and what
struck in no run: a kind of fault, a situation, a schedule, or any fault at a named point."""
_BLOCKS = ((1, 6), (10, 25), (30, 53), (60, 68), (90, 97))
MUST_LOOK = tuple(f"INV-{number}" for first, last in _BLOCKS for number in range(first, last + 1))
"""Checks of the oracle: all that there are."""
SELDOM = frozenset({"INV-22", "INV-47"})
"""Those that need a stranger who comes at the right moment: one seed in a hundred looks, and only plenty must."""
FAILED_ENOUGH = 10
"""So many failed checkpoints and no published one, with an author's application: nothing was ever restored."""
MIXED = frozenset({"default", "chaos"})
PROGRESS_S = 0.5
PROGRESS_PLAIN_S = 10.0
SHOWN = 10
_BAR = 20


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole campaign. `explained`: one failure of each kind, shrunk, with all its rows, the lowest seed first.

    `number`: in the history; `twice_before`: runs of these sources that earlier campaigns did twice. `apps`: servers of
    the gym that were an author's own.
    """

    profile: str
    bug: str | None
    figures: Figures
    seconds: float
    jobs: int
    explained: tuple[Verdict, ...] = ()
    number: int | None = None
    twice_before: int = 0
    interrupted: bool = False
    trouble: tuple[str, ...] = field(default=())
    """What kept the campaign from keeping its results."""
    apps: tuple[App, ...] = ()

    @property
    def first(self) -> Verdict | None:
        """The failure to show."""
        return self.explained[0] if self.explained else None

    @property
    def never_checked(self) -> list[str]:
        """Checks that looked at nothing in all these seeds."""
        return [name for name in MUST_LOOK if not self.figures.checked[name]]

    @property
    def never_reached(self) -> list[str]:
        """Named points of the code that no seed came by."""
        return sorted(set(POINTS).difference(self.figures.probes))

    @property
    def never_seen(self) -> list[str]:
        """Rare states that no seed was in."""
        return [name for name in RARE if not self.figures.rare[name]]

    @property
    def never_struck(self) -> list[str]:
        """Kinds of faults, situations and schedules that no seed had, and named points where nothing struck."""
        figures = self.figures
        found = [kind for kind in KINDS if not figures.faults[kind]]
        found += [f"situation {each.name}" for each in SITUATIONS if not figures.situations[each.name]]
        found += [f"schedule {name}" for name in SCHEDULES if not figures.schedules[name]]
        return found + [f"a fault at {point}" for point in POINTS if not figures.points[point]]

    @property
    def still_failing(self) -> int:
        """Old failures that fail still."""
        return sum(outcome.job.old for outcome in self.figures.failed)

    @property
    def owed(self) -> list[str]:
        """What a campaign of this size must have come by, and has not: it proves less than it says."""
        if self.apps:
            tried = self.figures.checkpoints
            return ["a published checkpoint"] if tried["failed"] >= FAILED_ENOUGH and not tried["published"] else []
        if self.profile not in MIXED or self.bug is not None:
            return []
        plenty = self.figures.seeds >= PLENTY_SEEDS or self.seconds >= PLENTY_S
        found: list[str] = []
        if plenty or self.figures.seeds >= ENOUGH_SEEDS:
            found += [name for name in self.never_checked if plenty or name not in SELDOM]
            found += self.never_reached
        return found + self.never_seen + self.never_struck if plenty else found

    @property
    def ok(self) -> bool:
        return self.figures.seeds > 0 and not self.figures.failed and not self.owed

    def as_json(self) -> dict[str, object]:
        """For machines."""
        figures = self.figures
        return {
            "profile": self.profile,
            "seeds": figures.seeds,
            "seconds": round(self.seconds, 3),
            "jobs": self.jobs,
            "worlds_per_s": round(figures.seeds / self.seconds, 2) if self.seconds else 0.0,
            "events": figures.events,
            "virtual_s": round(figures.virtual_s, 3),
            "checkpoints": {how: figures.checkpoints[how] for how in ("published", "failed", "restored")},
            "faults": dict(sorted(figures.faults.items())),
            "schedules": dict(sorted(figures.schedules.items())),
            "points": dict(sorted(figures.probes.items())),
            "points_struck": dict(sorted(figures.points.items())),
            "situations": dict(sorted(figures.situations.items())),
            "rare": {name: figures.rare[name] for name in RARE},
            "checked": dict(sorted(figures.checked.items())),
            "never_reached": self.never_reached,
            "never_seen": self.never_seen,
            "never_struck": self.never_struck,
            "never_checked": self.never_checked,
            "owed": self.owed,
            "slowest": [
                {"seed": seed, "seconds": round(seconds, 3), "events": events}
                for seconds, seed, events in figures.slowest
            ],
            "twice": figures.twice,
            "twice_before": self.twice_before,
            "old": {"tried": figures.old, "failing": self.still_failing},
            "failures": [
                {"seed": outcome.job.seed, "old": outcome.job.old, **violation_json(outcome.violation)}
                for outcome in sorted(figures.failed, key=lambda outcome: outcome.job.seed)
                if outcome.violation is not None
            ],
            "replay": None if self.first is None else replay_command(self.first),
            "campaign": self.number,
            "interrupted": self.interrupted,
            "ok": self.ok,
        }

    def words(self) -> str:
        """For people: what was done, what came of it, what it did not test, what it cost."""
        return "\n".join([*self._done(), *self._found(), *self._missed(), *self._cost()])

    def _done(self) -> list[str]:
        figures = self.figures
        processes = counted(self.jobs, "process", "processes")
        lines = [
            f"{counted(figures.seeds, 'seed')} of profile {self.profile} in {self.seconds:.1f} s on {processes}"
            f"{', interrupted' if self.interrupted else ''}: {figures.seeds / max(self.seconds, 1e-9):.1f} worlds/s, "
            f"{counted(figures.events, 'event')}, {figures.virtual_s / 3600:.1f} hours of virtual time"
        ]
        if figures.twice or self.twice_before:
            earlier = f"; {self.twice_before} in earlier campaigns on these sources" if self.twice_before else ""
            lines.append(f"done twice and compared: {figures.twice}{earlier}")
        if len(figures.schedules) > 1:
            lines.append(f"schedules: {_counts(figures.schedules)}")
        lines.append(checkpoints_said(figures.checkpoints))
        lines.append("faults that struck: " + (_counts(figures.faults) or "none"))
        return lines

    def _found(self) -> list[str]:
        figures = self.figures
        lines = []
        if figures.old:
            mended = figures.old - self.still_failing
            lines.append(f"old failures tried first: {figures.old}, now passing: {mended}")
        if figures.failed:
            shown = ", ".join(map(_failed, figures.failed[:SHOWN]))
            more = f" and {len(figures.failed) - SHOWN} more" if len(figures.failed) > SHOWN else ""
            lines.append(f"{len(figures.failed)} failing: {shown}{more}")
            lines += [f"  {each.violations[0].invariant}: {replay_command(each)}" for each in self.explained[1:]]
            lines += [f"  {part}" for each in self.explained for part in _no_part(each, self.apps)]
            own = options_of(self.apps)
            lines += [line for outcome in self._unexplained() for line in _told(outcome, own)]
        else:
            lines.append("nothing found" if not self.owed else "nothing broke, and yet it is no success")
        if self.owed:
            whose = "no checkpoint of the application succeeds" if self.apps else "faults or workloads are missing"
            lines.append(f"a campaign of this size must have come by {', '.join(self.owed)}: {whose}")
        return lines

    def _unexplained(self) -> list[Outcome]:
        """Kinds of failures of which no run could be shown."""
        known = {verdict.violations[0].invariant for verdict in self.explained}
        found = kinds(self.figures.failed, SHOWN)
        return [each for each in found if each.violation is not None and each.violation.invariant not in known]

    def _missed(self) -> list[str]:
        seen, reached = len(RARE) - len(self.never_seen), len(POINTS) - len(self.never_reached)
        figures = self.figures
        lines = [
            f"points reached: {reached} of {len(POINTS)}, struck: {len(figures.points)}; rare states seen: {seen} of "
            f"{len(RARE)}; kinds of faults that struck: {len(figures.faults)} of {len(KINDS)}; situations that came "
            f"about: {len(figures.situations)} of {len(SITUATIONS)}"
        ]
        if self.never_reached:
            lines.append(f"points never reached: {', '.join(self.never_reached)}")
        if self.never_struck and figures.seeds >= ENOUGH_SEEDS:
            lines.append(f"never struck: {', '.join(self.never_struck)}")
        if self.never_seen and figures.seeds >= ENOUGH_SEEDS:
            lines += ["never seen:", *(f"  {RARE[name]} ({name})" for name in self.never_seen)]
        elif self.never_seen:
            lines.append(f"never seen: {', '.join(self.never_seen)}")
        if self.never_checked:
            lines.append(f"checks that never looked: {', '.join(self.never_checked)}")
        return lines

    def _cost(self) -> list[str]:
        slow = ", ".join(
            f"{seed} ({seconds:.1f} s, {counted(events, 'event')})" for seconds, seed, events in self.figures.slowest
        )
        lines = [f"slowest seeds: {slow}"] if slow else []
        if self.number is not None:
            lines.append(f"kept as campaign {self.number} in .gym-ckpt/campaigns.sqlite")
        return [*lines, *self.trouble]


class ProgressLine:
    """How far a campaign is: one line on a terminal, now and then a line elsewhere."""

    def __init__(self, total: int | None, seconds: float | None) -> None:
        self._total = total
        self._seconds = seconds
        self._live = sys.stderr.isatty()
        self._shown = 0.0

    def __call__(self, figures: Figures, seconds: float) -> None:
        if seconds - self._shown < (PROGRESS_S if self._live else PROGRESS_PLAIN_S):
            return
        self._shown = seconds
        text = progress_text(figures, seconds, self._total, self._seconds)
        if self._live:
            text = f"\r\x1b[K{_bar(self._share(figures, seconds))}{text}"
        print(text, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def _share(self, figures: Figures, seconds: float) -> float | None:
        if self._seconds is not None:
            return min(1.0, seconds / self._seconds)
        return figures.seeds / self._total if self._total else None

    def say(self, text: str) -> None:
        """What is done now, in place of how far it is."""
        print(f"\r\x1b[K{text}" if self._live else text, end="" if self._live else "\n", file=sys.stderr, flush=True)
        self._shown = self._shown or PROGRESS_S

    def end(self) -> None:
        if self._live and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress_text(figures: Figures, seconds: float, total: int | None, limit_s: float | None) -> str:
    """One line."""
    parts = [
        counted(figures.seeds, "seed") if total is None else f"{figures.seeds} of {counted(total, 'seed')}",
        f"{figures.seeds / max(seconds, 1e-9):.1f} worlds/s",
        f"{counted(sum(figures.faults.values()), 'fault')}",
        f"{len(figures.rare)}/{len(RARE)} rare states",
        *([f"{figures.twice} twice"] if figures.twice else []),
        *([f"{max(0.0, limit_s - seconds):.0f} s left"] if limit_s is not None else []),
        f"{len(figures.failed)} failing",
    ]
    return ", ".join(parts)


def replay_command(verdict: Verdict) -> str:
    """What brings a kept failure back."""
    return f"gym-ckpt sim replay {failure_id(verdict)}"


def summary_line(summary: Summary) -> bytes:
    """The summary as one line of JSON."""
    return json.dumps(summary.as_json())


def kinds(failed: Sequence[Outcome], most: int) -> list[Outcome]:
    """One of each kind, at most so many, the lowest seed first."""
    chosen: dict[str, Outcome] = {}
    for outcome in sorted(failed, key=lambda outcome: outcome.job.seed):
        if outcome.violation is not None:
            chosen.setdefault(outcome.violation.invariant, outcome)
    return sorted(chosen.values(), key=lambda outcome: outcome.job.seed)[:most]


def _failed(outcome: Outcome) -> str:
    name = "" if outcome.violation is None else outcome.violation.invariant
    return f"{outcome.job.seed} ({name}{', again' if outcome.job.old else ''})"


def _told(outcome: Outcome, own: str) -> list[str]:
    job, broken = outcome.job, outcome.violation
    assert broken is not None, "it has failed"
    bug = f" --bug {job.bug}" if job.bug else ""
    return [
        f"  {broken.invariant}: gym-ckpt sim run --seed {job.seed} --profile {job.profile}{bug}{own}",
        f"    {broken.seen}",
    ]


def checkpoints_said(counts: Mapping[str, int]) -> str:
    """How many came about, and what that leaves unproved: a run without any passes whatever an export does."""
    published, failed, restored = (counts.get(how, 0) for how in ("published", "failed", "restored"))
    said = f"checkpoints: {published} published, {failed} failed, {restored} restored"
    if restored:
        return said
    return f"{said}; this says nothing about {'restore' if published else 'export and restore'}"


def _no_part(verdict: Verdict, apps: Sequence[App]) -> list[str]:
    """Which applications the shrunk plan does without."""
    gone = [app for app in apps if app not in verdict.plan.setup.apps]
    name = verdict.violations[0].invariant
    return [f"{failure_id(verdict)}: {app.factory} plays no part, {name} is broken without it, too" for app in gone]


def _bar(share: float | None) -> str:
    return "" if share is None else f"{'█' * round(share * _BAR):░<{_BAR}} {share:4.0%}  "


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
