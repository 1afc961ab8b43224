"""Output files that a crash, a disk or a row has spoilt, over whole runs of the collector (scenarios 20, 60, 63)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ckpt.ports import Reply
from gym_ckpt.wire import json as lossless
from tests.unit.controller.bench import Bench, gym_of
from tests.unit.controller.fake_gym import FakeGym, thread_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, rows=3)


class Saying(FakeGym):
    """A gym whose episodes end with the bytes of `results`, by rollout."""

    def __init__(self, results: dict[str, bytes]) -> None:
        super().__init__(thread_disk(), steps=1)
        self.results = results

    async def request(self, method: str, url: str, **rest: Any) -> Reply:
        reply = await super().request(method, url, **rest)
        said = self.results.get(json.loads(rest["body"])["episode_id"]["rollout_id"])
        return reply if said is None else Reply(200, (), b'{"status":"finished","result":%s}' % said)


async def test_an_output_cut_at_every_byte_with_and_without_its_companions(bench: Bench) -> None:
    await bench.run(gym_of(steps=1))
    whole = bench.output.read_bytes()
    lines = whole.splitlines(keepends=True)
    start = len(whole) - len(lines[-1])
    companions = [bench.folder / "out_failures.jsonl", bench.folder / "out.jsonl.lock"]
    for cut in range(start, len(whole)):
        bench.output.write_bytes(whole[:cut])
        for path in companions if cut % 2 else ():
            path.unlink(missing_ok=True)
        if cut % 3 == 0:
            (bench.directory / "dispatched.jsonl").unlink()
        await bench.run(gym_of(steps=1), resume_from_cache=True)
        bench.check_whole()
        again = bench.output.read_bytes()
        assert again.startswith(whole[:start]), "rows that were whole are where they were"


async def test_numbers_that_json_libraries_spoil_come_out_as_they_went_in(bench: Bench) -> None:
    numbers = (
        b'{"reward":NaN,"up":Infinity,"down":-Infinity,"a":9007199254740993,"b":9223372036854775808,'
        b'"c":18446744073709551617,"logprobs":[-1e-320,NaN,0.1]}'
    )
    outcome = await bench.run(Saying({"row-1": numbers}))
    assert outcome.exit_code == 0
    (line,) = [line for line in bench.output.read_bytes().splitlines() if b'"row-1"' in line]
    assert line.endswith(numbers[1:]), "digit for digit"
    assert outcome.summary.figures is not None
    metrics = outcome.summary.figures.metrics
    assert (metrics["a"].high, metrics["reward"].not_finite, metrics["up"].mean) == (9007199254740993.0, 1, None)
    assert lossless.loads(line)["c"] == 2**64 + 1


@pytest.mark.parametrize(
    "result",
    [b'{"reward":1' + b"0" * 5000 + b"}", b"[1]", b'{"deep":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"reward":'],
    ids=["an integer of 5000 digits", "no object", "nested too deep", "cut short"],
)
async def test_a_row_that_cannot_be_written_is_a_failure_and_the_others_are_rows(bench: Bench, result: bytes) -> None:
    outcome = await bench.run(Saying({"row-1": result}), max_attempts=2)
    assert outcome.exit_code == 1 and "1 failed" in outcome.message
    assert sorted(row["rollout_id"] for row in bench.written()) == ["row-0", "row-2"]
    assert [(row["rollout_id"], row["final"]) for row in bench.failures()] == [("row-1", False), ("row-1", True)]


async def test_a_row_longer_than_a_restart_reads_is_a_failure_and_the_output_stays_readable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("controller.rows", "controller.summary", "storage.appendlog"):
        monkeypatch.setattr(f"gym_ckpt.{module}.LOG_LINE_MAX_BYTES", 100_000)
    edge = {size: json.dumps({"text": "x" * (size - len('{"rollout_id":"row-1","attempt":0,"text":""}'))}).encode()
            for size in (100_000, 100_001)}  # fmt: skip
    outcome = await bench.run(Saying({"row-1": edge[100_000], "row-2": edge[100_001]}), max_attempts=1)
    assert outcome.exit_code == 1 and max(map(len, bench.output.read_bytes().splitlines())) == 100_000
    (failed,) = bench.failures()
    assert failed["rollout_id"] == "row-2" and "its row has 100,001 bytes, and 100,000 are allowed" in failed["reason"]
    again = await bench.run(gym_of(), resume_from_cache=True)
    assert again.summary.figures is not None and again.summary.figures.rows == 2


async def test_a_huge_row_is_a_row(bench: Bench) -> None:
    huge = json.dumps({"reward": 1.0, "text": "x" * (8 * 1024 * 1024)}).encode()
    outcome = await bench.run(Saying({"row-1": huge}))
    assert outcome.exit_code == 0 and len(bench.written()) == 3
    figures = (await bench.run(gym_of(), resume_from_cache=True)).summary.figures
    assert figures is not None and figures.rows == 3
