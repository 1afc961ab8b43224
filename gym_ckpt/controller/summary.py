"""Figures over all rows of a run, read from the output file at its end: the same however often it was interrupted.

It must not know which rows were continued; whoever ran them does.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_ckpt.limits import FIGURES_PIECE_BYTES, LOG_LINE_MAX_BYTES, READ_CHUNK_BYTES
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


class FiguresReader:
    """Reads the whole output file, piece by piece, so that whoever is in a hurry can leave it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines: Iterator[tuple[bytes, bool]] | None = None
        self._values: dict[str, list[float]] = {}
        self._rows = 0

    def more(self) -> Job[RowFigures | None]:
        """Read the next piece: the figures once it was the last, else None.

        Raises (by the job): `OSError`, `ValueError` of a damaged line.
        """

        def job(fs: FileSystem) -> Generator[str, None, RowFigures | None]:
            yield "summary.read"
            if self._lines is None:
                found = chunks_of(fs, self._path, READ_CHUNK_BYTES) if there(fs, self._path) else iter(())
                self._lines = split_lines(found, LOG_LINE_MAX_BYTES)
            size = 0
            for line, whole in self._lines:
                if whole and line.strip():
                    self._rows += 1
                    _add(json.loads(line), self._values)
                size += len(line)
                if size >= FIGURES_PIECE_BYTES:
                    return None
            return RowFigures(self._rows, {name: _metric(self._values[name]) for name in sorted(self._values)})

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
