"""The campaign runner: whatever ends a run is a failure of its seed, old failures come first, results are kept."""

from __future__ import annotations

import math
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click.testing
import pytest
import trio
from msgspec.structs import replace as replace_of

from faults.plan import Plan, dump
from gym_ckpt.cli.main import run as main
from gym_ckpt.wire import json
from sim import cli, crew, jobs
from sim.campaign import campaign, run_block, show_failure
from sim.history import HISTORY, History, kept
from sim.jobs import Figures, Job, Outcome, run_job
from sim.oracle import Violation
from sim.rare import RARE
from sim.report import failure_id
from sim.run import Verdict, run_seed
from tests.unit.sim.planted import BUG, failing_seed

Fake = Callable[[int], None]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], None]:
    """Worker processes inherit what runs a seed: here something that takes no time, and does what a test wants."""

    def use(fake: Fake) -> None:
        def run(seed: int, profile: str, **more: object) -> Verdict:
            fake(seed)
            plan = more.get("plan")
            return verdict_of(seed, profile, plan if isinstance(plan, Plan) else Plan())

        monkeypatch.setattr(jobs, "run_seed", run)

    return use


def verdict_of(seed: int, profile: str, plan: Plan) -> Verdict:
    return Verdict(seed, profile, f"h{seed}", 10, 1.0, {"crash": 1}, (), plan, {"RUN-x": 1}, {"agent.boundary": 2})


def broken(seed: int) -> Outcome:
    return Outcome(Job(seed, "default"), 0.1, Violation("RUN-x", 1.0, "agent", 3, "this", "that"), dump(Plan()))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "campaigns.sqlite") as opened:
        yield opened


# --------------------------------------------------------------------------------- whatever ends a run


def test_a_run_that_ends_its_process_is_a_failure_of_its_seed(quick: Callable[[Fake], None]) -> None:
    def fake(seed: int) -> None:
        if seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 5:
            raise trio.TrioInternalError("internal error in Trio")

    quick(fake)
    summary = campaign(range(20), "default", jobs=2)
    assert summary.figures.seeds == 20, "the rest of the block went to another worker"
    seen = {outcome.job.seed: outcome.violation for outcome in summary.figures.failed}
    assert sorted(seen) == [3, 5] and seen[3] is not None and seen[5] is not None
    assert seen[3].invariant == "RUN-lost" and "SIGKILL" in seen[3].seen
    assert seen[5].invariant == "RUN-harness" and seen[5].seen.startswith("TrioInternalError")
    assert all(outcome.plan is not None for outcome in summary.figures.failed)
    assert "gym-ckpt sim run --seed 3 --profile default" in summary.words()


