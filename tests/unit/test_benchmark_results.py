"""What benchmarks report: a spread only where runs were repeated."""

from __future__ import annotations

from benchmarks.bug_power import _result
from benchmarks.result import Result, repeated


def test_one_run_has_no_spread() -> None:
    result = _result({"a": (True, 7, 2.0), "b": (False, 200, 60.0)})
    assert result.ratio == 0.5 and result.runs == 1
    assert set(result.as_json()["spread"].values()) == {None}
    assert result.words().startswith("bug-power: one run") and "spread" not in result.words()


def test_five_runs_have_one() -> None:
    values = iter((1.0, 2.0, 2.0, 2.0, 3.0))
    figures, spread = repeated(lambda: {"x_s": next(values)})
    result = Result("n", figures, {}, 1.0, 5, spread)
    assert result.as_json()["spread"] == {"x_s": 1.0} and "spread 100%" in result.words()
