"""A run from its first row to its last, and its checkpoints and stops (INV-1, 2, 90 to 93, 96)."""

from __future__ import annotations

import anyio
import pytest

from gym_ckpt.controller.outcome import lines_of
from gym_ckpt.types import EpisodeId
from tests.unit.controller.bench import Bench, gym_of, slow_gym
from tests.unit.controller.fake_gym import broken, not_ready

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------ undisturbed


async def test_every_row_is_written_once(bench: Bench) -> None:
    outcome = await bench.run(gym_of(), concurrency=2)
    assert outcome.exit_code == 0, outcome.message
    bench.check_whole()
    figures = outcome.summary.figures
    assert figures is not None and figures.rows == bench.rows
    assert figures.metrics["reward"].mean == 2.5
    assert figures.metrics["nan"].not_finite == bench.rows
    assert sorted(fields["episode"] for fields in bench.recorder.named("collector.row")) == sorted(
        f"row-{n}" for n in range(bench.rows)
    )


async def test_without_a_checkpoint_dir_there_is_no_handler_and_no_file(bench: Bench) -> None:
    outcome = await bench.run(gym_of(), checkpoint_dir=None)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert not bench.directory.exists()
    assert bench.signals.listeners == 0 and "collector.before_dispatch_log" not in bench.recorder.probed
    await bench.run(gym_of(), output=str(bench.folder / "other.jsonl"))
    assert bench.signals.listeners == 1 and "collector.before_dispatch_log" in bench.recorder.probed, (
        "or they say nothing"
    )


async def test_repeats_are_rollouts_of_their_own(bench: Bench) -> None:
    await bench.run(gym_of(), repeats=2)
    assert sorted(row["rollout_id"] for row in bench.written()) == sorted(
        f"row-{n}.r{k}" for n in range(bench.rows) for k in range(2)
    )


async def test_concurrency_bounds_the_rows_in_flight(bench: Bench) -> None:
    gym = gym_of()
    most = 0

    async def watch() -> None:
        nonlocal most
        await bench.until(lambda: gym.serving)
        while bench.recorder.named("collector.exit") == []:
            most = max(most, len(gym.done))
            await anyio.sleep(0.0005)

    await bench.with_signals(gym, watch, concurrency=2)
    assert most == 2


async def test_dispatches_that_wait_together_share_one_write(bench: Bench) -> None:
    await bench.run(gym_of())
    assert bench.recorder.probed["collector.dispatch_logged"] == 1, "one fsync for all rows that could start at once"


# ------------------------------------------------------------------------------------------------ failures


async def test_a_failed_row_is_tried_again_and_costs_an_attempt(bench: Bench) -> None:
    gym = gym_of()
    gym.failing = {"row-1": ["fail"], "row-2": ["http500", "fail", "fail"]}
    outcome = await bench.run(gym)
    assert outcome.exit_code == 1 and "1 failed" in outcome.message
    rows = {row["rollout_id"]: row["attempt"] for row in bench.written()}
    assert rows["row-1"] == 1 and "row-2" not in rows and len(rows) == bench.rows - 1
    of_row_2 = [(row["attempt"], row["final"]) for row in bench.failures() if row["rollout_id"] == "row-2"]
    assert of_row_2 == [(0, False), (1, False), (2, True)]
    assert gym.asked("retire") == [], "a reply, even a failure, releases the row (INV-93)"


async def test_a_row_without_a_reply_is_retired_everywhere_before_its_next_attempt(bench: Bench) -> None:
    gym = gym_of()
    gym.failing = {"row-0": ["lose"], "row-3": ["lose", "lose"]}
    outcome = await bench.run(gym)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert gym.asked("retire")[0] == (EpisodeId("row-0"), EpisodeId("row-3")), "rows lost together are one batch"
    assert gym.runs.index(EpisodeId("row-3", 2)) > gym.runs.index(EpisodeId("row-3", 1))
    assert sorted(gym.forgotten) == [f"row-{number}" for number in range(bench.rows)], "finished for good, so forgotten"
    assert bench.failures() == [], "a lost reply is no failure of the row"


async def test_a_retire_that_fails_is_repeated_and_the_row_waits_for_it(bench: Bench) -> None:
    gym = gym_of()
    gym.failing = {"row-0": ["lose"]}
    gym.faults = {"retire": [broken("env is away"), broken("env is away")]}
    await bench.run(gym)
    bench.check_whole()
    assert len(gym.asked("retire")) == 3 and gym.runs.count(EpisodeId("row-0", 1)) == 1


