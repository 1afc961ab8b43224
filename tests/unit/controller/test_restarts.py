"""What a restarted run makes of what it finds (INV-5, INV-6, INV-60, INV-65, INV-94)."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest

from gym_ckpt.controller.outcome import NOTHING_SAVED, lines_of
from gym_ckpt.errors import ConfigError, InvalidCheckpointState
from gym_ckpt.types import EpisodeId
from tests.unit.controller.bench import Bench, gym_of, slow_gym, stop_in_the_middle

pytestmark = pytest.mark.anyio


async def test_a_restart_continues_every_row_of_the_checkpoint_one_attempt_later(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of(steps=1)  # restored episodes, which did more, need not step again
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert {row["attempt"] for row in bench.written()} == {1}
    assert outcome.summary.continued == bench.rows and not gym.made, "no step is made twice (INV-6)"
    assert outcome.summary.saved["tokens"] >= 2 * bench.rows, "every row had done two steps"
    assert any("restored from checkpoint" in line and "which saves" in line for line in bench.recorder.lines)
    asked = [what for what, _ in gym.log]
    assert asked[:3] == ["discover", "restore", "resume"] and "retire" not in asked, "what is continued is not retired"
    restored = [json.loads(line) for line in (bench.directory / "dispatched.jsonl").read_text().splitlines()]
    assert sum("restored" in line for line in restored) == bench.rows


async def test_finished_rows_win_over_the_checkpoint(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    with bench.output.open("a") as out:
        out.write(json.dumps({"rollout_id": "row-5", "attempt": 0, "reward": 5.0}) + "\n")
    gym = gym_of(steps=1)
    await bench.run(gym, resume_from_cache=True)
    bench.check_whole()
    assert EpisodeId("row-5") not in gym.asked("restore")[0]


async def test_without_a_checkpoint_survivors_are_retired_and_rows_start_one_attempt_later(bench: Bench) -> None:
    """Scenario 8: killed hard before any terminal status; scenario 15: the predecessor may be alive."""
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, gym.busy.wait)
    gym = gym_of()
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.exit_code == 0
    bench.check_whole()
    survivors = tuple(EpisodeId(f"row-{n}") for n in range(bench.rows))
    assert gym.asked("retire") == [survivors]
    assert {episode.attempt for episode in gym.runs} == {1}
    assert outcome.summary.restarted == bench.rows


async def test_a_failed_restore_starts_its_rows_from_input_two_attempts_later(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of()
    gym.serving = True
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert {episode.attempt for episode in gym.runs} == {2}
    assert any("stayed up" in line for line in bench.recorder.lines)
    summary = outcome.summary
    assert (summary.continued, summary.restarted, summary.saved) == (0, bench.rows, NOTHING_SAVED)
    assert lines_of(summary) == [f"this run: {bench.rows} sent by an earlier run and begun from input"]


async def test_a_checkpoint_is_restored_again_and_again_until_rows_finish(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    for _ in range(3):
        gym = await slow_gym(bench.rows)
        await bench.crash(gym, gym.busy.wait, resume_from_cache=True)
        assert len(gym.asked("restore")[0]) == bench.rows and {e.attempt for e in gym.runs} == {1}
    outcome = await bench.run(gym_of(steps=1), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    bench.check_whole()


async def test_rows_that_started_over_are_not_taken_from_the_older_checkpoint(bench: Bench) -> None:
    """The run in between gave the checkpoint up (its restore failed) and dispatched its rows again, from input."""
    await stop_in_the_middle(bench)
    gym = await slow_gym(bench.rows)
    gym.serving = True
    await bench.crash(gym, gym.busy.wait, resume_from_cache=True)
    gym = gym_of()
    await bench.run(gym, resume_from_cache=True)
    bench.check_whole()
    assert gym.asked("restore") == [] and {episode.attempt for episode in gym.runs} == {3}


async def test_a_damaged_newest_checkpoint_falls_back_and_says_so(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, lambda: bench.two_checkpoints(gym.busy))
    newest = bench.published()
    for manifest in (bench.directory / "checkpoints" / newest).rglob("manifest.json"):
        manifest.write_bytes(manifest.read_bytes()[:20])
    gym = gym_of()
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    assert any(newest in line and "cannot be used" in line for line in bench.recorder.lines)
    bench.check_whole()


@pytest.mark.parametrize("whole", [1, 0], ids=["one is left", "none is left"])
async def test_each_damaged_checkpoint_is_named_once_and_so_is_the_one_that_is_used(bench: Bench, whole: int) -> None:
    gym = await slow_gym(bench.rows)

    async def three() -> None:
        await gym.busy.wait()
        for count in (1, 2, 3):
            bench.signals.send("SIGUSR1")
            await bench.until_published(count)

    await bench.crash(gym, three, keep_checkpoints=3)
    ids = [event["checkpoint_id"] for event in bench.recorder.named("collector.published")]
    for checkpoint_id in ids[whole:]:
        (bench.directory / "checkpoints" / checkpoint_id / "collection.json").write_text("{")
    if whole:
        outcome = await bench.run(gym_of(), resume_from_cache=True)
        assert outcome.summary.continued == bench.rows
        said = "\n".join(bench.recorder.lines)
        assert f"checkpoint {ids[0]} is whole, and used instead" in said
    else:
        with pytest.raises(InvalidCheckpointState) as refused:
            await bench.run(gym_of(), resume_from_cache=True)
        said = "\n".join([*bench.recorder.lines, str(refused.value)])
        assert "older checkpoint" not in said and "start_over" in said
    for checkpoint_id in ids[whole:]:
        assert said.count(f"checkpoint {checkpoint_id} cannot be used") == 1
    assert said.count("trying the one before") == len(ids) - 1


async def test_figures_of_rows_that_start_over_add_up(bench: Bench) -> None:
    """Three of a checkpoint that is not restored, three that were in none; and a stop while some of them still wait."""
    gym = await slow_gym(3)
    gym.restarts = frozenset(EpisodeId(f"row-{n}") for n in range(3, 6))

    async def one() -> None:
        await bench.until(lambda: len(gym.done) == bench.rows)
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)

    await bench.crash(gym, one)
    gym = await slow_gym(2)
    gym.serving = True

    async def stop() -> None:
        await bench.until(lambda: len(gym.done) == 2)
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, stop, resume_from_cache=True, concurrency=2)
    assert "6 rows: 0 finished before, 0 restored, 6 from input again, 0 failed" in bench.recorder.lines
    assert any("3 rows of it from input again" in line for line in bench.recorder.lines)
    counts = outcome.summary.counts
    assert counts is not None and (counts.in_flight, counts.waiting, outcome.summary.restarted) == (2, 4, 2)


async def test_a_lost_run_file_does_not_cost_the_run(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    bench.output.touch()
    (bench.directory / "run.json").unlink()
    assert (await bench.run(gym_of(steps=1), resume_from_cache=True)).summary.continued == bench.rows
    bench.check_whole()
    assert (bench.directory / "run.json").exists()


async def test_with_no_valid_checkpoint_it_refuses_to_start_over_unless_told(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    (bench.directory / "checkpoints" / bench.published() / "collection.json").write_text("{")
    gym = gym_of()
    with pytest.raises(InvalidCheckpointState, match="start_over"):
        await bench.run(gym, resume_from_cache=True)
    assert gym.runs == []
    await bench.run(gym, resume_from_cache=True, start_over=True)
    bench.check_whole()


@pytest.mark.parametrize("all_of_them", [False, True], ids=["the newest", "all"])
async def test_checkpoints_that_somebody_deleted_are_missed(bench: Bench, all_of_them: bool) -> None:
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, lambda: bench.two_checkpoints(gym.busy))
    newest = bench.published()
    checkpoints = bench.directory / "checkpoints"
    gone = checkpoints / newest
    shutil.rmtree(checkpoints if all_of_them else gone)
    why = f"checkpoint {newest} cannot be used: {gone}: is missing; put it back"
    if all_of_them:
        gym = gym_of()
        with pytest.raises(InvalidCheckpointState, match=r"start_over .* --no-resume") as refused:
            await bench.run(gym, resume_from_cache=True)
        assert why in str(refused.value) and gym.runs == []
        return
    outcome = await bench.run(gym_of(), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    said = "\n".join(bench.recorder.lines)
    assert why in said and "is whole, and used instead" in said
    bench.check_whole()


@pytest.mark.parametrize("with_run_file", [False, True])
async def test_checkpoints_that_were_deleted_with_their_pointer_are_missed_too(
    bench: Bench, with_run_file: bool
) -> None:
    await stop_in_the_middle(bench)
    shutil.rmtree(bench.directory / "checkpoints")
    (bench.directory / "LATEST").unlink()
    if with_run_file:
        (bench.directory / "run.json").unlink()
    gym, said = gym_of(), ""
    for _ in range(2):  # the refusal changes nothing that the next one would go by
        with pytest.raises((ConfigError, InvalidCheckpointState)) as refused:
            await bench.run(gym, resume_from_cache=True)
        said = str(refused.value)
        assert ("no checkpoint in it says whose" if with_run_file else "checkpoints and ") in said, said
    assert gym.log == [], "before servers are waited for"
    if not with_run_file:
        assert "LATEST are gone" in said and "start_over" in said
        await bench.run(gym, resume_from_cache=True, start_over=True)
        assert any("LATEST are gone" in line and "as told" in line for line in bench.recorder.lines)
        assert {episode.attempt for episode in gym.runs} == {1}, "no survivor can write into the rerun (INV-38)"
        bench.check_whole()


async def test_a_run_that_has_published_nothing_yet_misses_no_checkpoint(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, gym.busy.wait)
    await bench.run(gym_of(), resume_from_cache=True)
    await bench.run(gym_of())
    assert (await bench.run(gym_of(), resume_from_cache=True)).exit_code == 0, "forgotten by itself, not by a person"
    bench.check_whole()


async def test_a_damaged_pointer_is_said_once_when_there_is_no_checkpoint_to_mend_it(bench: Bench) -> None:
    """No other try of the clean-up at the end could do better."""
    await stop_in_the_middle(bench)
    (bench.directory / "LATEST").write_text("xx\n")
    outcome = await bench.run(gym_of(steps=1), resume_from_cache=True)
    assert outcome.exit_code == 0 and outcome.summary.continued == bench.rows
    assert sum("could not be pruned" in line for line in bench.recorder.lines) == 1
    bench.check_whole()


async def test_a_lost_pointer_falls_back_to_the_newest_checkpoint_and_says_so(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, lambda: bench.two_checkpoints(gym.busy))
    newest = bench.published()
    (bench.directory / "LATEST").unlink()
    gym = gym_of()
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    assert any("LATEST: is missing, and there are checkpoints" in line for line in bench.recorder.lines)
    assert any(f"restored from checkpoint {newest}" in line for line in bench.recorder.lines)
    bench.check_whole()


async def test_without_a_pointer_and_with_no_valid_checkpoint_it_refuses_to_start_over(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    for manifest in (bench.directory / "checkpoints" / bench.published()).rglob("manifest.json"):
        manifest.write_bytes(manifest.read_bytes()[:20])
    (bench.directory / "LATEST").unlink()
    with pytest.raises(InvalidCheckpointState, match="start_over"):
        await bench.run(gym_of(), resume_from_cache=True)


async def test_without_its_dispatch_log_a_run_retires_what_the_servers_say_runs_already(bench: Bench) -> None:
    """A run directory that was put back without the log: attempts begin at 0, and a server knows better."""
    gym = gym_of()
    gym.failing = {"row-1": ["runs"], "row-2": ["runs"] * 4}
    outcome = await bench.run(gym, max_attempts=1)
    assert outcome.exit_code == 0, "none of them is a failure of the row"
    bench.check_whole()
    assert bench.failures() == []
    said = [line for line in bench.recorder.lines if line.startswith("known to the server already: ")]
    assert said and all("(HTTP 409 " in line for line in said)
    assert not any("no reply to" in line for line in bench.recorder.lines)
    retired = [episode for batch in gym.asked("retire") for episode in batch]
    assert retired == [EpisodeId("row-1"), *(EpisodeId("row-2", attempt) for attempt in range(4))]
    assert {row["rollout_id"]: row["attempt"] for row in bench.written()}["row-2"] == 4


async def test_two_rows_of_one_rollout_are_refused_and_two_copies_of_a_failure_are_one(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    failure = '{"rollout_id": "row-2", "attempt": 0, "reason": "x", "final": false}\n'
    (bench.folder / "out_failures.jsonl").write_text(2 * failure)
    gym = gym_of(steps=1)
    gym.failing = {"row-2": ["fail"]}
    assert (await bench.run(gym, resume_from_cache=True)).exit_code == 0, "two of three tries have failed, not three"
    with bench.output.open("a") as out:
        out.write('{"rollout_id": "row-4", "attempt": 7}\n')
    with pytest.raises(InvalidCheckpointState, match=r"out\.jsonl: two rows of row-4; remove one"):
        await bench.run(gym_of(), resume_from_cache=True)


async def test_rows_that_were_given_up_are_tried_anew_as_the_last_line_says(bench: Bench) -> None:
    gym = gym_of()
    gym.failing = {"row-2": ["fail"]}
    outcome = await bench.run(gym, max_attempts=1)
    failures = bench.folder / "out_failures.jsonl"
    assert outcome.exit_code == 1 and f"see {failures}; to try them anew, remove that file and" in outcome.message
    assert (await bench.run(gym_of(), resume_from_cache=True)).exit_code == 1, "given up is given up"
    failures.unlink()
    gym = gym_of()
    assert (await bench.run(gym, resume_from_cache=True)).exit_code == 0
    bench.check_whole()
    assert gym.runs == [EpisodeId("row-2", 1)], "one attempt later: it may run somewhere still"


async def test_a_row_of_nobody_is_refused(bench: Bench) -> None:
    """It would be counted and averaged with the others, and whoever put it there knows why."""
    await bench.run(gym_of())
    with bench.output.open("a") as out:
        out.write('{"rollout_id": "zz", "attempt": 0}\n')
    with pytest.raises(InvalidCheckpointState, match=r"out\.jsonl: a row of zz, which the input lacks; remove it"):
        await bench.run(gym_of(), resume_from_cache=True)


@pytest.mark.parametrize("name", ["dispatched.jsonl", "out.jsonl"])
async def test_an_attempt_that_has_no_next_is_damage(bench: Bench, name: str) -> None:
    await stop_in_the_middle(bench)
    path = bench.output if name == "out.jsonl" else bench.directory / name
    with path.open("a") as out:
        out.write('{"rollout_id": "row-1", "attempt": 1000000000}\n')
    with pytest.raises(InvalidCheckpointState, match=f"{name}: no attempt comes after row-1-a1000000000"):
        await bench.run(gym_of(), resume_from_cache=True)


async def test_starting_anew_forgets_checkpoints_and_rows_but_not_what_may_still_run(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of()
    await bench.run(gym)
    bench.check_whole()
    assert gym.asked("restore") == [] and {episode.attempt for episode in gym.runs} == {1}
    assert bench.checkpoints() == []


async def test_a_run_begun_anew_on_the_same_servers_is_served_at_once(bench: Bench) -> None:
    """What a forget has servers refuse are copies of what was sent, by rollout: not by the unluckiest of a batch."""
    gym = gym_of()
    gym.failing = {"row-0": ["lose"] * 3}
    await bench.run(gym)
    assert max(gym.runs) == EpisodeId("row-5", 0) and EpisodeId("row-0", 3) in gym.runs
    gym.runs.clear()
    await bench.run(gym)
    bench.check_whole()
    assert len(gym.runs) == bench.rows, "each row was sent once"


async def test_a_torn_last_row_is_cut_off_and_its_rollout_runs_again(bench: Bench) -> None:
    await bench.run(gym_of())
    whole = bench.output.read_bytes()
    for cut in (1, 10, len(whole.splitlines()[-1])):
        bench.output.write_bytes(whole[:-cut])
        await bench.run(gym_of(), resume_from_cache=True)
        bench.check_whole()


async def test_the_dispatch_log_does_not_grow_with_the_attempts(bench: Bench) -> None:
    """A line for each rollout is all that a restart needs; the others go when the next run starts."""
    log = bench.directory / "dispatched.jsonl"
    longest = 0
    for _ in range(6):
        gym = await slow_gym(bench.rows)
        await bench.crash(gym, gym.busy.wait, resume_from_cache=True)
        longest = max(longest, len(log.read_text().splitlines()))
    assert longest <= 2 * (1 + bench.rows) + 1 + bench.rows
    gym = gym_of()
    await bench.run(gym, resume_from_cache=True)
    assert {episode.attempt for episode in gym.runs} == {6}, "no attempt was forgotten"
    bench.check_whole()


async def test_a_row_that_blocks_every_checkpoint_ends_in_a_terminal_row_over_restarts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 9: lost attempts are counted over all runs, not anew by each."""
    monkeypatch.setattr("gym_ckpt.core.collection.LOST_ATTEMPTS_MAX", 4)
    for _ in range(3):
        gym = await slow_gym(bench.rows)
        gym.failing = {"row-2": ["lose", "hang"]}
        runs = gym.runs
        await bench.crash(gym, partial(bench.until, lambda: len(runs) > bench.rows), resume_from_cache=True)  # noqa: B023
    gym = gym_of()
    gym.failing = {"row-2": ["lose"] * 3}
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.exit_code == 1 and "1 failed" in outcome.message
    assert [(row["rollout_id"], row["final"]) for row in bench.failures()] == [("row-2", True)]
    assert len(bench.written()) == bench.rows - 1
