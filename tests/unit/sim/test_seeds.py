"""Seeds that once failed, with the plans that they drew then: `tests/seeds.json`, to which every mend adds one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.catalogue import kind_of
from faults.plan import load
from gym_ckpt.wire import json
from sim.report import screen
from sim.run import run_seed

KEPT: list[dict[str, Any]] = json.loads((Path(__file__).resolve().parents[2] / "seeds.json").read_bytes())


@pytest.mark.parametrize("kept", KEPT, ids=[f"{each['seed']}: {each['found'][:60]}" for each in KEPT])
def test_a_seed_that_once_failed_passes(kept: dict[str, Any]) -> None:
    plan = load(json.dumps(kept["plan"]))
    verdict = run_seed(kept["seed"], "kept", plan=plan)
    assert verdict.ok, screen(verdict, f"pytest {Path(__file__).name} -k '{kept['seed']}:'")
    idle = {kind_of(fault) for fault in plan.faults} - set(verdict.faults)
    assert verdict.faults and not idle, f"{idle or 'none'} strikes no more: look for another plan that shows the same"