# ------------------------------------------------------------------------------------------------ checkpoints


async def test_sigusr1_publishes_the_rows_in_flight_and_the_run_goes_on(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await bench.until(lambda: len(gym.done) == bench.rows)
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)
        gym.steps = 1

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0
    bench.check_whole()
    (scope, stop) = gym.commits[0]
    assert scope == tuple(EpisodeId(f"row-{n}") for n in range(bench.rows)) and not stop
    assert [row["rollout_id"] for row in bench.collection()["continued"]] == [episode.rollout_id for episode in scope]
    assert bench.collection()["sequence"] == 1
    assert outcome.summary.checkpoints == (bench.published(),)


async def test_no_row_starts_while_a_checkpoint_is_open(bench: Bench) -> None:
    gym = await slow_gym(2)
    started_while_open: list[int] = []

    async def linger() -> None:
        before = len(gym.runs)
        await anyio.sleep(0.03)
        started_while_open.append(len(gym.runs) - before)
        gym.steps = 1

    gym.on_prepared = linger

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")

    await bench.with_signals(gym, script, concurrency=2)
    assert started_while_open == [0]
    bench.check_whole()


async def test_restarts_are_left_out_of_the_scope_and_named(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    gym.restarts = frozenset({EpisodeId("row-2")})

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    await bench.with_signals(gym, script)
    assert EpisodeId("row-2") not in gym.commits[0][0] and len(gym.commits[0][0]) == bench.rows - 1
    assert bench.collection()["restarted"] == [{"rollout_id": "row-2", "attempt": 0}]


async def test_exactly_keep_checkpoints_remain_counted_across_restarts(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def three() -> None:
        await gym.busy.wait()
        for count in range(1, 4):
            bench.signals.send("SIGUSR1")
            await bench.until_published(count)
        await bench.until(lambda: len(bench.checkpoints()) == 2)

    await bench.crash(gym, three)
    gym = await slow_gym(bench.rows)

    async def one_more() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: bench.recorder.named("collector.published"))
        await bench.until(lambda: len(bench.checkpoints()) == 2)

    before = bench.checkpoints()
    await bench.crash(gym, one_more, resume_from_cache=True)
    assert len(set(before) & set(bench.checkpoints())) == 1 and bench.published() not in before


async def test_the_timer_takes_checkpoints_while_rows_are_in_flight(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def two() -> None:
        await bench.until(lambda: len(bench.recorder.named("collector.published")) == 2)

    await bench.crash(gym, two, checkpoint_every_s=0.02)


@pytest.mark.parametrize("operation", ["prepare", "commit"])
async def test_a_failed_checkpoint_resumes_and_keeps_the_one_before(bench: Bench, operation: str) -> None:
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: bench.recorder.named("collector.published"))
        first = bench.published()
        gym.faults[operation] = [broken("a server is away")]
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: bench.recorder.named("collector.checkpoint_failed"))
        assert bench.published() == first
        await bench.until(lambda: len(gym.asked("resume")) == 2)
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: len(bench.recorder.named("collector.published")) == 2)
        assert bench.published() != first
        await bench.until(lambda: len(bench.checkpoints()) == 2)  # the failed one's directory is pruned

    await bench.crash(gym, script)


