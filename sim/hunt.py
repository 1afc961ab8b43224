"""The hunt for one planted bug: how soon the ordinary campaign finds it, and by which check.

Must not know what is planted.
"""

from __future__ import annotations

import time

from faults.bugs import BUGS
from sim.campaign import campaign
from sim.jobs import NOT_JUDGED, Job
from sim.run import run_seed


def hunt(name: str, seeds: range, profile: str, jobs: int | None) -> dict[str, object] | None:
    """Run the campaign until it is found; None when Ctrl-C came first.

    `own`: whether the check of the very invariant that the bug breaks sees it in that run, were it to go on.
    """
    began = time.perf_counter()
    summary = campaign(seeds, profile, jobs=jobs, bug=name, failures_max=1, explain=False)
    if summary.interrupted:
        return None
    failed = summary.figures.failed
    by = failed[0].violation.invariant if failed and failed[0].violation else None
    found = by is not None and by not in NOT_JUDGED
    return {
        "bug": name,
        "intent": BUGS[name].intent,
        "ground": BUGS[name].ground,
        "found": found,
        "seed": failed[0].job.seed if failed else None,
        "seeds": summary.figures.seeds,
        "seconds": round(time.perf_counter() - began, 2),
        "invariant": by,
        "own": found and (by == BUGS[name].ground or _sees(name, failed[0].job)),
    }


def _sees(name: str, job: Job) -> bool:
    verdict = run_seed(job.seed, job.profile, bug=name)
    return any(each.invariant == BUGS[name].ground for each in verdict.violations)


def hunted(row: dict[str, object]) -> str:
    if row["found"]:
        how = f"seed {row['seed']}, by {row['invariant']}" + ("" if row["own"] else f", not by {row['ground']}")
    elif row["invariant"] is not None:
        how = f"NOT FOUND: seed {row['seed']} ended with {row['invariant']}"
    else:
        how = f"NOT FOUND, seeds: {row['seeds']}"
    return f"{row['bug']:<34}{how:<40}{row['seconds']:>8} s"
