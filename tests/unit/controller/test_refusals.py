"""What collection refuses before anything starts (INV-95; scenario 62)."""

from __future__ import annotations

import fcntl
import json
from functools import partial

import anyio
import pytest

from gym_ckpt.errors import (
    ConfigError,
    InvalidCheckpointState,
    NotCheckpointable,
    ParticipantFailed,
    TryLater,
    Unavailable,
)
from gym_ckpt.limits import BUDGET_MAX_S, CLAIM_AGAIN_S, ONE_SIGTERM_MAX_S, PUBLISHED_LISTED_MAX, TASK_MAX_BYTES
from tests.unit.controller.bench import Bench, gym_of, slow_gym, stop_in_the_middle

pytestmark = pytest.mark.anyio


async def test_a_directory_of_another_run_is_refused_and_untouched(bench: Bench) -> None:
    await bench.run(gym_of())
    before = bench.output.read_bytes()
    (bench.folder / "in.jsonl").write_text('{"id": "other", "task": {"n": 1}}\n')
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"run \(its content was 6 rollouts, SHA-256 .* and is 1 rollout, "):
            await bench.run(gym_of(), resume_from_cache=resume)
    assert bench.output.read_bytes() == before


def changed_gym() -> ParticipantFailed:
    """What a server says whose `check_session_state` refuses what an earlier version of it exported."""
    return ParticipantFailed("inventory", "restore", InvalidCheckpointState("session of row-0: no field stock"))


