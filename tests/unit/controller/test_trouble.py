"""Collection when disks and servers are in trouble (INV-51, INV-96; scenarios 11, 21, 30, 31)."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from gym_ckpt.controller.summary import FiguresReader
from gym_ckpt.ports import FileSystem, Job
from gym_ckpt.types import EpisodeId
from tests.unit.controller.bench import PATIENCE_S, Bench, gym_of, slow_gym, stop_in_the_middle
from tests.unit.controller.fake_gym import broken, not_ready
from tests.unit.controller.struck_files import StruckBench

pytestmark = pytest.mark.anyio


async def test_rows_wait_in_memory_while_the_output_cannot_be_written(struck: StruckBench) -> None:
    """And no checkpoint that leaves them out is published meanwhile (scenario 11)."""
    gym = gym_of(steps=3)
    gym.failing = {"row-0": ["hang"]}
    struck.strikes.full = "out.jsonl"

    async def script() -> None:
        await struck.until(lambda: len(gym.runs) == struck.rows and len(gym.done) == 1)
        struck.signals.send("SIGUSR1")
        await struck.until(lambda: struck.recorder.named("collector.checkpoint_failed"))
        assert struck.recorder.named("collector.published") == []
        struck.strikes.full = None
        await struck.until(lambda: len(struck.recorder.named("collector.row")) == struck.rows - 1)
        struck.signals.send("SIGTERM")

    outcome = await struck.with_signals(gym, script)
    assert outcome.exit_code == 0, outcome.message
    assert sorted(row["rollout_id"] for row in struck.written()) == [f"row-{n}" for n in range(1, struck.rows)]
    assert [row["rollout_id"] for row in struck.collection()["continued"]] == ["row-0"]


async def test_a_stop_on_a_disk_that_hangs_says_so_in_its_own_time(
    struck: StruckBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends a write that the system does not end; but the run must not wait in silence for it."""
    monkeypatch.setattr("gym_ckpt.controller.interrupts.STOP_REST_S", 0.05)
    monkeypatch.setattr("gym_ckpt.controller.collect.STOP_REST_S", 0.05)
    monkeypatch.setattr("gym_ckpt.controller.collect.ROWS_FLUSH_AT_STOP_S", 10 * PATIENCE_S)
    gym = gym_of(steps=3)
    gym.failing = {"row-0": ["hang"]}
    struck.strikes.hanging = "out.jsonl"

    async def script() -> None:
        await struck.until(lambda: len(gym.runs) == struck.rows and len(gym.done) == 1)
        struck.signals.send("SIGTERM")
        said = "this run ends when the disk of "
        await struck.until(lambda: any(said in line for line in struck.recorder.lines))
        struck.strikes.answers.set()

    outcome = await struck.with_signals(gym, script, checkpoint_timeout_s=0.05)
    assert outcome.exit_code == 1 and "(writing takes longer than " in outcome.message
    struck.strikes.hanging = None
    await struck.run(gym_of(steps=3), resume_from_cache=True)
    struck.check_whole()


async def test_a_stop_on_a_full_disk_says_what_is_kept_and_how_to_go_on(struck: StruckBench) -> None:
    gym = gym_of(steps=3)
    gym.failing = {"row-0": ["hang"]}
    struck.strikes.full = "out.jsonl"

    async def script() -> None:
        await struck.until(lambda: len(gym.runs) == struck.rows and len(gym.done) == 1)
        struck.signals.send("SIGTERM")

    outcome = await struck.with_signals(gym, script)
    assert outcome.exit_code == 1 and outcome.message.startswith(
        "0 of 6 rows finished and written; 5 more could not be"
    )
    assert "(No space left on device), and run again; there is no checkpoint; to go on" in outcome.message
    summary = outcome.summary
    assert summary.counts is not None and summary.figures is not None
    assert (summary.counts.finished, summary.unwritten, summary.figures.rows) == (5, 5, 0)
    struck.strikes.full = None
    await struck.run(gym_of(), resume_from_cache=True)
    struck.check_whole()


async def test_a_row_whose_dispatch_cannot_be_logged_is_not_sent(struck: StruckBench) -> None:
    gym = gym_of()

    def fill() -> None:
        tries = struck.recorder.probed["collector.before_dispatch_log"]
        struck.strikes.full = "dispatched.jsonl" if tries < 3 else None
        assert gym.runs == []

    struck.recorder.at = {"collector.before_dispatch_log": fill}
    outcome = await struck.run(gym)
    assert outcome.exit_code == 0 and struck.recorder.probed["collector.before_dispatch_log"] == 3
    assert any("no row can start" in line for line in struck.recorder.lines)
    struck.check_whole()


