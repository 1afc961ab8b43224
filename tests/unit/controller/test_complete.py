"""When a run is complete, and what a complete one still needs."""

from __future__ import annotations

import json
import shutil

import anyio
import pytest

from gym_ckpt.controller.outcome import lines_of
from gym_ckpt.errors import InvalidCheckpointState, NotCheckpointable
from gym_ckpt.limits import FORGET_BATCH
from tests.unit.controller.bench import Bench, gym_of, slow_gym, stop_in_the_middle
from tests.unit.controller.fake_gym import FakeGym
from tests.unit.controller.struck_files import StruckBench

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("how", ["SIGTERM", "SIGTERM twice"])
async def test_rows_that_have_ended_and_are_on_no_disk_do_not_make_a_run_complete(
    struck: StruckBench, how: str
) -> None:
    """A batch system that goes by `complete` would take the job for done, and they would be missing for good."""
    gym = gym_of(steps=1)
    struck.strikes.full = "out.jsonl"

    async def script() -> None:
        await struck.until(lambda: any("finished rows wait in memory" in line for line in struck.recorder.lines))
        await struck.until(lambda: len(gym.runs) == struck.rows and not gym.done)
        for _ in how.split():
            struck.signals.send("SIGTERM")

    outcome = await struck.with_signals(gym, script, one_sigterm_s=0.0)
    counts = outcome.summary.counts
    assert counts is not None and counts.finished == counts.rows == struck.rows
    assert outcome.exit_code == (1 if how == "SIGTERM" else 143) and not outcome.summary.complete
    waits = [line for line in struck.recorder.lines if "finished rows wait in memory (" in line]
    assert len(waits) == 1 and "make room within 10 minutes" in waits[0] and "forgotten" not in text_of(struck)
    if how == "SIGTERM":
        assert f"; {struck.rows} more could not be, to {struck.output} (" in outcome.message
    struck.strikes.full = None
    assert (await struck.run(gym_of(), resume_from_cache=True)).summary.complete
    struck.check_whole()


def down() -> FakeGym:
    """Servers of which none is there."""
    gym = gym_of()
    asked = ("anybody", "discover", "forget", "retire")
    gym.faults = {what: [NotCheckpointable("no status from env")] * 1000 for what in asked}
    return gym


def text_of(bench: Bench) -> str:
    return "\n".join(bench.recorder.lines)


async def test_a_complete_run_needs_no_server(bench: Bench) -> None:
    bench = Bench(bench.folder, rows=2 * FORGET_BATCH)
    first = await bench.run(gym_of(steps=1))
    rows = bench.output.read_bytes()
    gym = down()
    again = await bench.run(gym, resume_from_cache=True)
    assert (again.exit_code, again.message) == (0, f"all {bench.rows} rows finished") == (0, first.message)
    assert again.summary.complete and again.summary.figures == first.summary.figures
    assert lines_of(again.summary) == [f"this run: {bench.rows} ended before"]
    assert [what for what, _ in gym.log] == ["anybody"], "they are asked once, and not waited for"
    assert "no server answers: none is needed, or told to forget" in text_of(bench)
    assert bench.output.read_bytes() == rows


async def test_the_servers_of_a_complete_run_forget_it_if_they_are_there(bench: Bench) -> None:
    await bench.run(gym_of())
    gym = gym_of()
    assert (await bench.run(gym, resume_from_cache=True)).exit_code == 0
    assert sorted(gym.forgotten) == [f"row-{n}" for n in range(bench.rows)]
    assert "no server answers" not in text_of(bench)


async def test_servers_that_are_silent_hold_a_complete_run_up_for_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_ckpt.controller.housekeeping.OVER_DISCOVERY_S", 0.01)
    await bench.run(gym_of())
    gym = gym_of()
    monkeypatch.setattr(gym, "anybody", lambda budget_s: anyio.sleep_forever())
    assert (await bench.run(gym, resume_from_cache=True)).exit_code == 0
    assert "no server answers" in text_of(bench)


async def test_a_run_that_is_complete_but_for_one_row_waits_for_its_servers(bench: Bench) -> None:
    await bench.run(gym_of())
    bench.output.write_bytes(bench.output.read_bytes()[:-1])  # torn: it may be whole, and it may not
    assert (await bench.run(down(), resume_from_cache=True)).exit_code == 0, "it is"
    bench.output.write_bytes(bench.output.read_bytes()[:-2])
    finished = json.loads(bench.output.read_bytes().splitlines()[0])["rollout_id"]  # counted once, not twice
    failure = {"rollout_id": finished, "attempt": 0, "final": True}
    (bench.folder / "out_failures.jsonl").write_text(f"{json.dumps(failure)}\n")
    cut = bench.output.read_bytes()
    with pytest.raises(NotCheckpointable):
        await bench.run(down(), resume_from_cache=True)
    assert bench.output.read_bytes() == cut, "and nothing was changed"


