"""Each system call of a checkpoint's publication, of a restart's reading and of the output fails once, for real.

The same as in the simulator and in `tests/unit/controller/test_trouble.py`, with the errors that real disks give.
"""

from __future__ import annotations

import signal
from collections import Counter
from itertools import count, cycle
from pathlib import Path

import pytest

from e2e.many import SLOW_TOKENS_PER_S, TURNS, Many
from e2e.nursery import Nursery
from gym_ckpt.cli.demo_figures import Compared, compare, read_saved
from gym_ckpt.cli.demo_gym import COLLECTOR

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EACCES", "ESTALE", "EINTR", "ENOENT")
PUBLISHING = {"mkdir", "create", "write", "fsync", "rename", "read_chunks", "listdir", "fsync_dir", "unlink", "rmdir"}
RECORDING = {"mkdir", "create", "write", "fsync", "rename", "fsync_dir"}
SHORT = "checkpoint_timeout_s = 20\n"


def verdicts(many: Many) -> int:
    """Checkpoints that were published or have failed so far."""
    return many.said().count(" collector.published {") + many.said().count(" collector.checkpoint_failed {")


def checkpoint(many: Many) -> bool:
    """Ask for one and wait for its end; whether it was published."""
    before, published = verdicts(many), many.said().count(" collector.published {")
    many.nursery.signal(COLLECTOR, signal.SIGUSR1)
    many.until(lambda: verdicts(many) > before, "the end of a checkpoint")
    many.until(many.idle, "its older ones to be pruned, and the servers to go on")
    return many.said().count(" collector.published {") > published


def struck_checkpoint(many: Many, name: str, nth: int, error: str, call: str | None = None) -> bool | None:
    """Whether a checkpoint failed for the error at this call, and the next was possible; None without it."""
    many.arm(name, nth, error, after=nth % 2 == 0, call=call)
    published = checkpoint(many)
    if not many.struck(name):
        return None
    many.check_latest()
    assert read_saved(str(many.gym.run_dir)).continued, "the one in force holds the rows"
    # Also, what it left is removed, so that the next strike is one call further.
    assert published or checkpoint(many), "the next one is possible"
    return not published


def finish(many: Many) -> None:
    """Everything is killed; a gym that nothing happens to writes every row once, with its own result."""
    many.kill_all()
    many.speed_up()
    many.start_servers()
    many.start_collector()
    assert many.nursery.wait(COLLECTOR) == 0, many.said()[-3000:]


def compared(nursery: Nursery, many: Many, folder: Path) -> Compared:
    many.kill_all()
    folder.mkdir()
    calm = Many(nursery, folder)
    calm.start_servers()
    calm.start_collector(resume=False)
    assert nursery.wait(COLLECTOR) == 0, calm.said()
    return compare(calm.gym.rows(), many.gym.rows())


def check_table(pairs: Counter[tuple[str, str]], calls: set[str]) -> None:
    """Print which call has met which error how often (`pytest -rP`); all of these calls, and all errors, are there.

    Every pair is struck where a call is cheaper: `tests/scenario/test_system_calls.py`.
    """
    print(f"{'':12}" + "".join(f"{error:>8}" for error in ERRORS))
    for call in sorted(calls):
        print(f"{call:12}" + "".join(f"{pairs[call, error]:>8}" for error in ERRORS))
    assert calls <= {call for call, _ in pairs}, pairs
    assert set(ERRORS) == {error for _, error in pairs}, pairs


@pytest.mark.parametrize("name", [COLLECTOR, "agent"])
def test_an_error_at_every_call_of_a_checkpoint_leaves_one_in_force_and_the_next_possible(
    tmp_path: Path, name: str
) -> None:
    errors = cycle(ERRORS)
    failed = 0
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=SHORT, tokens_per_s=SLOW_TOKENS_PER_S)
        many.start_servers()
        many.start_collector(resume=False)
        many.until(lambda: many.in_flight() == len(TURNS), "every row to be in flight")
        assert checkpoint(many)
        for nth in count(1):
            if (failing := struck_checkpoint(many, name, nth, next(errors))) is None:
                break
            failed += failing
        assert nth > 10 and failed > nth // 4
        calls = PUBLISHING if name == COLLECTOR else RECORDING
        for call in sorted(calls - {each for each, _ in many.pairs}):  # how many calls there are varies a little
            assert struck_checkpoint(many, name, 1, next(errors), call) is not None, f"no {call} in a checkpoint"
        check_table(many.pairs, calls)
        finish(many)
        result = compared(nursery, many, tmp_path / "calm")
    assert (result.duplicated, result.missing, result.differing) == (0, [], [])


def test_an_error_at_every_call_of_a_restart_costs_no_row(tmp_path: Path) -> None:
    errors = cycle(ERRORS)
    ended = went_on = 0
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=SHORT, tokens_per_s=SLOW_TOKENS_PER_S)
        many.start_servers()
        many.start_collector(resume=False)
        many.until(lambda: many.in_flight() == len(TURNS), "every row to be in flight")
        assert checkpoint(many)
        assert checkpoint(many)
        many.kill_all()
        many.start_servers()
        many.wait_ready()
        for nth in count(1):
            many.arm(COLLECTOR, nth, next(errors), after=nth % 2 == 0)
            restored = many.said().count(" collector.restored {")
            many.start_collector()
            many.until(
                lambda: many.said().count(" collector.restored {") > restored or many.ended(),  # noqa: B023
                "the collector to restore or to end",
            )
            if COLLECTOR not in nursery.alive:
                ended += 1
                assert many.struck(COLLECTOR) and many.statuses[-1] in (1, 2), many.said()[-1000:]
                continue
            went_on += 1
            struck = many.struck(COLLECTOR)
            many.kill_all()
            many.start_servers()
            many.wait_ready()
            if not struck:
                break
        assert nth > 20 and ended > 5 and went_on > 1
        check_table(many.pairs, {"append", "fsync", "fsync_dir", "listdir", "read_chunks", "size", "try_lock", "write"})
        finish(many)
        result = compared(nursery, many, tmp_path / "calm")
    assert (result.duplicated, result.missing, result.differing) == (0, [], [])


def test_an_output_that_cannot_be_written_now_and_then_loses_no_row(tmp_path: Path) -> None:
    errors = cycle(ERRORS)
    with Nursery() as nursery:
        many = Many(nursery, tmp_path, collect=SHORT)
        many.start_servers()
        many.start_collector(resume=False)
        struck = 0
        many.until(lambda: many.in_flight() > 0, "the first row to start")
        many.arm(COLLECTOR, 1, "ENOSPC", after=False, part="rollouts.jsonl")
        while not many.ended():
            if struck < len(ERRORS) and many.strike(COLLECTOR).with_suffix(".done").exists():
                struck += many.struck(COLLECTOR)
                many.arm(COLLECTOR, 2 + struck % 3, next(errors), after=struck % 2 == 0, part="rollouts.jsonl")
        assert many.statuses == [0] and struck >= 4, many.said()[-2000:]
        assert {call for call, _ in many.pairs} & {"write", "fsync"}, many.pairs
        result = compared(nursery, many, tmp_path / "calm")
    assert (result.duplicated, result.missing, result.differing) == (0, [], [])