async def test_sigterm_during_a_restore_stops_before_anything_is_sent(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of(steps=1)
    bench.recorder.at = {"collector.before_restore": lambda: bench.signals.send("SIGTERM")}
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.exit_code == 0 and bench.published() in outcome.message and gym.runs == []
    bench.recorder.at = {}
    outcome = await bench.run(gym_of(steps=1), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    bench.check_whole()


async def test_sigterm_during_a_checkpoint_makes_it_the_last(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    bench.recorder.at = {"collector.committed": lambda: bench.signals.send("SIGTERM")}

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0 and len(bench.checkpoints()) == 1 and gym.closed


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
async def test_a_signal_as_the_run_ends_is_answered_with_what_comes_of_it(bench: Bench, name: str) -> None:
    gym = gym_of()

    def at_the_end() -> None:
        if len(bench.written()) == bench.rows:
            bench.signals.send(name)

    gym.on_forget = at_the_end
    outcome = await bench.run(gym)
    assert outcome.exit_code == 0 and outcome.message == "all 6 rows finished"
    answers = [event["answer"] for event in bench.recorder.named("collector.signal")]
    assert answers and all("the run is ending" in answer for answer in answers)
    assert f"{name}: {answers[0]}" in bench.recorder.lines
    assert not bench.recorder.named("collector.checkpoint_opened"), "and so no checkpoint of nothing is taken"


async def test_a_checkpoint_that_was_asked_for_too_late_is_refused_aloud(bench: Bench) -> None:
    """The signal comes while rows are in flight, and all have ended by the time that its checkpoint may begin."""
    gym = gym_of()
    gym.failing = {f"row-{n}": ["late"] for n in range(bench.rows)}

    async def asked_again_as_they_end() -> None:
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: len(bench.recorder.named("collector.signal")) == 2)
        gym.late.set()

    gym.on_prepared = asked_again_as_they_end

    async def script() -> None:
        await bench.until(lambda: len(gym.runs) == bench.rows)
        bench.signals.send("SIGUSR1")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0 and len(bench.recorder.named("collector.published")) == 1
    (refused,) = bench.recorder.named("collector.checkpoint_failed")
    assert refused["reason"] == "the run is ending, and nothing is left to save"
    assert any(line.startswith(f"no checkpoint: {refused['reason']}; checkpoint ") for line in bench.recorder.lines)


async def test_two_sigusr1_are_two_checkpoints_at_most_and_one_at_least(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: bench.recorder.named("collector.published"))
        await bench.until(lambda: not gym.closed)

    await bench.crash(gym, script)
    assert 1 <= len(bench.recorder.named("collector.published")) <= 2


async def test_a_reply_on_the_wire_is_waited_for_and_its_row_left_out(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    gym.failing = {"row-3": ["late"]}

    async def it_arrives() -> None:
        gym.late.set()

    gym.on_prepared = it_arrives

    async def script() -> None:
        await bench.until(lambda: len(gym.runs) == bench.rows and len(gym.done) == bench.rows - 1)
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)

    await bench.crash(gym, script)
    assert [row["rollout_id"] for row in bench.written()] == ["row-3"], "durable before the checkpoint is published"
    assert EpisodeId("row-3") not in gym.commits[0][0]


async def test_checkpoint_timeout_ends_a_checkpoint_that_hangs(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)
    gym.on_prepared = anyio.sleep_forever

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script, checkpoint_timeout_s=0.05)
    assert outcome.exit_code == 1 and "checkpoint_timeout_s" in outcome.message
    assert len(gym.asked("resume")) == 1


async def test_the_summary_is_the_same_whether_or_not_the_run_was_interrupted(bench: Bench, tmp_path: Path) -> None:
    await stop_in_the_middle(bench)
    interrupted = await bench.run(gym_of(steps=1), resume_from_cache=True)
    (tmp_path / "calm").mkdir()
    calm = await Bench(tmp_path / "calm").run(gym_of(steps=1))
    assert calm.summary.figures is not None and calm.summary.figures.rows == bench.rows
    assert interrupted.summary.figures == calm.summary.figures
    lines = [json.loads(line) for line in (bench.directory / "dispatched.jsonl").read_text().splitlines()]
    assert len({line["run_id"] for line in lines if "run_id" in line}) == 2, "each process is a run of its own"


async def test_the_timer_takes_no_checkpoint_of_nothing(bench: Bench) -> None:
    """Every row waits for the environment to come back: none is in flight."""
    gym = gym_of()
    gym.away = True
    gym.faults["retire"] = [broken("env is gone")] * 1000

    async def script() -> None:
        await bench.until(lambda: any("retiring lost rows has to wait" in line for line in bench.recorder.lines))
        before = len(bench.recorder.named("collector.checkpoint_opened"))
        await anyio.sleep(0.3)
        assert len(bench.recorder.named("collector.checkpoint_opened")) == before
        bench.signals.send("SIGTERM")

    assert (await bench.with_signals(gym, script, checkpoint_every_s=0.05)).exit_code == 0


@pytest.mark.parametrize("retry_prepare", [0, 1, 2, 3])
async def test_a_missed_prepare_is_tried_again_as_often_as_told(bench: Bench, retry_prepare: int) -> None:
    gym = await slow_gym(bench.rows)
    gym.faults["prepare"] = [not_ready(EpisodeId(f"row-{n}")) for n in range(4)]

    async def script() -> None:
        await gym.busy.wait()
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: len(bench.recorder.named("collector.checkpoint_failed")) == 1 + retry_prepare)
        bench.signals.send("SIGTERM")
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script, retry_prepare=retry_prepare, one_sigterm_s=0.0)
    failed = bench.recorder.named("collector.checkpoint_failed")
    assert [event["again"] for event in failed] == [True] * retry_prepare + [False]
    assert outcome.exit_code == 143 and len(gym.asked("prepare")) == 1 + retry_prepare


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An output that nobody reads to its end; the paths that were read, a piece each."""
    reads: list[str] = []

    def more(reader: FiguresReader) -> Job[None]:
        def job(_: FileSystem) -> Generator[str, None, None]:
            yield "summary.read"
            reads.append(str(reader))

        return job

    monkeypatch.setattr(FiguresReader, "more", more)
    return reads


@pytest.mark.parametrize("complete", [False, True])
async def test_a_stop_leaves_an_output_that_takes_long_to_read(
    bench: Bench, endless: list[str], complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes while a complete run reads it."""
    monkeypatch.setattr("gym_ckpt.controller.collect.STOP_REST_S", 0.05)
    gym = gym_of(steps=1) if complete else await slow_gym(bench.rows)

    async def script() -> None:
        await bench.until(lambda: endless if complete else len(gym.runs) == bench.rows)
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0 and endless and outcome.summary.figures is None
    assert outcome.message.endswith("; no figures: the output is too long for a stop")


