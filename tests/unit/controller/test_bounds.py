"""Bounds of a run: reasons are cut, and thousands of attempts are retired and forgotten in parts, none left out."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ckpt.controller import housekeeping
from gym_ckpt.limits import REASON_MAX_CHARS, REASON_SAID_CHARS
from gym_ckpt.ports import Headers, Reply
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from tests.unit.controller.bench import Bench, gym_of, slow_gym
from tests.unit.controller.fake_gym import FakeGym, thread_disk

pytestmark = pytest.mark.anyio


class Wordy(FakeGym):
    """Its first row fails with a reason of its own."""

    reply = Reply(200, (), b"")

    async def request(
        self, method: str, url: str, *, headers: Headers = (), body: bytes = b"", timeout_s: float | None = None
    ) -> Reply:
        if json.loads(body)["episode_id"]["rollout_id"] == "row-0":
            return self.reply
        return await super().request(method, url, headers=headers, body=body, timeout_s=timeout_s)


def failed(reason: str) -> Reply:
    return Reply(200, (), json.dumps({"status": "failed", "reason": reason}))


@pytest.mark.parametrize("length", [REASON_MAX_CHARS, REASON_MAX_CHARS + 1, 100_000])
@pytest.mark.parametrize("typed", [False, True])
async def test_a_failure_row_says_so_much_of_its_reason_and_a_line_of_progress_less(
    bench: Bench, length: int, typed: bool
) -> None:
    """`REASON_MAX_CHARS`, `REASON_SAID_CHARS`: an agent that quotes a whole page does not fill files and terminals."""
    gym = Wordy(thread_disk())
    text = "because " + "\u00e9" * (length - 8)
    error = json.dumps({"error": {"code": "invalid_request", "detail": text}})
    gym.reply = Reply(400, (), error) if typed else failed(text)
    outcome = await bench.run(gym, max_attempts=1)
    assert outcome.exit_code == 1 and len(bench.written()) == bench.rows - 1, "the other rows are whole"
    (row,) = bench.failures()
    said = f"HTTP 400 invalid_request: {text}" if typed else text
    assert row["reason"] == said[:REASON_MAX_CHARS]
    (line,) = [each for each in bench.recorder.lines if "because" in each and "given up" in each]
    assert said[:REASON_SAID_CHARS] in line and len(line) < REASON_SAID_CHARS + 60


async def test_what_is_retired_and_forgotten_goes_in_parts_and_none_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`RETIRE_BATCH`, `FORGET_BATCH`: after the crash of a run with more rows in flight than one call names."""
    monkeypatch.setattr(housekeeping, "RETIRE_BATCH", 4)
    monkeypatch.setattr(housekeeping, "FORGET_BATCH", 3)
    bench = Bench(bench.folder, rows=10)
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, gym.busy.wait, concurrency=bench.rows)
    gym = gym_of()
    outcome = await bench.run(gym, resume_from_cache=True, concurrency=bench.rows)
    assert outcome.exit_code == 0
    bench.check_whole()
    retired: list[Any] = gym.asked("retire")
    assert sorted(each for batch in retired for each in batch) == [EpisodeId(f"row-{n}") for n in range(bench.rows)]
    assert [len(batch) for batch in retired] == [4, 4, 2]
    assert sorted(gym.forgotten) == [f"row-{n}" for n in range(bench.rows)]
    assert max(map(len, gym.asked("forget"))) <= 4


async def test_what_has_ended_is_forgotten_in_parts_while_the_run_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-39: a run of days leaves no server with the books of all its rows until its end."""
    monkeypatch.setattr(housekeeping, "FORGET_BATCH", 2)
    gym = gym_of()
    gym.failing = {"row-0": ["hang"]}
    await bench.crash(gym, lambda: bench.until(lambda: len(gym.forgotten) == bench.rows - 2))
    assert [len(batch) for batch in gym.asked("forget")] == [2, 2], "five have ended, and the fifth waits for another"
