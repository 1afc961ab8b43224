"""What the oracle sees of work that a run gives up although a whole checkpoint holds it."""

from __future__ import annotations

import pytest

from gym_ckpt.wire.messages import CONTROL_PREFIX
from tests.unit.sim.onlooker import Onlooker, checkpoint


def published(*checkpoint_ids: str) -> Onlooker:
    on = Onlooker()
    for each in checkpoint_ids:
        on.publish(each, checkpoint())
    on.emit("controller", "node.started", epoch=2)
    return on


def restore(on: Onlooker, checkpoint_id: str) -> None:
    on.emit("controller", "collector.restored", checkpoint_id=checkpoint_id, restore_id="x", installed=[])


def refuse(on: Onlooker, *statuses: int) -> None:
    for x, status in enumerate(statuses):
        on.emit("controller", "net.request", x=x, dst="agent", method="POST", path=CONTROL_PREFIX + "restore")
        on.emit("controller", "net.replied", x=x, status=status)


@pytest.mark.parametrize("excuse", ["", "its bit flipped", "its disk failed"])
def test_an_older_checkpoint_than_the_newest_is_restored(excuse: str) -> None:
    on = published("c-1", "c-2")
    if excuse == "its bit flipped":
        on.emit("", "disk.flipped", path="/run/x", checkpoint_id="c-2")
    elif excuse:
        on.emit("controller", "disk.error", step="verify.records", errno=5)
    restore(on, "c-1")
    assert on.found == (set() if excuse else {"INV-97"})


def test_the_newest_is_restored() -> None:
    on = published("c-1", "c-2")
    restore(on, "c-2")
    assert on.found == set() and on.checked(97) == 1


@pytest.mark.parametrize("why", ["no checkpoint in /run can be used; there is none left", "the servers are away"])
def test_a_run_says_that_no_checkpoint_can_be_used_while_one_is_whole(why: str) -> None:
    on = published("c-1")
    on.emit("controller", "collector.refused", why=f"InvalidCheckpointState: {why}")
    assert on.found == ({"INV-97"} if why.startswith("no") else set())


@pytest.mark.parametrize("back", [True, False])
def test_rows_are_sent_while_the_checkpoints_are_mislaid(back: bool) -> None:
    on = published("c-1")
    on.emit("", "disk.mislaid")
    if back:
        on.emit("", "disk.put_back")
    on.emit("controller", "collector.dispatch", episode="r-a1")
    assert on.found == (set() if back else {"INV-97"})


@pytest.mark.parametrize("statuses", [(200, 200), (200, 422), (422, 503)])
def test_rows_are_sent_although_a_server_has_refused_the_state_of_a_whole_checkpoint(statuses: tuple[int, ...]) -> None:
    on = published("c-1")
    refuse(on, *statuses)
    on.emit("controller", "collector.dispatch", episode="r-a1")
    assert on.found == ({"INV-97"} if statuses == (200, 422) else set())
