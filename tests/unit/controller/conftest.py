"""What every test of the controller works at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.controller.bench import Bench
from tests.unit.controller.struck_files import StruckBench, struck_bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def struck(tmp_path: Path) -> StruckBench:
    return struck_bench(tmp_path)