async def test_a_whole_checkpoint_that_a_server_refuses_is_not_given_up_unasked(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    checkpoints, newest = bench.checkpoints(), bench.published()
    for _ in range(2):  # as often as one tries
        gym = gym_of()
        gym.faults["restore"] = [changed_gym()]
        with pytest.raises(InvalidCheckpointState) as refused:
            await bench.run(gym, resume_from_cache=True)
        for said in (newest, "no field stock", "bring back the gym that took it", "collect.start_over", "6 rows"):
            assert said in str(refused.value)
        assert gym.runs == [] and bench.checkpoints() == checkpoints and bench.published() == newest
    outcome = await bench.run(gym_of(steps=1), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    bench.check_whole()


async def test_who_is_told_to_start_over_runs_the_rows_of_a_refused_checkpoint_from_input(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of()
    gym.faults["restore"] = [changed_gym()]
    outcome = await bench.run(gym, resume_from_cache=True, start_over=True)
    assert (outcome.summary.continued, outcome.summary.restarted) == (0, bench.rows)
    assert any("could not be restored" in line for line in bench.recorder.lines)
    bench.check_whole()


async def test_a_restore_that_fails_for_want_of_a_server_starts_its_rows_over_by_itself(bench: Bench) -> None:
    await stop_in_the_middle(bench)
    gym = gym_of()
    gym.faults["restore"] = [ParticipantFailed("inventory", "restore", Unavailable("files cannot be read"))]
    outcome = await bench.run(gym, resume_from_cache=True)
    assert outcome.summary.restarted == bench.rows
    bench.check_whole()


async def test_what_differs_from_the_run_of_a_directory_is_named(bench: Bench) -> None:
    await bench.run(gym_of())
    other = str(bench.folder / "other.jsonl")
    with pytest.raises(ConfigError, match=rf"collect\.output was {bench.output} and is {other}\)"):
        await bench.run(gym_of(), output=other)
    with pytest.raises(ConfigError, match=r"collect\.repeats was 1 and is 2; its content was"):
        await bench.run(gym_of(), repeats=2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("..", "must start with a letter or digit"),
        ("a/../b", "hold only letters, digits"),
        ("/etc/passwd", "must start with a letter or digit"),
        ("", "must start with a letter or digit"),
        ("a\0b", "hold only letters, digits"),
        ("a\n", "hold only letters, digits"),
        ("а-1", "must start with a letter or digit"),
        ("ro\u200bw", "hold only letters, digits"),
        ("٣", "must start with a letter or digit"),
        ("r" * 201, "longer than 200 bytes"),
        ("r" * 300, "longer than 200 bytes"),
        ("row-a2", "must not end in '-a<number>'"),
    ],
)
async def test_an_input_with_an_id_that_is_none_is_refused_by_its_line(bench: Bench, name: str, words: str) -> None:
    rows = [{"id": "row-0", "task": {}}, {"id": name, "task": {}}]
    (bench.folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gym = gym_of()
    with pytest.raises(ConfigError) as refused:
        await bench.run(gym)
    assert "in.jsonl:2: rollout id" in str(refused.value) and words in str(refused.value)
    assert gym.log == [] and not bench.output.exists() and not bench.directory.exists()


async def test_ids_that_look_hostile_and_are_none_are_rows_of_their_own(bench: Bench) -> None:
    """Twins by case, the longest, and what resembles a path, an attempt or a file of ours."""
    names = ["R", "r", "r" * 200, "R" * 200, "a..", "a.b.jsonl", "r-a", "r-ab1", "r_a1", "LATEST", "0"]
    rows = [{"id": name, "task": {"n": n}} for n, name in enumerate(names)]
    (bench.folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bench.rows = len(names)
    await stop_in_the_middle(bench)
    assert sorted(episode["rollout_id"] for episode in bench.collection()["continued"]) == sorted(names)
    outcome = await bench.run(gym_of(steps=1), resume_from_cache=True)
    assert outcome.exit_code == 0 and outcome.summary.continued == len(names)
    assert sorted(row["rollout_id"] for row in bench.written()) == sorted(names)


NAN = float("nan")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *((key, 0, ">= 1") for key in ("repeats", "concurrency", "max_attempts", "keep_checkpoints")),
        ("keep_checkpoints", PUBLISHED_LISTED_MAX + 1, f"<= {PUBLISHED_LISTED_MAX}"),
        ("retry_prepare", -1, ">= 0"),
        *(("checkpoint_timeout_s", value, "") for value in (0.0, BUDGET_MAX_S + 1, NAN)),
        *(("checkpoint_every_s", value, "") for value in (0.0, -1.0, NAN)),
        *(("one_sigterm_s", value, "") for value in (-0.1, ONE_SIGTERM_MAX_S + 1, NAN)),
        ("output", "out.jsonl", "must be an absolute path"),
        ("checkpoint_dir", None, "needs collect.checkpoint_dir"),
    ],
)
async def test_settings_that_are_made_by_hand_obey_the_rules_of_a_configuration(
    bench: Bench, key: str, value: object, said: str
) -> None:
    named = "resume_from_cache" if key == "checkpoint_dir" else key
    with pytest.raises(ConfigError, match=f"collect.{named}: .*{said}"):
        await bench.run(gym_of(), resume_from_cache=True, **{key: value})


async def test_as_many_checkpoints_as_the_pointer_lists_can_be_kept(bench: Bench) -> None:
    assert (await bench.run(gym_of(), keep_checkpoints=PUBLISHED_LISTED_MAX)).exit_code == 0


@pytest.mark.parametrize("resume", [False, True])
async def test_whom_the_servers_refuse_changes_nothing_but_lock_files(bench: Bench, resume: bool) -> None:
    """A mistyped token must cost nothing: neither a directory that then belongs to a run, nor the rows of one."""
    gym = gym_of()
    gym.faults["discover"] = [NotCheckpointable("server agent cannot be asked (unauthorized)")]
    with pytest.raises(NotCheckpointable):
        await bench.run(gym, resume_from_cache=resume)
    made = sorted(str(path.relative_to(bench.folder)) for path in bench.folder.rglob("*"))
    assert made == ["in.jsonl", "out.jsonl.lock", "run", "run/collector.pid"]
    await stop_in_the_middle(bench)
    before = {path: path.read_bytes() for path in bench.folder.rglob("*") if path.is_file()}
    gym.faults["discover"] = [NotCheckpointable("server agent cannot be asked (unauthorized)")]
    with pytest.raises(NotCheckpointable):
        await bench.run(gym, resume_from_cache=resume)
    after = {path: path.read_bytes() for path in bench.folder.rglob("*") if path.is_file()}
    assert after == before and bench.checkpoints()


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
        with pytest.raises(TryLater, match="4242"):
            await Bench(bench.folder).run(gym_of(), resume_from_cache=True)

    await bench.crash(gym, second)


async def test_two_live_collectors_do_not_write_one_output(bench: Bench) -> None:
    """Each in a directory of its own; the loser's directory stays nobody's."""
    gym = await slow_gym(bench.rows)

    async def second() -> None:
        await gym.busy.wait()
        other = bench.folder / "other"
        for resume in (False, True):
            with pytest.raises(TryLater, match=r"out\.jsonl is being written by another collector \(4242\)"):
                await Bench(bench.folder).run(gym_of(), checkpoint_dir=str(other), resume_from_cache=resume)
        assert not (other / "run.json").exists()

    await bench.crash(gym, second)
    await bench.run(gym_of(), resume_from_cache=True)
    bench.check_whole()


async def test_whoever_looks_at_a_directory_does_not_keep_its_next_collector_out(bench: Bench) -> None:
    """`inspect` and `stop` hold its lock for an instant; a batch job that is refused then is not tried again."""
    await stop_in_the_middle(bench)
    with (bench.directory / "collector.pid").open("rb") as looking:
        fcntl.flock(looking.fileno(), fcntl.LOCK_SH)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(bench.run, gym_of(), resume_from_cache=True))
            await anyio.sleep(CLAIM_AGAIN_S / 2)
            fcntl.flock(looking.fileno(), fcntl.LOCK_UN)
    bench.check_whole()


async def test_a_live_collector_whose_lock_files_were_swept_away_takes_them_again(bench: Bench) -> None:
    gym = await slow_gym(bench.rows)

    async def swept() -> None:
        await gym.busy.wait()
        (bench.directory / "collector.pid").unlink()
        (bench.folder / "out.jsonl.lock").unlink()
        bench.signals.send("SIGUSR1")
        await bench.until_published(1)
        with pytest.raises(TryLater, match="in use by another collector"):
            await Bench(bench.folder).run(gym_of(), resume_from_cache=True)

    await bench.crash(gym, swept)


@pytest.mark.parametrize("how", ["a row finishes", "a checkpoint is asked for", "it is stopped"])
async def test_a_collector_that_another_has_taken_over_from_writes_nothing_more(bench: Bench, how: str) -> None:
    """Its lock files were swept away, and somebody began on the directory before it looked (INV-95)."""
    gym = await slow_gym(bench.rows)
    gym.failing = {"row-0": ["late"]}
    outcomes = []

    async def taken_over() -> None:
        await gym.busy.wait()
        (bench.directory / "collector.pid").unlink()
        (bench.folder / "out.jsonl.lock").unlink()
        heir = Bench(bench.folder, runs=7)
        assert (await heir.run(gym_of(), resume_from_cache=True)).exit_code == 0
        if how == "a checkpoint is asked for":
            bench.signals.send("SIGUSR1")
            await bench.until(lambda: bench.recorder.named("collector.checkpoint_failed"))
        elif how == "it is stopped":
            bench.signals.send("SIGTERM")
            return
        gym.late.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taken_over)
        outcomes.append(await bench.run(gym))
    assert outcomes[0].exit_code == 1 and "was removed" in outcomes[0].message
    assert bench.recorder.named("collector.published") == []
    bench.check_whole()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": "row-0", "task": {"n": 0}}', ":7: rollout 'row-0' comes twice, first on line 1"),
        ('{"id": "a/b", "task": {}}', ":7: rollout id 'a/b'"),
        ('{"id": "r-a1", "task": {}}', ":7: rollout id 'r-a1'"),
        ('{"id": "x", "task": ', ":7: not JSON"),
        ('{"id": "x", "task": {}, "extra": 1}', ":7: a row is"),
        ('{"id": "x", "task": 7}', ":7: task must be an object"),
        ('{"id": "x", "task": ' + '{"a":' * 181 + "1" + "}" * 182, ":7: task .*nested deeper than 180 levels"),
        ('{"id": "x", "task": {"a": "' + "b" * TASK_MAX_BYTES + '"}}', f":7: task of {TASK_MAX_BYTES + 8} bytes"),
    ],
    ids=lambda text: text[:40],
)
async def test_a_bad_input_is_refused_by_line_before_anything_starts(bench: Bench, line: str, complaint: str) -> None:
    with (bench.folder / "in.jsonl").open("a") as out:
        out.write(line + "\n")
    gym = gym_of()
    with pytest.raises(ConfigError, match=complaint):
        await bench.run(gym)
    assert gym.log == [] and not bench.directory.exists()
