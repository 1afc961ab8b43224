"""A whole gym is killed again and again at random moments, over episodes of heavy-tailed length (scenario 16)."""

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
KILLS = 50
TURNS = (1, 1, 2, 1, 6, 2, 1, 60)
TOKENS_PER_S = 120.0
"""A call takes half a second, so that most lives get past one, and the longest rollout more than all lives together."""
TIMER = "checkpoint_every_s = 0.3\n"


def test_twenty_crashes_lose_no_row_and_are_not_unkind_to_long_ones(tmp_path: Path) -> None:
    chance = random.Random(16)
    (tmp_path / "calm").mkdir()
    with Nursery() as nursery:
        calm = Many(nursery, tmp_path / "calm", turns=TURNS)
        calm.start_servers()
        calm.start_collector(resume=False)
        assert nursery.wait(COLLECTOR) == 0, calm.said()
        calm.kill_all()

        nursery.kills = 0
        many = Many(nursery, tmp_path, collect=TIMER, turns=TURNS, tokens_per_s=TOKENS_PER_S)
        for _ in range(CYCLES):
            many.start_servers()
            many.start_collector()
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0.0, 1.5))
            else:  # however slow the machine is, half of the lives get as far as a checkpoint
                many.until_published_again()
                time.sleep(chance.uniform(0.0, 0.5))
            victims = [*SERVERS, COLLECTOR]
            if chance.random() < 0.2:  # one goes first: the others notice, and go on without it for a while
                nursery.kill(chance.choice(victims))
                time.sleep(chance.uniform(0.0, 0.3))
            many.kill_all()
            if "published" in many.said():
                text, sound = inspect_directory(str(many.gym.run_dir), verify=True, episode=None, as_json=False)
                assert sound, text
        assert nursery.kills >= KILLS
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
