"""The gym is changed between two runs, so that a server refuses the state of a whole checkpoint: real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.changed_gym import VERSION
from e2e.many import Many
from e2e.nursery import Nursery
from gym_ckpt.cli.demo_figures import compare, effects
from gym_ckpt.cli.demo_gym import COLLECTOR
from gym_ckpt.wire import json

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TURNS = (9, 12, 10, 11)
TOKENS_PER_S = 60.0
"""A call takes a second: none ends before it is stopped."""
OLD, NEW = 'gym = "inventory"', 'gym = "e2e.changed_gym:LaterInventory"'
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.fixture(scope="module")
def calm(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    many = Many(nursery, tmp_path_factory.mktemp("calm"), turns=TURNS)
    many.start_servers()
    many.start_collector(resume=False)
    assert nursery.wait(COLLECTOR) == 0, many.said()
    many.kill_all()
    return many.gym.rows()


def configure(many: Many, before: str, after: str) -> None:
    text = many.gym.config.read_text()
    assert before in text
    many.gym.config.write_text(text.replace(before, after))


def stopped_in_the_middle(many: Many) -> None:
    """Every rollout has done something, and is in the checkpoint of a stop."""
    many.start_servers()
    many.start_collector(resume=False)
    many.until(lambda: many.in_flight() == len(TURNS), "every row to be sent")
    for _ in range(2):
        many.until_published_again()
    many.nursery.signal(COLLECTOR, signal.SIGTERM)
    assert many.nursery.wait(COLLECTOR) == 0, many.said()[-2000:]
    many.kill_all()


def summary(many: Many) -> dict[str, Any]:
    """Of the last collector."""
    found: dict[str, Any] = json.loads(many.said().splitlines()[-1].encode())
    return found


def files(many: Many) -> dict[str, bytes]:
    """Of the run, but for the dispatch log, which learns of each try before a server does."""
    found = [many.gym.output, *many.gym.run_dir.rglob("*")]
    kept = (path for path in found if path.is_file() and path.name not in ("dispatched.jsonl", "collector.pid"))
    return {str(path): path.read_bytes() for path in kept}


def refused(many: Many) -> None:
    """Once more, with the changed gym: nothing is sent, and nothing is removed."""
    before, sent = files(many), many.said().count(" collector.dispatch {")
    many.start_collector()
    assert many.nursery.wait(COLLECTOR) == 1, many.said()[-2000:]
    said = summary(many)
    pointer = json.loads((many.gym.run_dir / "LATEST").read_bytes())
    for words in (
        f"checkpoint {pointer['checkpoint_id']} is whole, and a server refuses its state (",
        "inventory",
        f"a session of version 1, and this is inventory {VERSION}",
        "nothing was sent or removed; bring back the gym that took it, and run this again",
        f"set collect.start_over to run {len(TURNS)} rows of it from input",
    ):
        assert words in said["message"], said["message"]
    assert (said["exit_code"], said["complete"], said["began"]) == (1, False, False)
    assert files(many) == before and many.said().count(" collector.dispatch {") == sent
    assert many.gym.rows() == []


def lines_sent(many: Many) -> list[dict[str, Any]]:
    """Attempts that were dispatched from input, or sent after a restore, by the log."""
    lines = [json.loads(line) for line in (many.gym.run_dir / "dispatched.jsonl").read_bytes().splitlines()]
    return [line for line in lines if "rollout_id" in line and "restored" not in line]


@pytest.mark.parametrize("then", ["the old gym comes back", "start_over"])
def test_a_changed_gym_is_refused_until_somebody_decides(
    nursery: Nursery, tmp_path: Path, calm: Rows, then: str
) -> None:
    collect = "checkpoint_every_s = 1.0\n"
    many = Many(nursery, tmp_path, collect=collect, turns=TURNS, tokens_per_s=TOKENS_PER_S)
    stopped_in_the_middle(many)
    sent = lines_sent(many)
    configure(many, OLD, NEW)
    many.speed_up()
    many.start_servers()
    for _ in range(2):  # as often as one tries, the servers that refused it still there
        refused(many)
    assert lines_sent(many) == sent
    many.kill_all()
    if then == "start_over":
        configure(many, collect, f"{collect}start_over = true\n")
    else:
        configure(many, NEW, OLD)
    many.start_servers()
    many.start_collector()
    assert nursery.wait(COLLECTOR) == 0, many.said()[-3000:]
    said = summary(many)
    whence = (0, len(TURNS)) if then == "start_over" else (len(TURNS), 0)
    assert (said["continued"], said["restarted"]) == whence, said
    assert (said["saved"]["model_calls"] >= len(TURNS)) is (then != "start_over")
    compared = compare(calm, many.gym.rows())
    assert (compared.duplicated, compared.missing, compared.differing) == (0, [], [])
    assert effects(many.gym.rows()) == effects(calm) > 0
    many.kill_all()