async def test_a_second_sigterm_ends_the_reading_of_figures(
    bench: Bench, endless: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_ckpt.controller.collect.STOP_REST_S", 10 * PATIENCE_S)

    async def script() -> None:
        await bench.until(lambda: endless)
        bench.signals.send("SIGTERM")
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym_of(steps=1), script, one_sigterm_s=0.0)
    assert outcome.exit_code == 143 and outcome.summary.figures is None


async def test_figures_are_the_same_in_however_many_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await bench.run(gym_of(steps=1))
    monkeypatch.setattr("gym_ckpt.controller.summary.FIGURES_PIECE_BYTES", 1)
    pieces = await bench.run(gym_of(), resume_from_cache=True)
    assert whole.summary.figures is not None and pieces.summary.figures == whole.summary.figures


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
async def test_an_error_at_every_call_of_a_start_loses_no_attempt(struck: StruckBench, after: bool) -> None:
    """A long dispatch log is written anew at the start: whichever file a crash leaves, it knows all attempts."""
    for _ in range(3):
        gym = await slow_gym(struck.rows)
        await struck.crash(gym, gym.busy.wait, resume_from_cache=True)
    log = struck.directory / "dispatched.jsonl"
    long = log.read_bytes()
    assert len(long.splitlines()) > 2 * (1 + struck.rows)
    calls = refused = 0
    while True:
        calls += 1
        log.write_bytes(long)
        struck.strikes.arm(calls, after=after)
        gym = await slow_gym(struck.rows)
        try:
            await struck.crash(gym, gym.busy.wait, resume_from_cache=True)
        except ExceptionGroup:
            refused += 1
        missed = not struck.strikes.struck
        struck.strikes.arm(0, after=after)
        assert all(episode.attempt >= 3 for episode in gym.runs)
        attempts = [json.loads(line).get("attempt", -1) for line in log.read_bytes().splitlines() if line[-1:] == b"}"]
        assert max(attempts) >= 2, "the attempts of the runs before are known"
        if missed:
            break
    assert refused > 3 and calls > 15
    assert len(log.read_bytes().splitlines()) < len(long.splitlines())


async def test_an_environment_that_is_away_does_not_burn_through_the_input(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rows=40)
    gym = gym_of(steps=1)
    gym.failing = {f"row-{n}": ["lose"] for n in range(4)}
    gym.away = True
    gym.faults["retire"] = [broken("env is gone")] * 5

    async def script() -> None:
        waits = "retiring lost rows has to wait"
        await bench.until(lambda: sum(waits in line for line in bench.recorder.lines) == 5)
        gym.away = False

    outcome = await bench.with_signals(gym, script, concurrency=4)
    assert outcome.exit_code == 0, outcome.message
    again = len(gym.runs) - bench.rows
    assert 5 <= again <= 4 + 4, "those that ran, and at most as many that were being sent"
    lines = [line for line in bench.recorder.lines if "no server could be reached for" in line]
    assert lines and all("no other row is sent before that" in line for line in lines)


async def test_a_stop_while_the_environment_is_away_says_which_rows_were_not_begun(bench: Bench) -> None:
    gym = gym_of()
    gym.failing = {"row-0": ["lose"]}
    gym.away = True
    gym.faults["retire"] = [broken("env is gone")] * 1000

    async def script() -> None:
        await bench.until(lambda: any("retiring lost rows has to wait" in line for line in bench.recorder.lines))
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script, concurrency=3)
    assert outcome.exit_code == 0, outcome.message
    assert (
        "1 row lost with the servers that ran them, 2 rows sent and not begun, since the environment" in outcome.message
    )
