"""Collection against a gym of a few lines: rows out, signals, restarts (INV-1, 2, 5, 90 to 96)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from gym_ckpt.controller.collect import Outcome, collect
from gym_ckpt.errors import ConfigError, InvalidCheckpointState
from gym_ckpt.settings import CollectSettings
from gym_ckpt.types import EpisodeId
from tests.unit.controller.fake_gym import (
    ENVIRONMENT,
    FakeGym,
    FakeSignals,
    Recorder,
    broken,
    make_ports,
    not_ready,
    thread_disk,
)

pytestmark = pytest.mark.anyio
PATIENCE_S = 30
"""Only a way out of a hang."""


@dataclass
class Bench:
    """A run's files, and the means to run it any number of times."""

    folder: Path
    rows: int = 6
    runs: int = 0
    signals: FakeSignals = field(default_factory=FakeSignals)
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        lines = [json.dumps({"id": f"row-{n}", "task": {"n": n}}) for n in range(self.rows)]
        (self.folder / "in.jsonl").write_text("\n".join(lines) + "\n")

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    def settings(self, **changes: Any) -> CollectSettings:
        values: dict[str, Any] = {
            "environment": "env",
            "input": str(self.folder / "in.jsonl"),
            "output": str(self.output),
            "checkpoint_dir": str(self.directory),
            **changes,
        }
        return CollectSettings(**values)

    async def run(self, gym: FakeGym, **changes: Any) -> Outcome:
        """One process of the collector, from start to end."""
        self.runs += 1
        self.signals, recorder = FakeSignals(), Recorder(at=self.recorder.at)
        self.recorder = recorder
        ports = make_ports(gym, self.signals, recorder, thread_disk(), self.runs * 1000)
        with anyio.fail_after(PATIENCE_S):
            return await collect(self.settings(**changes), gym, ENVIRONMENT, ports, recorder)

    async def crash(self, gym: FakeGym, when: Callable[[], Any], **changes: Any) -> None:
        """Run until `when()` is done, then end the collector without a word."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: self.run(gym, **changes))
            await when()
            tasks.cancel_scope.cancel()

    async def with_signals(self, gym: FakeGym, script: Callable[[], Any], **changes: Any) -> Outcome:
        """Run, with `script` (which sends signals) beside it."""
        outcomes = []

        async def one() -> None:
            outcomes.append(await self.run(gym, **changes))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(script)
        return outcomes[0]

    async def until(self, true: Callable[[], Any]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not true():
                await anyio.sleep(0.001)

    async def until_published(self, count: int) -> None:
        await self.until(lambda: len(self.recorder.named("collector.published")) >= count)

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def failures(self) -> list[dict[str, Any]]:
        path = self.folder / "out_failures.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def check_whole(self) -> None:
        """Every row once, with the undisturbed result (INV-1, INV-2)."""
        rows = sorted((row["rollout_id"], row["reward"]) for row in self.written())
        assert rows == sorted((f"row-{n}", float(n)) for n in range(self.rows))

    def published(self) -> str:
        pointed: str = json.loads((self.directory / "LATEST").read_text())["checkpoint_id"]
        return pointed

    def collection(self) -> dict[str, Any]:
        text = (self.directory / "checkpoints" / self.published() / "collection.json").read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "checkpoints").iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def gym_of(**changes: Any) -> FakeGym:
    return FakeGym(thread_disk(), **changes)


async def slow_gym(rows: int) -> FakeGym:
    """One whose episodes do not finish before a test is done with it."""
    gym = gym_of(steps=10**9)
    gym.busy_at = rows
    return gym


# ------------------------------------------------------------------------------------------------ undisturbed


async def test_every_row_is_written_once(bench: Bench) -> None:
    outcome = await bench.run(gym_of(), concurrency=2)
    assert outcome.exit_code == 0, outcome.message
    bench.check_whole()
    assert outcome.summary.figures.rows == bench.rows
    assert outcome.summary.figures.metrics["reward"].mean == 2.5
    assert outcome.summary.figures.metrics["nan"].not_finite == bench.rows
    assert sorted(fields["episode"] for fields in bench.recorder.named("collector.row")) == sorted(
        f"row-{n}" for n in range(bench.rows)
    )


async def test_without_a_checkpoint_dir_there_is_no_handler_and_no_file(bench: Bench) -> None:
    outcome = await bench.run(gym_of(), checkpoint_dir=None)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert not bench.directory.exists()
    assert not bench.signals.listening and "collector.before_dispatch_log" not in bench.recorder.probed


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
    gym = gym_of(steps=5)
    gym.busy_at = bench.rows

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0
    bench.check_whole()
    (scope, stop) = gym.commits[0]
    assert scope == tuple(EpisodeId(f"row-{n}") for n in range(bench.rows)) and not stop
    assert [row["rollout_id"] for row in bench.collection()["continued"]] == [episode.rollout_id for episode in scope]
    assert bench.collection()["sequence"] == 1
    assert outcome.summary.checkpoints == (bench.published(),)


async def test_no_row_starts_while_a_checkpoint_is_open(bench: Bench) -> None:
    gym = gym_of(steps=2)
    gym.busy_at = 2
    started_while_open: list[int] = []

    async def linger() -> None:
        before = len(gym.runs)
        await anyio.sleep(0.03)
        started_while_open.append(len(gym.runs) - before)

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

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 143 and not (bench.directory / "LATEST").exists()


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
    gym.busy_at = bench.rows
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
        outcome = await bench.run(gym)
        beside.cancel_scope.cancel()
    assert asked and outcome.exit_code == 0, outcome.message
    bench.recorder.at = {}
    outcome = await bench.run(gym_of(steps=4), resume_from_cache=True)
    assert outcome.exit_code == 0, outcome.message
    bench.check_whole()


# ------------------------------------------------------------------------------------------------ restarts


async def stop_in_the_middle(bench: Bench) -> None:
    """A run that stopped with a checkpoint in which every row had made progress."""
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await bench.until(lambda: len(gym.done) == bench.rows and min(gym.done.values()) >= 2)
        bench.signals.send("SIGTERM")

    assert (await bench.with_signals(gym, script)).exit_code == 0


async def test_a_restart_continues_every_row_of_the_checkpoint_one_attempt_later(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of(steps=10**9 + 1)
    gym.steps = 1  # so that restored episodes, which did more, need not step again
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.exit_code == 0
    bench.check_whole()
    assert {row["attempt"] for row in bench.written()} == {1}
    assert outcome.summary.continued == bench.rows and not gym.made, "no step is made twice (INV-6)"
    assert gym.log.index(("restore", gym.asked("restore")[0])) < len(gym.log)
    assert gym.asked("retire") == [], "what is continued is not retired"
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

    async def two() -> None:
        await gym.busy.wait()
        for count in (1, 2):
            bench.signals.send("SIGUSR1")
            await bench.until_published(count)

    await bench.crash(gym, two)
    newest = bench.published()
    for manifest in (bench.directory / "checkpoints" / newest).rglob("manifest.json"):
        manifest.write_bytes(manifest.read_bytes()[:20])
    gym = gym_of()
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    assert any(newest in line and "cannot be used" in line for line in bench.recorder.lines)
    bench.check_whole()


async def test_with_no_valid_checkpoint_it_refuses_to_start_over_unless_told(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    (bench.directory / "checkpoints" / bench.published() / "collection.json").write_text("{")
    gym = gym_of()
    with pytest.raises(InvalidCheckpointState, match="start_over"):
        await bench.run(gym, resume_from_cache=True)
    assert gym.runs == []
    await bench.run(gym, resume_from_cache=True, start_over=True)
    bench.check_whole()


async def test_starting_anew_forgets_checkpoints_and_rows_but_not_what_may_still_run(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of()
    await bench.run(gym)
    bench.check_whole()
    assert gym.asked("restore") == [] and {episode.attempt for episode in gym.runs} == {1}
    assert bench.checkpoints() == []


async def test_a_torn_last_row_is_cut_off_and_its_rollout_runs_again(bench: Bench) -> None:
    await bench.run(gym_of())
    whole = bench.output.read_bytes()
    for cut in (1, 10, len(whole.splitlines()[-1])):
        bench.output.write_bytes(whole[:-cut])
        await bench.run(gym_of(), resume_from_cache=True)
        bench.check_whole()


async def test_a_directory_of_another_run_is_refused_and_untouched(bench: Bench) -> None:
    await bench.run(gym_of())
    before = bench.output.read_bytes()
    (bench.folder / "in.jsonl").write_text('{"id": "other", "task": {"n": 1}}\n')
    for resume in (False, True):
        with pytest.raises(ConfigError, match="belongs to run"):
            await bench.run(gym_of(), resume_from_cache=resume)
    assert bench.output.read_bytes() == before


async def test_an_output_of_nobody_is_not_overwritten(bench: Bench) -> None:
    bench.output.write_text('{"precious": 1}\n')
    with pytest.raises(ConfigError, match="not of this run"):
        await bench.run(gym_of())
    with pytest.raises(ConfigError, match="not of this run"):
        await bench.run(gym_of(), checkpoint_dir=None)
    assert bench.output.read_text() == '{"precious": 1}\n'


async def test_a_second_live_collector_is_refused_by_name(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def second() -> None:
        await gym.busy.wait()
        with pytest.raises(ConfigError, match="4242"):
            await Bench(bench.folder).run(gym_of(), resume_from_cache=True)

    await bench.crash(gym, second)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": "row-0", "task": {"n": 0}}', ":7: rollout 'row-0' comes twice, first on line 1"),
        ('{"id": "a/b", "task": {}}', ":7: rollout id 'a/b'"),
        ('{"id": "r-a1", "task": {}}', ":7: rollout id 'r-a1'"),
        ('{"id": "x", "task": ', ":7: not JSON"),
        ('{"id": "x", "task": {}, "extra": 1}', ":7: a row is"),
        ('{"id": "x", "task": 7}', ":7: task must be an object"),
    ],
)
async def test_a_bad_input_is_refused_by_line_before_anything_starts(bench: Bench, line: str, complaint: str) -> None:
    with (bench.folder / "in.jsonl").open("a") as out:
        out.write(line + "\n")
    gym = gym_of()
    with pytest.raises(ConfigError, match=complaint):
        await bench.run(gym)
    assert gym.log == [] and not bench.directory.exists()
