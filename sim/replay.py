"""Brings a kept failure back, event for event where the code is the same, and says at once where it is not.

Must not know how failures are found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.plan import Plan, load
from gym_ckpt.errors import ConfigError
from gym_ckpt.wire import json
from gym_ckpt.words import counted
from sim.report import EVENTS_SHOWN, FAILURES, line_of
from sim.run import Verdict, run_seed
from sim.sources import digests, versions
from sim.stop import Until, stopping
from sim.twin import TWICE, compared
from sim.world import World

FILES_NAMED = 6
"""Changed files that are named; of more, only how many."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run to play again. `hash`: of its trace then, None for a plan that never ran.

    `changed`: what is not as it was then, so that the run may go another way. `twice`: the failure was that it went
    another way in a second process.
    """

    seed: int
    profile: str
    plan: Plan
    bug: str | None = None
    hash: str | None = None
    changed: tuple[str, ...] = ()
    twice: bool = False


def newest(directory: Path = FAILURES) -> str:
    """The id of the failure that was kept last. Raises `ConfigError`."""
    kept = [*directory.glob("*/failure.json")]
    if not kept:
        raise ConfigError(f"there is no kept failure in {directory}; name one, or give both --seed and --plan")
    return max(kept, key=lambda file: file.stat().st_mtime_ns).parent.name


def recorded(failure: str, directory: Path = FAILURES) -> Recorded:
    """The kept failure with this id, or in this directory. Raises `ConfigError`."""
    place = Path(failure) if (Path(failure) / "failure.json").is_file() else directory / failure
    try:
        about = json.loads((place / "failure.json").read_bytes())
        plan = (place / "plan.json").read_bytes()
    except OSError as error:
        known = sorted(each.name for each in directory.iterdir()) if directory.is_dir() else []
        raise ConfigError(
            f"there is no kept failure {failure!r} ({error.strerror}); kept: {', '.join(known) or 'none'}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{place}/failure.json is damaged: {error}") from None
    twice = any(each["invariant"] == TWICE for each in about["violations"])
    seed, profile, bug = about["seed"], about["profile"], about.get("bug")
    loaded = load(plan)
    return Recorded(seed, profile, loaded, bug, about["hash"], _changed(about, loaded), twice)


def of_file(seed: int, plan: Path) -> Recorded:
    """The plan of a file, under a seed. Raises `ConfigError`."""
    try:
        data = plan.read_bytes()
    except OSError as error:
        raise ConfigError(f"{plan} cannot be read: {error.strerror}") from None
    return Recorded(seed, "plan", load(data))


def replay(record: Recorded, watch: Callable[[World], None] | None = None) -> Verdict:
    """Run it again."""
    verdict = run_seed(record.seed, record.profile, plan=record.plan, bug=record.bug, keep_all_rows=True, watch=watch)
    return compared(verdict) if record.twice and verdict.ok and watch is None else verdict


def replay_until(record: Recorded, until: Until) -> Verdict:
    """Run it again, and no further: with the rows and the violations up to there."""
    whole = replay(record, stopping(until))
    count = until.count(whole.rows, 1)
    broken = tuple(each for each in whole.violations if 0 < each.event_index <= count)
    return replace(whole, rows=whole.rows[:count], events=count, violations=broken)


def refusal(record: Recorded) -> str | None:
    """Why this cannot be the same run event for event, for a person; None where it can."""
    if not record.changed:
        return None
    changed = "; ".join(record.changed)
    return f"this cannot be the run that was kept: {changed}. Its plan runs all the same, and may go another way"


def short_of(verdict: Verdict, until: Until) -> str | None:
    """Why a run that was to stop there did not, for a person; None where it did."""
    over = verdict.events < until.event if until.event is not None else verdict.virtual_s <= (until.t or 0.0)
    events = counted(verdict.events, "event")
    return f"the run has only {events}, and is over before {until.words()}" if over else None


def where_stopped(verdict: Verdict, until: Until) -> str:
    """In words; nothing where the run was over before that."""
    return f"stopped after {until.words()}" if short_of(verdict, until) is None else ""


def stopped(verdict: Verdict, until: Until) -> str:
    """What had happened by then, for a person."""
    t = verdict.rows[-1].t if verdict.rows else 0.0
    where = where_stopped(verdict, until) or "the run is over"
    lines = [f"{where}: {counted(verdict.events, 'event')}, {t:.6f} virtual seconds"]
    lines += [f"  {each.invariant} broken at event {each.event_index}: {each.seen}" for each in verdict.violations]
    lines += ["", f"the last {EVENTS_SHOWN} events:", *(f"  {line_of(row)}" for row in verdict.rows[-EVENTS_SHOWN:])]
    return "\n".join(lines)


def _changed(about: dict[str, Any], plan: Plan) -> tuple[str, ...]:
    now, then = versions(plan.setup.apps), about.get("versions", {})
    return tuple(
        _files_changed(about.get("files", {}))
        if name == "sources"
        else f"{name} is {now[name]} and was {then.get(name)}"
        for name in now
        if now[name] != then.get(name)
    )


def _files_changed(then: dict[str, str]) -> str:
    now = digests()
    names = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    if not then or len(names) > FILES_NAMED:
        return f"changed since: {counted(len(names), 'source file')}" if then else "the sources have changed"
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} changed"
