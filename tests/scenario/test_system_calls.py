"""Each system call of a checkpoint's publication, of a restart's reading and of the output file fails once, with every
error that a disk gives: on a real file system here, in the simulator below, on real processes in `e2e/test_struck.py`.

Each test prints which call has met which error how often (`pytest -rP`), and fails when a pair is missing.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import pytest

from faults.catalogue import Crash, DiskError, Errno, OnRow, Restart
from faults.endurance import HEAVY
from faults.plan import Plan, Setup
from gym_ckpt.errors import GymCkptError
from sim.report import screen
from sim.run import run_seed
from sim.trace import Row
from tests.scenario.plans import EVERYTHING, WHOLE
from tests.unit.controller.bench import gym_of, slow_gym
from tests.unit.controller.struck_files import StruckBench, struck_bench

pytestmark = pytest.mark.anyio
DRAWN: tuple[Errno, ...] = get_args(Errno)
ERRORS = (*DRAWN, "ENOENT")
"""The last one as NFS says it: once, of what is there. No step as a whole says it, so the simulator does not."""


@pytest.fixture
def anyio_backend() -> str:
    """Production's event loop."""
    return "asyncio"


@pytest.fixture
def bench(tmp_path: Path) -> StruckBench:
    return struck_bench(tmp_path)


def check_table(pairs: Counter[tuple[str, str]], calls: Iterable[str], errors: Sequence[str] = ERRORS) -> None:
    """Print the table; every call has met every error."""
    named = sorted(calls)
    width = max(map(len, named))
    print(f"{'':{width}}  " + "  ".join(f"{error:>6}" for error in errors))
    for call in named:
        print(f"{call:{width}}  " + "  ".join(f"{pairs[call, error]:>6}" for error in errors))
    missing = [(call, error) for call in named for error in errors if not pairs[call, error]]
    assert not missing, f"never struck: {missing}"


async def test_publication_whatever_call_fails_and_how(bench: StruckBench) -> None:
    """The previous checkpoint stays in force or the new one is, whole; and the next one is possible (INV-51)."""
    gym = await slow_gym(bench.rows)
    strikes = bench.strikes
    failed = 0

    def verdicts() -> int:
        return sum(len(bench.recorder.named(f"collector.{how}")) for how in ("published", "checkpoint_failed"))

    async def ask() -> None:
        before = verdicts()
        bench.signals.send("SIGUSR1")
        await bench.until(lambda: verdicts() > before and not gym.closed)

    async def script() -> None:
        nonlocal failed
        await gym.busy.wait()
        await ask()
        for number, error in enumerate(ERRORS):
            nth, missed = 0, False
            while not missed:
                nth += 1
                before = bench.published()
                strikes.arm(nth, after=(nth + number) % 2 == 0, code=getattr(errno, error))
                await ask()
                missed = not strikes.struck
                strikes.arm(0, after=False)
                bench.published()  # the pointer is whole and names a checkpoint
                assert bench.collection()["continued"]
                if bench.published() == before:
                    await ask()
                    assert bench.published() != before, "the next one is possible"
            assert nth > 20
        failed = len(bench.recorder.named("collector.checkpoint_failed"))
        bench.signals.send("SIGTERM")

    outcome = await bench.with_signals(gym, script)
    assert outcome.exit_code == 0 and failed > 30
    check_table(strikes.pairs, {"mkdir", "create", "write", "fsync", "rename", "read_chunks", "listdir", "fsync_dir",
                                "unlink", "rmdir", "exists", "is_dir"})  # fmt: skip
    outcome = await bench.run(gym_of(steps=1), resume_from_cache=True)
    assert outcome.summary.continued == bench.rows
    bench.check_whole()


async def restarted(bench: StruckBench) -> bool:
    """Start where a run was killed, until its rows run again; False when it was refused."""
    gym = await slow_gym(bench.rows)
    try:
        await bench.crash(gym, gym.busy.wait, resume_from_cache=True)
    except ExceptionGroup as group:
        _, other = group.split((GymCkptError, OSError))
        assert other is None, f"a person reads what is typed, or as the file system said it: {other.exceptions}"
        return False
    assert min(episode.attempt for episode in gym.runs) >= 1, "no attempt of the dead run is sent again"
    return True


