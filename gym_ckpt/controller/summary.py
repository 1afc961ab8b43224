"""Figures over all rows of a run, read from the output file at its end: the same however often it was interrupted.

It must not know which rows were continued; whoever ran them does.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_ckpt.limits import LOG_LINE_MAX_BYTES, READ_CHUNK_BYTES
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.storage.files import chunks_of, there
from gym_ckpt.storage.lines import split_lines
from gym_ckpt.wire import json

IDENTITY = frozenset({"rollout_id", "attempt"})


@dataclass(frozen=True, slots=True)
class Metric:
    """One numeric field of the rows. `mean`, `low`, `high`: over its finite values, None without any."""

    count: int
    not_finite: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class RowFigures:
    """Over every row of the output file; `metrics` by field name, sorted."""

    rows: int = 0
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def figures_of(path: str) -> Job[RowFigures]:
    """Read the whole output file. Raises (by the job) `OSError`, `ValueError` of a damaged line."""

    def job(fs: FileSystem) -> Generator[str, None, RowFigures]:
        yield "summary.read"
        values: dict[str, list[float]] = {}
        rows = 0
        if there(fs, path):
            for line, whole in split_lines(chunks_of(fs, path, READ_CHUNK_BYTES), LOG_LINE_MAX_BYTES):
                if whole and line.strip():
                    rows += 1
                    _add(json.loads(line), values)
        return RowFigures(rows, {name: _metric(values[name]) for name in sorted(values)})

    return job


def _add(row: dict[str, Any], values: dict[str, list[float]]) -> None:
    for name, value in row.items():
        if name not in IDENTITY and type(value) in (int, float):
            try:
                number = float(value)
            except OverflowError:
                number = math.copysign(math.inf, value)
            values.setdefault(name, []).append(number)


def _metric(values: list[float]) -> Metric:
    finite = [value for value in values if math.isfinite(value)]
    # fsum is exact, so that the order in which rows finished does not show.
    mean = math.fsum(value / len(finite) for value in finite) if finite else None
    return Metric(
        count=len(values),
        not_finite=len(values) - len(finite),
        mean=mean,
        low=min(finite, default=None),
        high=max(finite, default=None),
    )
