"""The shape that every benchmark reports in, and how repeated runs become one figure.

Machines are shared and noisy: each figure is the median over at least `RUNS_MIN` runs, beside a reference measured in
the same run; ratios decide, absolute figures are printed beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

RUNS_MIN = 5


@dataclass(frozen=True, slots=True)
class Result:
    """`figures`: by name, the unit in the name. `reference`: what they are set against. `spread`: of each figure,
    (largest - smallest) / median over the runs; None where one run says all there is to say."""

    name: str
    figures: Mapping[str, float]
    reference: Mapping[str, float]
    ratio: float
    runs: int
    spread: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        """One object, rounded to what the measurement is worth."""
        return {
            "name": self.name,
            "figures": {name: _rounded(value) for name, value in self.figures.items()},
            "reference": {name: _rounded(value) for name, value in self.reference.items()},
            "ratio": _rounded(self.ratio),
            "runs": self.runs,
            "spread": {name: None if value is None else round(value, 3) for name, value in self.spread.items()},
        }

    def words(self) -> str:
        """A table for people."""
        lines = [f"{self.name}: {f'median of {self.runs} runs' if self.runs > 1 else 'one run'}"]
        for name, value in self.figures.items():
            spread = self.spread[name]
            lines.append(f"  {name:<28}{_rounded(value):>14}{'' if spread is None else f'   spread {spread:.0%}'}")
        lines += [f"  reference: {name:<17}{_rounded(value):>14}" for name, value in self.reference.items()]
        lines.append(f"  ratio{'':<23}{_rounded(self.ratio):>14}")
        return "\n".join(lines)


def repeated(
    once: Callable[[], Mapping[str, float]], runs: int = RUNS_MIN
) -> tuple[dict[str, float], dict[str, float]]:
    """The median of every figure that `once` gives, and its spread."""
    assert runs >= RUNS_MIN, f"fewer than {RUNS_MIN} runs say nothing"
    seen = [once() for _ in range(runs)]
    medians = {name: statistics.median(run[name] for run in seen) for name in seen[0]}
    spreads = {
        name: (max(run[name] for run in seen) - min(run[name] for run in seen)) / medians[name]
        if medians[name]
        else 0.0
        for name in seen[0]
    }
    return medians, spreads


def _rounded(value: float) -> float:
    return round(value, 1) if value >= 100 else round(value, 4)
