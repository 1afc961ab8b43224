"""A gym is killed at fifty random moments, over episodes of heavy-tailed length (scenario 16).

At twenty of them all of its processes die at once, the collector included, and the next life goes on from what it left.
At thirty one of them dies alone while the others run on; half of those are brought back before the whole gym dies.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from e2e.many import Many
from e2e.nursery import Nursery
from gym_ckpt.cli.demo_figures import compare, effects
from gym_ckpt.cli.demo_gym import COLLECTOR, SERVERS
from gym_ckpt.cli.inspect import inspect_directory

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CYCLES = 20
"""Lives that end with everything, each after one or two processes that died alone."""
MOMENTS = 50
"""At which something got SIGKILL."""
PROCESSES = 3 * MOMENTS
"""That died of it, at the least."""
TURNS = (1, 1, 2, 1, 6, 2, 1, 60)
TOKENS_PER_S = 120.0
"""A call takes half a second, so that most lives get past one, and the longest rollout more than all lives together."""
TIMER = "checkpoint_every_s = 0.3\n"


def one_dies(many: Many, chance: random.Random) -> bool:
    """One process gets SIGKILL, and the others notice; it may come back. False where it had ended by itself."""
    name = chance.choice([*SERVERS, COLLECTOR])
    if name not in many.nursery.alive:
        name = chance.choice(list(many.nursery.alive))  # it has died before in this life, and stayed away
    before = many.nursery.kills
    many.nursery.kill(name)
    time.sleep(chance.uniform(0.0, 0.2))
    if chance.random() < 0.5:
        many.start_collector() if name == COLLECTOR else many.start_server(name)
        time.sleep(chance.uniform(0.0, 0.2))
    return many.nursery.kills > before


def test_twenty_crashes_lose_no_row_and_are_not_unkind_to_long_ones(tmp_path: Path) -> None:
    chance = random.Random(16)
    (tmp_path / "calm").mkdir()
    with Nursery() as nursery:
        calm = Many(nursery, tmp_path / "calm", turns=TURNS)
        calm.start_servers()
        calm.start_collector(resume=False)
        assert nursery.wait(COLLECTOR) == 0, calm.said()
        calm.kill_all()

        nursery.kills = moments = 0
        many = Many(nursery, tmp_path, collect=TIMER, turns=TURNS, tokens_per_s=TOKENS_PER_S)
        for cycle in range(CYCLES):
            many.start_servers()
            many.start_collector()
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0.0, 0.8))
            else:  # however slow the machine is, half of the lives get as far as a checkpoint
                many.until_published_again()
                time.sleep(chance.uniform(0.0, 0.5))
            for _ in range(1 + cycle % 2):
                moments += one_dies(many, chance)
            before = nursery.kills
            many.kill_all()
            moments += nursery.kills > before
            if "published" in many.said():
                text, sound = inspect_directory(str(many.gym.run_dir), verify=True, episode=None, as_json=False)
                assert sound, text
        assert moments >= MOMENTS and nursery.kills >= PROCESSES
        assert len(many.gym.rows()) < len(TURNS), "the long episodes were to outlast the crashes"
        many.speed_up()
        many.start_servers()
        many.start_collector()
        assert nursery.wait(COLLECTOR) == 0, many.said()[-3000:]
    compared = compare(calm.gym.rows(), many.gym.rows())
    assert (compared.duplicated, compared.missing, compared.differing) == (0, [], [])
    assert effects(many.gym.rows()) == effects(calm.gym.rows()) > 0
    assert many.said().count(" collector.restored {") >= CYCLES // 4
    longest = max(many.gym.rows(), key=lambda row: len(row["messages"]))
    assert longest["attempt"] >= 3, "the longest episode was continued, and not run in one piece at the end"
