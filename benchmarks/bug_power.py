"""How many planted bugs the ordinary campaign finds, after how many seeds and how long on one core.

Each is planted alone, and seeds of the default profile run from 0 on until one breaks. `--seeds` is where a hunt ends,
`--seconds` too, of CPU time. One run each: what a seed does is certain, only the seconds vary. The ratio is found to
planted. `gym-ckpt sim bugs` tells the same bug by bug, on all cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from benchmarks.result import Result
from faults.bugs import BUGS
from gym_ckpt.wire import json
from sim.reference import reference
from sim.run import run_seed
from sim.workload import WORKLOADS

SEEDS = 200
SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the last line is one JSON object with `--json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bug-power", description=__doc__)
    parser.add_argument("--bug", action="append", choices=tuple(BUGS), help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    for number in range(WORKLOADS):
        reference(number)
    hunts = {name: _hunt(name, options.seeds, options.seconds) for name in options.bug or BUGS}
    result = _result(hunts)
    print(json.dumps(result.as_json()).decode() if options.json else result.words())
    if not options.json and (missed := [name for name, (found, _, _) in hunts.items() if not found]):
        print(f"  not found: {', '.join(missed)}")
    return 0


def _hunt(bug: str, seeds: int, seconds: float) -> tuple[bool, int, float]:
    """Whether it was found, in how many seeds and seconds."""
    began = time.process_time()
    for seed in range(seeds):
        if not run_seed(seed, bug=bug, brief=True).ok:
            return True, seed + 1, time.process_time() - began
        if time.process_time() - began > seconds:
            return False, seed + 1, seconds
    return False, seeds, time.process_time() - began


def _result(hunts: dict[str, tuple[bool, int, float]]) -> Result:
    found = [(seeds, seconds) for hit, seeds, seconds in hunts.values() if hit]
    figures = {
        "found": float(len(found)),
        "median_seeds": statistics.median(seeds for seeds, _ in found) if found else 0.0,
        "most_seeds": float(max((seeds for seeds, _ in found), default=0)),
        "median_s": statistics.median(seconds for _, seconds in found) if found else 0.0,
        "most_s": max((seconds for _, seconds in found), default=0.0),
    }
    planted = float(len(hunts))
    return Result("bug-power", figures, {"planted": planted}, len(found) / planted, 1, dict.fromkeys(figures))