@pytest.mark.parametrize("command", ["fuzz", "bugs"])
def test_ctrl_c_ends_it_and_is_its_exit_status(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no other planted bug is hunted after it."""

    def ctrl_c(self: object, seconds: float) -> list[Outcome]:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(crew.Processes, "wait", ctrl_c)
    assert main(["sim", command, "--seeds", "0..50", "-j", "1"]) == 130
    assert "interrupted" in capsys.readouterr().out


@pytest.mark.parametrize("while_shrinking", [False, True])
def test_ctrl_c_ends_shrinking_and_what_was_found_is_told(
    while_shrinking: bool, quick: Callable[[Fake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is shrunk after one that has ended the seeds."""

    def fake(seed: int) -> None:
        raise ValueError("the simulator's own")

    def shrinking(outcome: Outcome, say: object) -> list[Verdict]:
        assert while_shrinking
        raise KeyboardInterrupt

    def ctrl_c(figures: Figures, seconds: float) -> None:
        if not while_shrinking:
            raise KeyboardInterrupt

    quick(fake)
    monkeypatch.setattr("sim.campaign._explained", shrinking)
    summary = campaign(range(4), "default", jobs=1, progress=ctrl_c)
    assert summary.interrupted and summary.explained == () and summary.figures.failed
    assert "interrupted" in summary.words() and "failing: 0 (RUN-harness)" in summary.words()


def test_a_failure_is_shrunk_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = run_seed(failing_seed(), bug=BUG, brief=True)
    assert len(verdict.plan.faults) > 1
    monkeypatch.setattr(jobs, "SHRINK_S", 0.0)
    assert jobs.explained(verdict.seed, "default", BUG).plan == verdict.plan


def test_an_old_plan_and_what_its_seed_draws_now_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SHRINK_S", 0.0)
    verdict = run_seed(failing_seed(), bug=BUG, brief=True)
    older = replace_of(verdict.plan, chaos_s=verdict.plan.chaos_s + 1.0)
    drawn = jobs.explained(verdict.seed, "default", BUG, dump(verdict.plan))
    old, again = (jobs.explained(verdict.seed, "default", BUG, dump(older)) for _ in range(2))
    name = f"default-{verdict.seed}-{BUG}"
    assert failure_id(drawn) == name
    assert old.violations and failure_id(old) == failure_id(again)
    assert re.fullmatch(f"{name}-[0-9a-f]{{8}}", failure_id(old))


def test_a_run_without_end_is_killed_and_is_a_failure(
    quick: Callable[[Fake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "RUN_MAX_S", math.inf)
    quick(lambda seed: time.sleep(600.0) if seed == 1 else None)

    def lose_patience(figures: Figures, _: float) -> None:
        """Once seed 0, before it, and seed 8, beside it, are done; those behind it have as long as they want."""
        monkeypatch.setattr(crew, "RUN_MAX_S", 0.0 if figures.seeds == 2 else math.inf)

    summary = campaign(range(9), "default", jobs=2, progress=lose_patience)
    assert [each.job.seed for each in summary.figures.failed] == [1]
    assert summary.figures.failed[0].violation is not None
    assert summary.figures.failed[0].violation.invariant == "RUN-hung" and summary.figures.seeds == 9


def test_a_campaign_takes_the_cores_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert crew.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert crew.cores() == (os.cpu_count() or 1)


def test_a_worker_that_has_held_too_much_memory_is_replaced(
    quick: Callable[[Fake], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(crew, "WORKER_MEMORY_MAX", 0)
    quick(lambda _: (tmp_path / str(os.getpid())).touch())
    summary = campaign(range(40), "default", jobs=1)
    assert summary.figures.seeds == 40 and summary.ok
    assert len(list(tmp_path.iterdir())) == 5, "one worker per block"


@pytest.mark.parametrize("error", [trio.TrioInternalError("inside"), BaseExceptionGroup("two", [GeneratorExit()])])
def test_whatever_escapes_a_world_is_its_failure(error: BaseException) -> None:
    from sim.world import World, run_world

    async def script(_: World) -> None:
        raise error

    (failure,) = run_world(1, script).errors
    assert failure.kind == "script"


def test_a_long_run_does_not_keep_what_its_nodes_left_behind() -> None:
    import gc

    from gym_ckpt.ports import Ports
    from sim.determinism import COLLECT_TURNS
    from sim.epoch import Epoch
    from sim.world import World, run_world

    left: list[int] = []

    async def main(_: Ports) -> None:
        await trio.sleep_forever()

    async def script(world: World) -> None:
        node = world.add_node("n", main)
        for _ in range(COLLECT_TURNS):
            node.start()
            await world.sleep(0.1)
            node.crash()
            await world.sleep(0.1)
        left.append(sum(isinstance(each, Epoch) for each in gc.get_objects()))

    run_world(1, script).check()
    assert left[0] < COLLECT_TURNS / 2


def test_a_brief_run_finds_the_same_first() -> None:
    brief, whole = (run_seed(failing_seed(), bug=BUG, brief=brief) for brief in (True, False))
    assert brief.violations[0] == whole.violations[0] and brief.events <= whole.events


# --------------------------------------------------------------------------------- twice


def test_a_run_that_is_another_one_in_a_second_process_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.determinism.stream", lambda seed, *name: __import__("random").Random(seed + 99))
    outcome = run_job(Job(4, "calm", twice=True))
    assert outcome.violation is not None and outcome.violation.invariant == "RUN-twice" and outcome.twice
    assert "under PYTHONHASHSEED=" in outcome.violation.seen and outcome.violation.event_index > 0
    monkeypatch.undo()
    assert run_job(Job(4, "calm", twice=True)).violation is None


def test_a_run_that_fails_at_once_is_not_counted_as_done_twice(history: History) -> None:
    history.begin("default", 1)
    outcome = run_job(Job(failing_seed(), "default", BUG, twice=True))
    history.record([outcome])
    figures = Figures()
    figures.add(outcome)
    assert figures.failed == [outcome] and figures.twice == 0 and history.twice() == 0


def test_the_share_that_is_done_twice_is_what_was_asked_for(
    quick: Callable[[Fake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(lambda _: None)
    monkeypatch.setattr(jobs, "compared", lambda verdict: verdict)
    assert campaign(range(30), "default", jobs=1, double=1.0).figures.twice == 30
    assert 60 < campaign(range(1000), "default", jobs=1, double=0.1).figures.twice < 140
    assert campaign(range(30), "default", jobs=1).figures.twice == 0


# --------------------------------------------------------------------------------- the history


def test_old_failures_come_first_until_the_code_passes_them(quick: Callable[[Fake], None], history: History) -> None:
    history.begin("default", 1)
    history.record([broken(70), broken(71)])
    order: list[int] = []

    def watch(figures: Figures, _: float) -> None:
        order.append(figures.old)

    quick(lambda _: None)
    summary = campaign(range(30), "default", jobs=1, history=history, progress=watch)
    assert summary.figures.old == 2 and summary.figures.seeds == 32 and summary.still_failing == 0
    assert order[0] >= 1, "what comes back first is an old failure"
    assert "old failures tried first: 2, now passing: 2" in summary.words()
    assert history.old_failures("default") == []
    assert [(each.seed, each.invariant) for each in history.failures()] == [(71, "RUN-x"), (70, "RUN-x")]
    assert all(each.mended is not None for each in history.failures())
    history.record([broken(70)])
    assert [job.seed for job in history.old_failures("default")] == [70], "it fails again"
    assert history.old_failures("chaos") == []


def test_the_next_campaign_on_the_same_code_takes_what_was_left_out(
    quick: Callable[[Fake], None], history: History
) -> None:
    """A block that was cut off is no gap for good, and a far seed moves nothing."""
    quick(lambda _: None)
    campaign([*range(3), *range(8, 16), 10**6], "default", jobs=2, history=history)
    assert [*islice(history.untried("default"), 7)] == [3, 4, 5, 6, 7, 16, 17]
    assert next(history.untried("chaos")) == 0
    campaign(islice(history.untried("default"), 13), "default", jobs=2, history=history)
    assert next(history.untried("default")) == 24
    with closing(sqlite3.connect(path_of(history))) as db:
        assert db.execute("select count(*), count(distinct seed), min(seed) from runs").fetchone() == (25, 25, 0)
        assert db.execute("select ok, profile, jobs from campaigns").fetchone() == (1, "default", 2)


def test_without_seeds_the_command_goes_on_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = click.testing.CliRunner()
    common = ["--profile", "calm", "-j", "1", "--double", "0", "--json"]
    assert runner.invoke(cli.fuzz, ["--seeds", "1..3", *common]).exit_code == 0
    done = runner.invoke(cli.fuzz, ["--seconds", "0.5", *common])
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect(HISTORY)) as db:
        seeds = [seed for (seed,) in db.execute("select seed from runs order by rowid")]
    assert seeds[:3] == [1, 2, 0] and seeds[3:] == [*range(3, len(seeds))]


def path_of(history: History) -> str:
    (row,) = [row for row in history._db.execute("pragma database_list") if row[1] == "main"]
    return str(row[2])


def test_a_history_that_cannot_be_written_does_not_end_a_campaign(
    quick: Callable[[Fake], None], tmp_path: Path
) -> None:
    quick(lambda _: None)
    history = History(tmp_path / "campaigns.sqlite")
    history.close()
    summary = campaign(range(9), "default", jobs=1, history=history)
    assert summary.ok and summary.figures.seeds == 9 and "results are not kept: " in summary.words()


def test_where_there_was_no_campaign_nothing_is_kept(tmp_path: Path) -> None:
    assert kept(tmp_path / "none.sqlite") == []


def test_a_history_that_is_no_database_is_named_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    HISTORY.parent.mkdir()
    HISTORY.write_text("no database\n" * 100, encoding="utf-8")
    told = f"{HISTORY} is damaged (file is not a database): move it away, and the next campaign begins a new one"
    assert main(["sim", "failures"]) != 0
    assert told in capsys.readouterr().err
    assert main(["sim", "fuzz", "--profile", "calm", "--seeds", "0..1", "-j", "1", "--double", "0"]) == 0
    assert f"results are not kept: {told}" in capsys.readouterr().err


# --------------------------------------------------------------------------------- what is said


def test_the_summary_says_what_was_not_tested_and_what_was_slow(quick: Callable[[Fake], None]) -> None:
    quick(lambda _: None)
    summary = campaign(range(12), "default", jobs=1)
    told = summary.words()
    assert "points reached: 1 of " in told and "points never reached: " in told
    assert f"rare states seen: 0 of {len(RARE)}" in told
    assert told.splitlines()[-1].startswith("slowest seeds: ") and len(summary.figures.slowest) == 5
    assert json.loads(json.dumps(summary.as_json()))["never_seen"] == list(RARE)


def test_one_failure_of_each_kind_is_shrunk_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seed = failing_seed()
    summary = campaign(range(seed, seed + 1), "default", jobs=1, bug=BUG)
    assert summary.first is not None and not summary.ok and len(summary.explained) == 1
    first = summary.figures.failed[0].violation
    assert first is not None and summary.first.violations[0].invariant == first.invariant
    assert f"replay: gym-ckpt sim replay default-{seed}-{BUG}" in show_failure(summary.first)
    assert len(summary.first.plan.faults) <= len(run_seed(seed, bug=BUG).plan.faults)


def test_the_command_keeps_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = click.testing.CliRunner()
    done = runner.invoke(cli.fuzz, ["--seeds", "0..3", "--profile", "calm", "-j", "1", "--double", "100", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout_bytes)
    assert (said["seeds"], said["twice"], said["campaign"], said["failures"]) == (3, 3, 1, [])
    assert HISTORY.exists()
    with History() as history:
        assert next(history.untried("calm")) == 3 and history.twice() == 3
    assert runner.invoke(cli.fuzz, ["--seconds", "1", "--minutes", "1"]).exit_code == 2


def test_failing_plans_are_listed_with_the_commits_that_failed_and_passed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: Callable[[Fake], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "failed so far: 0 plans" in click.testing.CliRunner().invoke(cli.failures).stdout
    with History() as history:
        history.begin("default", 1)
        history.record([broken(70)])
        told = click.testing.CliRunner().invoke(cli.failures).stdout
        assert "failed so far: 1 plan, still failing: 1" in told and "RUN-x" in told
        quick(lambda _: None)
        campaign(range(2), "default", jobs=1, history=history)
    (row,) = json.loads(click.testing.CliRunner().invoke(cli.failures, ["--json"]).stdout_bytes)
    assert row["seed"] == 70 and row["mended"] is not None and row["found"] == row["mended"]


def test_blocks_run_here_too() -> None:
    figures = run_block(range(2), "calm")
    assert figures.seeds == 2 and not figures.failed and figures.events > 0


def test_a_plan_of_a_job_is_run_instead_of_the_drawn_one() -> None:
    plan = dump(Plan())
    outcome = run_job(Job(3, "default", plan=plan))
    assert outcome.violation is None and outcome.faults == {}
    assert run_job(replace(Job(3, "default"), plan=b"{}x")).violation is not None, "no plan is a failure, not an end"
