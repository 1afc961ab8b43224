"""Brings a kept failure back, event for event where the code is the same, and says at once where it is not.

Must not know how failures are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.plan import load
from gym_ckpt.errors import ConfigError
from gym_ckpt.wire import json
from sim.report import FAILURES
from sim.run import Verdict, run_seed
from sim.sources import versions


@dataclass(frozen=True, slots=True)
class Recorded:
    """A kept failure. `changed`: what is not as it was then, so that the run may go another way."""

    seed: int
    profile: str
    bug: str | None
    hash: str
    plan: bytes
    changed: tuple[str, ...]


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
    return Recorded(about["seed"], about["profile"], about.get("bug"), about["hash"], plan, _changed(about))


def _changed(about: dict[str, Any]) -> tuple[str, ...]:
    now, then = versions(), about.get("versions", {})
    return tuple(
        "the sources have changed" if name == "sources" else f"{name} is {now[name]} and was {then.get(name)}"
        for name in now
        if now[name] != then.get(name)
    )


def replay(record: Recorded) -> Verdict:
    """Run a kept failure's plan again."""
    return run_seed(record.seed, record.profile, plan=load(record.plan), bug=record.bug, keep_all_rows=True)


def replay_file(seed: int, plan: Path) -> Verdict:
    """Run the plan of a file under a seed. Raises `ConfigError`."""
    try:
        data = plan.read_bytes()
    except OSError as error:
        raise ConfigError(f"{plan} cannot be read: {error.strerror}") from None
    return run_seed(seed, "plan", plan=load(data), keep_all_rows=True)