async def test_a_complete_run_with_rows_given_up_says_how_to_try_them_anew(bench: Bench) -> None:
    gym = gym_of()
    gym.failing = {"row-2": ["fail"], "row-4": ["fail"]}
    first = await bench.run(gym, max_attempts=1)
    gym = down()
    again = await bench.run(gym, resume_from_cache=True)
    failures = bench.folder / "out_failures.jsonl"
    assert (again.exit_code, again.message) == (first.exit_code, first.message) and again.summary.complete
    assert again.message.endswith(
        f"4 of 6 rows finished, 2 failed: see {failures}; to try them anew, remove that file and run this again with "
        "--resume"
    )
    assert gym.runs == [] and "6 rows: 4 finished before, 0 restored, 0 from input again, 2 failed" in text_of(bench)


@pytest.mark.parametrize("what", ["a checkpoint is damaged", "checkpoints are gone", "everything but run.json is gone"])
async def test_a_complete_run_needs_no_checkpoint(bench: Bench, what: str) -> None:
    """Only unfinished rows could have been taken from it."""
    await stop_in_the_middle(bench)
    rows = [{"rollout_id": f"row-{n}", "attempt": 0, "reward": float(n)} for n in range(bench.rows)]
    bench.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if what == "a checkpoint is damaged":
        (bench.directory / "checkpoints" / bench.published() / "collection.json").write_text("{")
    else:
        shutil.rmtree(bench.directory / "checkpoints")
        (bench.directory / "LATEST").unlink()
    if what == "everything but run.json is gone":
        (bench.directory / "dispatched.jsonl").unlink()
    assert (await bench.run(down(), resume_from_cache=True)).exit_code == 0
    bench.check_whole()


async def test_a_complete_run_with_a_row_too_many_is_refused_before_servers_are_asked(bench: Bench) -> None:
    await bench.run(gym_of())
    with bench.output.open("a") as out:
        out.write('{"rollout_id": "zz", "attempt": 0}\n')
    gym = gym_of()
    with pytest.raises(InvalidCheckpointState, match="a row of zz, which the input lacks"):
        await bench.run(gym, resume_from_cache=True)
    assert gym.log == []


@pytest.mark.parametrize("how", ["removed", "cut", "moved away", "torn", "doubled"])
async def test_an_output_that_somebody_changed_meanwhile_is_not_called_whole(bench: Bench, how: str) -> None:
    """Its open file goes on taking rows, wherever they then are."""
    gym = gym_of()
    gym.failing = {"row-5": ["late"]}

    async def script() -> None:
        await bench.until(lambda: len(bench.recorder.named("collector.row")) == bench.rows - 1)
        if how == "removed":
            bench.output.unlink()
        elif how == "moved away":
            bench.output.rename(bench.folder / "elsewhere")
        elif how == "doubled":
            bench.output.write_bytes(2 * bench.output.read_bytes())
        else:
            lines = bench.output.read_bytes().splitlines(keepends=True)
            bench.output.write_bytes(b"".join(lines[:2]) + (lines[2][:9] if how == "torn" else b""))
        gym.late.set()

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 1 and not outcome.summary.complete
    assert outcome.message.startswith(f"all {bench.rows} rows finished; ")
    if how in ("torn", "doubled"):
        said = "no figures: " if how == "torn" else f"but {bench.output} holds 11 rows, and 6 have finished: "
        assert said in outcome.message
        return
    rows = "3 rows" if how == "cut" else "0 rows"
    assert (
        f"but {bench.output} holds {rows}, and 6 have finished: it was changed meanwhile; run this" in outcome.message
    )
    assert (await bench.run(gym_of(), resume_from_cache=True)).exit_code == 0
    bench.check_whole()


@pytest.mark.parametrize("what", ["the run's", "the output's"])
async def test_a_run_whose_directory_is_removed_under_it_ends_and_says_so(bench: Bench, what: str) -> None:
    """It could log no row and publish nothing, and waited for ever."""
    bench = Bench(bench.folder, rows=24)
    output = bench.folder / "rows" / "out.jsonl"
    gone = bench.directory if what == "the run's" else output.parent

    async def script() -> None:
        await bench.until(lambda: len(bench.recorder.named("collector.row")) >= 2)
        shutil.rmtree(gone)

    outcome = await bench.with_signals(gym_of(steps=5), script, output=str(output), concurrency=2)
    assert outcome.exit_code == 1 and not outcome.summary.complete
    assert outcome.message.startswith(f"{gone} was removed while this run used it: put it back and run this again")


async def test_no_checkpoint_is_said_to_be_in_force_once_its_directory_was_removed(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)
        shutil.rmtree(bench.directory)
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: any("no checkpoint: " in line for line in bench.recorder.lines))
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 1 and "is in force" not in outcome.message
    first = next(line for line in bench.recorder.lines if "no checkpoint: " in line)
    assert f"{bench.directory} was removed while this run used it" in first
    assert first.endswith("; every checkpoint went with it")


async def test_a_dispatch_log_that_fails_for_long_ends_the_run(
    struck: StruckBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_ckpt.controller.rollouts.ROWS_RETRY_BUDGET_S", 0.2)
    struck.recorder.at = {"collector.before_dispatch_log": lambda: setattr(struck.strikes, "full", "dispatched.jsonl")}
    outcome = await struck.run(gym_of())
    assert outcome.exit_code == 1 and not outcome.summary.complete
    assert outcome.message.startswith("no row can start: ") and "(No space left on device)" in outcome.message
    struck.strikes.full, struck.recorder.at = None, {}
    assert (await struck.run(gym_of(), resume_from_cache=True)).exit_code == 0
    struck.check_whole()
