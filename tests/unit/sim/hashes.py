"""Prints the hash of every seed of a range, one line: run in a process of its own by `test_determinism_proof`."""

from __future__ import annotations

import sys

from sim.run import run_seed


def main() -> None:
    first, last, profile = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for seed in range(first, last):
        verdict = run_seed(seed, profile)
        print(seed, verdict.hash, verdict.events, len(verdict.violations))


if __name__ == "__main__":
    main()