async def test_a_restart_whatever_call_fails_and_how(bench: StruckBench, tmp_path: Path) -> None:
    """It refuses and changes nothing that matters, or goes on; and the restart after it loses nothing."""
    gym = await slow_gym(bench.rows)
    await bench.crash(gym, lambda: bench.two_checkpoints(gym.busy))
    with bench.output.open("a") as torn:
        torn.write('{"rollout_id": "row-0", "att')
    kept = tmp_path / "kept"
    shutil.copytree(bench.directory, kept / "run")
    shutil.copy(bench.output, kept / "out.jsonl")
    refused = went_on = 0
    for number, error in enumerate(ERRORS):
        nth, missed = 0, False
        while not missed:
            nth += 1
            shutil.rmtree(bench.directory)
            shutil.copytree(kept / "run", bench.directory)
            shutil.copy(kept / "out.jsonl", bench.output)
            bench.strikes.arm(nth, after=(nth + number) % 2 == 0, code=getattr(errno, error))
            on = await restarted(bench)
            went_on, refused = went_on + on, refused + (not on)
            missed = not bench.strikes.struck
            bench.strikes.arm(0, after=False)
            if nth % 5 == 0:
                await bench.run(gym_of(steps=1), resume_from_cache=True)
                bench.check_whole()
        assert nth > 20
    assert refused > 20 and went_on > 20
    calls = {"append", "fsync", "fsync_dir", "listdir", "read_chunks", "size", "truncate", "try_lock", "write"}
    check_table(bench.strikes.pairs, calls | {"exists", "is_dir"})


async def test_the_output_whatever_call_fails_and_how(bench: StruckBench) -> None:
    """Rows wait in memory and are written once, and so are failures."""
    for number, error in enumerate(ERRORS):
        for nth in range(1, 8):
            for path in bench.folder.glob("out*"):
                path.unlink()
            shutil.rmtree(bench.directory, ignore_errors=True)
            gym = gym_of(steps=1)
            gym.failing = {"row-1": ["fail"]}
            bench.recorder.at = {
                "collector.dispatch_logged": lambda nth=nth, number=number, error=error: bench.strikes.arm(
                    nth, after=(nth + number) % 2 == 0, code=getattr(errno, error), part="/out"
                )
            }
            await bench.run(gym)
            bench.strikes.arm(0, after=False)
            bench.check_whole()
            assert [row["rollout_id"] for row in bench.failures()] == ["row-1"]
    check_table(bench.strikes.pairs, {"append", "write", "fsync"})


SETUP = Setup(workload=HEAVY, every_s=0.3, timeout_s=5.0, keep=1)
"""A long run with many checkpoints: each step that fails costs one, or one start."""


def played(*strikes: DiskError) -> tuple[Row, ...]:
    """What happens in a run that is killed once, and whose disks fail like this."""
    lost = Crash(EVERYTHING, OnRow("collector.published", 2), WHOLE)
    verdict = run_seed(1, "scenario", plan=Plan(SETUP, 100.0, WHOLE, Restart(), (lost, *strikes)), keep_all_rows=True)
    assert verdict.ok, screen(verdict, "pytest tests/scenario/test_system_calls.py")
    return verdict.rows


@pytest.mark.parametrize("node", ["controller", "agent"])
def test_in_the_simulator_every_step_meets_every_error(node: str) -> None:
    seen = {row.fields["step"] for row in played() if row.event == "disk.step" and row.node == node}
    steps = sorted(seen - {"records.record"})  # a turn for others: it asks nothing of the disk
    pairs: Counter[tuple[str, str]] = Counter()

    def strike(*strikes: DiskError) -> None:
        for row in played(*strikes):
            if row.event == "disk.error" and row.node == node:
                pairs[row.fields["step"], errno.errorcode[row.fields["errno"]]] += 1

    for error in DRAWN:
        strike(*[DiskError(node, error, 1, 1, step) for step in steps])
        for step in steps:
            if not pairs[step, error]:  # an earlier step's failure kept the run from coming by
                strike(DiskError(node, error, 1, 1, step))
    check_table(pairs, steps, DRAWN)
