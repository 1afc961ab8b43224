"""What collection refuses before anything starts (INV-95; scenario 62)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ckpt.errors import ConfigError
from tests.unit.controller.bench import Bench, gym_of, slow_gym

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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


async def test_two_live_collectors_do_not_write_one_output(bench: Bench) -> None:
    """Each in a directory of its own; the loser's directory stays nobody's."""
    gym = await slow_gym(bench.rows)

    async def second() -> None:
        await gym.busy.wait()
        other = bench.folder / "other"
        for resume in (False, True):
            with pytest.raises(ConfigError, match=r"out\.jsonl is being written by another collector \(4242\)"):
                await Bench(bench.folder).run(gym_of(), checkpoint_dir=str(other), resume_from_cache=resume)
        assert not (other / "run.json").exists()

    await bench.crash(gym, second)
    await bench.run(gym_of(), resume_from_cache=True)
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
    ],
)
async def test_a_bad_input_is_refused_by_line_before_anything_starts(bench: Bench, line: str, complaint: str) -> None:
    with (bench.folder / "in.jsonl").open("a") as out:
        out.write(line + "\n")
    gym = gym_of()
    with pytest.raises(ConfigError, match=complaint):
        await bench.run(gym)
    assert gym.log == [] and not bench.directory.exists()
