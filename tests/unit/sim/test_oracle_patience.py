"""What the oracle sees of a controller whose servers do not answer: stories at their times."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ckpt.limits import STOP_REST_S
from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.cluster import Options
from sim.oracle.patience import SLACK_S
from tests.unit.sim.onlooker import Onlooker

LIMIT_S = Options().timeout_s + STOP_REST_S + SLACK_S


class Told(Onlooker):
    """An onlooker to whom the controller's events are told with their times."""

    def at(self, t: float, event: str, node: str = "controller", **fields: Any) -> None:
        self.world.trace.emit(t, node, event, fields)

    def ask(self, t: float, x: int, operation: str) -> None:
        self.at(t, "net.request", x=x, dst="agent:80", method="POST", path=CONTROL_PREFIX + operation)

    def exit(self, t: float) -> None:
        self.at(t, "collector.exit", status=1, message="stopped")


@pytest.mark.parametrize("over_s", [-0.1, 0.1])
@pytest.mark.parametrize("cut_off", [True, False])
def test_a_stop_that_waits_for_a_server_longer_than_it_may(over_s: float, cut_off: bool) -> None:
    on = Told()
    on.ask(0.0, 1, "resume")
    on.at(5.0, "collector.signal", signal="SIGTERM")
    if cut_off:
        on.at(5.0 + LIMIT_S + over_s, "net.left", x=1)
    on.exit(5.0 + LIMIT_S + over_s)
    assert on.found == ({"INV-96"} if over_s > 0 else set())
    assert on.checked(96) > 0


def test_several_short_waits_of_a_stop_count_together() -> None:
    on = Told()
    on.at(0.0, "collector.signal", signal="SIGTERM")
    for x, since in enumerate((0.0, 20.0)):
        on.ask(since, x, "retire")
        on.at(since + 0.6 * LIMIT_S, "net.replied", x=x, status=200)
    on.exit(60.0)
    assert on.found == {"INV-96"}


@pytest.mark.parametrize("excuse", ["a renewal", "a stopped process", "its own disk", "no stop", "another life"])
def test_time_that_no_server_costs_a_stop_is_none(excuse: str) -> None:
    on = Told()
    if excuse != "no stop":
        on.at(0.0, "collector.signal", signal="SIGTERM")
    if excuse == "a stopped process":
        on.at(0.0, "node.stopped")
    if excuse != "its own disk":
        on.ask(0.0, 1, "renew" if excuse == "a renewal" else "resume")
    if excuse == "another life":
        on.at(1.0, "node.started", epoch=2)
    on.exit(10 * LIMIT_S)
    assert on.found == set()


def lose(on: Told, key: str, reason: str = "PeerUnreachable: environment:80: connection refused") -> None:
    on.at(1.0, "collector.lost", episode=key, reason=reason)


def retired(on: Told, key: str) -> None:
    on.at(2.0, "collector.retire", episodes=[key])
    on.at(2.0, "admission.stopped", "environment", asked=[key], refused=[True], stopped=[])
    on.at(2.0, "retire.freeing", "environment", episodes=[key], live=[])
    on.at(2.0, "retire.done", "environment", episodes=[key], remaining=[], live=[], marks={key: 0})


@pytest.mark.parametrize("wrong", [True, False])
def test_rows_are_sent_although_the_last_reached_nobody(wrong: bool) -> None:
    on = Told()
    for key in ("r", "r-1", "r.b", "r-a2x"):
        on.at(0.0, "collector.dispatch", episode=key)
    lose(on, "r", *(() if wrong else ("PeerLost: connection closed by the server",)))
    for t, key in ((1.0, "t0"), (1.5, "t1")):
        on.at(t, "collector.dispatch", episode=key)
    assert on.found == ({"INV-93"} if wrong else set())


def test_a_batch_that_was_being_logged_is_sent_all_the_same() -> None:
    on = Told()
    on.at(0.0, "collector.dispatch", episode="r")
    lose(on, "r")
    for key in ("t0", "t1", "t2"):
        on.at(1.2, "collector.dispatch", episode=key)
    assert on.found == set() and on.checked(93) == 3
    on.at(1.2, "collector.dispatch", episode="t3")
    assert on.found == {"INV-93"}, "five at a time, where four may be in flight"


def test_rows_are_sent_again_once_those_are_retired() -> None:
    on = Told()
    on.at(0.0, "collector.dispatch", episode="r")
    lose(on, "r")
    retired(on, "r")
    for t, key in ((2.0, "t0"), (3.0, "t1"), (4.0, "r-a1")):
        on.at(t, "collector.dispatch", episode=key)
    assert on.found == set()