async def test_blockers_of_a_missed_prepare_are_retired_and_it_is_tried_again(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    gym.faults["prepare"] = [not_ready(EpisodeId("row-4"))]

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0, outcome.message
    assert gym.asked("retire") == [(EpisodeId("row-4"),)]
    assert EpisodeId("row-4") not in gym.commits[0][0], "its attempt is retired and its next one has not started"
    (whole, prepare), (rest, all_of_it) = gym.budgets
    assert prepare is not None and 250 < whole <= 300 and prepare == pytest.approx(2 / 3 * whole, abs=20)
    assert all_of_it is not None and all_of_it == pytest.approx(rest, abs=20), "the last one may have all that is left"
    assert rest < whole, "tries share checkpoint_timeout_s"


# ------------------------------------------------------------------------------------------------ stops


async def test_sigterm_checkpoints_stops_and_says_how_to_go_on(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0 and "--resume" in outcome.message and bench.published() in outcome.message
    assert gym.commits[0][1], "the servers are told that nobody will resume"
    assert gym.asked("resume") == [] and gym.closed, "a stop does not resume (INV-92)"


async def test_a_stop_whose_checkpoint_fails_is_orderly_and_says_what_was_kept(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    gym.faults["commit"] = [broken("the disk of env is full")]

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 1 and "the disk of env is full" in outcome.message
    assert "there is no checkpoint" in outcome.message and len(gym.asked("resume")) == 1


async def test_a_second_sigterm_stops_at_once_without_a_checkpoint(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def hang() -> None:
        bench.signals.send("SIGTERM")
        await anyio.sleep_forever()

    gym.on_prepared = hang

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script, one_sigterm_s=0.0)
    assert outcome.exit_code == 143 and not (bench.directory / "LATEST").exists()


async def test_a_second_sigterm_after_the_stops_own_checkpoint_names_it_and_says_what_the_run_did(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    def again() -> None:
        bench.signals.send("SIGTERM")

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")
        await bench.until_published(1)
        bench.signals.send("SIGTERM")
        await bench.until(lambda: False)

    bench.recorder.at = {"collector.published": again}
    async with anyio.create_task_group() as beside:
        beside.start_soon(script)
        outcome = await bench.run(gym, one_sigterm_s=0.0)
        beside.cancel_scope.cancel()
    assert outcome.exit_code == 143 and "without a checkpoint" not in outcome.message
    assert f"0 of 6 rows finished, checkpoint {bench.published()} is in force" in outcome.message
    summary = outcome.summary
    assert summary.began and summary.figures is not None
    assert lines_of(summary) == [f"1 checkpoint published, the last is {bench.published()}"]


async def test_ctrl_c_says_what_is_in_force_and_how_to_go_on(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)
        await bench.until(lambda: not gym.closed)
        bench.signals.send("SIGINT")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 130 and outcome.message.startswith("interrupted: 0 of 6 rows finished")
    assert f"checkpoint {bench.published()} is in force; to go on" in outcome.message
    assert outcome.summary.counts is not None and outcome.summary.counts.rows == bench.rows
    assert (await bench.run(gym_of(), resume_from_cache=True)).summary.continued == bench.rows


async def test_rows_lost_with_their_servers_are_named_once_and_a_stop_does_not_say_that_none_was_in_flight(
    bench: Bench,
) -> None:
    gym = gym_of()
    gym.failing = {f"row-{n}": ["lose"] for n in range(bench.rows)}
    gym.faults["retire"] = [broken("env is gone")] * 1000

    async def script() -> None:
        await bench.until(lambda: any("retiring lost rows has to wait" in line for line in bench.recorder.lines))
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0 and "stopped (6 rows lost with the servers that ran them)" in outcome.message
    lines = bench.recorder.lines
    assert 1 <= sum(line.startswith("no reply to ") and "(PeerLost: reset)" in line for line in lines) < bench.rows
    assert any("env is gone; if servers are gone, start them again (gym-ckpt serve" in line for line in lines)


async def test_two_sigterms_of_one_cause_are_one(bench: Bench) -> None:
    """A batch system tells the shell and the steps; what the shell passes on is no second signal."""
    gym = await slow_gym(bench.rows)

    async def told_again() -> None:
        bench.signals.send("SIGTERM")
        await bench.until(lambda: len(bench.recorder.named("collector.signal")) == 2)

    gym.on_prepared = told_again

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script, one_sigterm_s=60.0)
    assert outcome.exit_code == 0 and len(bench.collection()["continued"]) == bench.rows


@pytest.mark.parametrize(
    "point",
    [
        "collector.start", "collector.before_dispatch_log", "collector.dispatch_logged", "collector.before_checkpoint",
        "collector.before_commit", "collector.committed", "collector.before_publish", "collector.published",
        "collector.replied", "collector.before_output", "collector.output_written",
    ],
)  # fmt: skip
async def test_a_stop_at_any_point_loses_nothing(bench: Bench, point: str) -> None:
    """Scenario 30: deliver it everywhere. The run that follows finishes every row once."""
    gym = gym_of(steps=4)
    gym.busy_at = 2
    asked = False

    def term() -> None:
        nonlocal asked
        if not asked:
            asked = True
            bench.signals.send("SIGTERM")

    bench.recorder.at = {point: term}

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")

    async with anyio.create_task_group() as beside:
        beside.start_soon(script)
        outcome = await bench.run(gym, concurrency=2)
        beside.cancel_scope.cancel()
    assert asked and outcome.exit_code == 0, outcome.message
    bench.recorder.at = {}
    outcome = await bench.run(gym_of(steps=4), resume_from_cache=True)
    assert outcome.exit_code == 0, outcome.message
    bench.check_whole()
