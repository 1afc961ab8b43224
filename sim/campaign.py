"""Many seeds over all cores, for a number of seeds or of seconds.

Worker processes run blocks of seeds and send back figures; the first failure is run again here, shrunk, shown and
kept. At the end: how many, how fast, which faults struck, which points of the code no seed came by, which checks never
looked.

Must not know what a seed does.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from faults.draw import POINTS
from faults.plan import Plan
from gym_ckpt.wire import json
from sim.oracle import Violation
from sim.report import failure_id, screen, violation_json, write_artefact
from sim.run import Verdict, run_seed
from sim.shrink import shrink

BLOCK_SEEDS = 8
FAILURES_MAX = 25
"""Failing seeds after which a campaign has seen enough."""
ENOUGH_SEEDS = 500
"""From so many seeds of a mixed profile on, a check that never looked is a failure."""
MUST_LOOK = tuple(f"INV-{n}" for n in (1, 2, 3, 5, 11, 14, 17, 30, 31, 33, 40, 48, 49, 51, 60, 63, 65, 66))
"""Checks that a mixed campaign proves nothing without."""
MIXED = frozenset({"default", "chaos"})
PROGRESS_S = 0.5
PROGRESS_PLAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Failed:
    """One failing seed and what broke first."""

    seed: int
    violation: Violation


@dataclass(slots=True)
class Block:
    """The figures of some seeds."""

    seeds: int = 0
    events: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    failed: list[Failed] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.events += verdict.events
        self.virtual_s += verdict.virtual_s
        self.faults.update(verdict.faults)
        self.probes.update(verdict.probes)
        self.checked.update(verdict.checked)
        if verdict.violations:
            self.failed.append(Failed(verdict.seed, verdict.violations[0]))

    def merge(self, other: Block) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.virtual_s += other.virtual_s
        self.faults.update(other.faults)
        self.probes.update(other.probes)
        self.checked.update(other.checked)
        self.failed += other.failed


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole campaign. `first`: the failure of the lowest seed, shrunk, with all its rows."""

    profile: str
    bug: str | None
    figures: Block
    seconds: float
    jobs: int
    first: Verdict | None

    @property
    def never_checked(self) -> list[str]:
        """Checks that looked at nothing in all these seeds."""
        return [name for name in MUST_LOOK if not self.figures.checked[name]]

    @property
    def never_reached(self) -> list[str]:
        """Named points of the code that no seed came by."""
        return sorted(set(POINTS).difference(self.figures.probes))

    @property
    def hollow(self) -> bool:
        """Enough seeds, and still a check that never looked: the campaign proves less than it says."""
        return self.figures.seeds >= ENOUGH_SEEDS and self.profile in MIXED and bool(self.never_checked)

    @property
    def ok(self) -> bool:
        return self.figures.seeds > 0 and not self.figures.failed and not self.hollow

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
            "faults": dict(sorted(figures.faults.items())),
            "never_reached": self.never_reached,
            "never_checked": self.never_checked,
            "failures": [
                {"seed": failed.seed, **violation_json(failed.violation)}
                for failed in sorted(figures.failed, key=lambda failed: failed.seed)
            ],
            "replay": None if self.first is None else replay_command(self.first),
            "ok": self.ok,
        }

    def words(self) -> str:
        """For people."""
        figures = self.figures
        lines = [
            f"{figures.seeds} seeds of profile {self.profile} in {self.seconds:.1f} s on {self.jobs} processes: "
            f"{figures.seeds / max(self.seconds, 1e-9):.1f} worlds/s, {figures.events} events",
            "faults that struck: " + (_counts(figures.faults) or "none"),
        ]
        if self.never_reached:
            lines.append(f"points never reached: {', '.join(self.never_reached)}")
        if self.never_checked:
            lines.append(f"checks that never looked: {', '.join(self.never_checked)}")
        if figures.failed:
            shown = ", ".join(f"{failed.seed} ({failed.violation.invariant})" for failed in figures.failed[:10])
            lines.append(f"{len(figures.failed)} failing: {shown}")
        else:
            lines.append("nothing found" if self.ok else "nothing found, but checks that never looked prove nothing")
        return "\n".join(lines)


