"""As `gate-overhead`, for a server whose configuration has no `checkpoint` block: tagged against untagged calls."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from benchmarks.gate_overhead import CALLS, once, result
from benchmarks.policy import as_main
from benchmarks.result import Result, repeated


def main(argv: Sequence[str] | None = None) -> int:
    return as_main("gate-off", "tagged calls against untagged ones, checkpointing off", argv, measure)


def measure(calls: int = CALLS) -> Result:
    figures, spread = repeated(lambda: anyio.run(once, calls, False))
    return result("gate-off", figures, spread)