def campaign(
    seeds: range,
    profile: str,
    *,
    seconds: float | None = None,
    jobs: int | None = None,
    bug: str | None = None,
    failures_max: int = FAILURES_MAX,
    progress: Callable[[Block, float], None] | None = None,
    explain: bool = True,
) -> Summary:
    """Run `seeds` in order until they, the seconds, or the patience for failures are spent.

    `explain`: run the first failure again, shrunk and with its whole trace.
    """
    began = time.perf_counter()
    jobs = jobs or os.cpu_count() or 1
    figures = Block()
    until = None if seconds is None else began + seconds
    blocks = _blocks(seeds)
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        running: set[Future[Block]] = set()
        while True:
            enough = len(figures.failed) >= failures_max or (until is not None and time.perf_counter() >= until)
            while not enough and len(running) < jobs + 1 and (block := next(blocks, None)) is not None:
                running.add(pool.submit(run_block, block, profile, bug, until))
            if not running:
                break
            done, running = wait(running, timeout=PROGRESS_S, return_when=FIRST_COMPLETED)
            for future in done:
                figures.merge(future.result())
            if progress is not None:
                progress(figures, time.perf_counter() - began)
    spent = time.perf_counter() - began
    figures.failed.sort(key=lambda failed: failed.seed)
    first = explained(figures.failed[0].seed, profile, bug) if figures.failed and explain else None
    return Summary(profile, bug, figures, spent, jobs, first)


def run_block(seeds: range, profile: str, bug: str | None = None, until: float | None = None) -> Block:
    """The figures of these seeds; `until`: on this machine's monotonic clock, when to stop."""
    block = Block()
    for seed in seeds:
        if until is not None and time.perf_counter() >= until:
            break
        block.add(run_seed(seed, profile, bug=bug))
    return block


def explained(seed: int, profile: str, bug: str | None = None) -> Verdict:
    """A failing seed with a plan as small as it gets, and with its whole trace."""
    verdict = run_seed(seed, profile, bug=bug)
    wanted = verdict.violations[0].invariant

    def still_fails(plan: Plan) -> bool:
        found = run_seed(seed, profile, plan=plan, bug=bug).violations
        return bool(found) and found[0].invariant == wanted

    plan = shrink(verdict.plan, still_fails)
    return run_seed(seed, profile, plan=plan, bug=bug, keep_all_rows=True)


def show_failure(verdict: Verdict) -> str:
    """Keep the failure, and give its first screen."""
    write_artefact(verdict)
    return screen(verdict, replay_command(verdict))


def replay_command(verdict: Verdict) -> str:
    """What brings a kept failure back."""
    return f"gym-ckpt sim replay {failure_id(verdict)}"


class ProgressLine:
    """How far a campaign is: one line on a terminal, now and then a line elsewhere."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._live = sys.stderr.isatty()
        self._shown = 0.0

    def __call__(self, figures: Block, seconds: float) -> None:
        if seconds - self._shown < (PROGRESS_S if self._live else PROGRESS_PLAIN_S):
            return
        self._shown = seconds
        of = "" if self._total is None else f"/{self._total}"
        text = (
            f"{figures.seeds}{of} seeds, {figures.seeds / max(seconds, 1e-9):.1f} worlds/s, "
            f"{sum(figures.faults.values())} faults, {len(figures.failed)} failing"
        )
        print(f"\r\x1b[K{text}" if self._live else text, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _blocks(seeds: range) -> Iterator[range]:
    for start in range(seeds.start, seeds.stop, BLOCK_SEEDS):
        yield range(start, min(start + BLOCK_SEEDS, seeds.stop))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def summary_line(summary: Summary) -> bytes:
    """The summary as one line of JSON."""
    return json.dumps(summary.as_json())
