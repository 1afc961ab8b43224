"""What the oracle sees of an engine that is full, and of the agent that it says so to: stories at their times."""

from __future__ import annotations

from typing import Any

import pytest

from sim.oracle.refused import PARKED_S
from tests.unit.sim.onlooker import Onlooker

PATH = "/ng-rollout/r/v1/chat/completions"


class Told(Onlooker):
    """An agent's call `r.c0.<x>` goes through the gate to an engine, which turns it away."""

    def at(self, t: float, node: str, event: str, **fields: Any) -> None:
        self.world.trace.emit(t, node, event, fields)

    def ask(self, t: float, x: int, call: str = "r.c0.1") -> None:
        self.at(t, "agent", "net.request", x=x, dst="policy", method="POST", path=PATH, call=call)
        path = "/v1/chat/completions"
        self.at(t, "policy", "net.request", x=x + 1, dst="worker", method="POST", path=path, call=call)

    def refuse(self, t: float, x: int, asked_s: float, *, lost: bool = False) -> None:
        self.at(t, "worker", "net.turned_away", x=x + 1, status=429, asked_s=asked_s)
        if not lost:
            self.at(t, "agent", "net.replied", x=x, status=429)

    def not_ready(self, t: float, *blockers: str) -> None:
        report = {"ready": False, "blockers": list(blockers)}
        self.at(t, "agent", "prepare.replied", report=report, checkpoint_id="c-1", live=["r"])


@pytest.mark.parametrize("again_s", [2.9, 3.0])
def test_a_call_that_comes_sooner_than_it_was_asked_to(again_s: float) -> None:
    on = Told()
    on.ask(1.0, 1)
    on.refuse(1.0, 1, 3.0)
    on.ask(1.0 + again_s, 3, "r.c0.2")
    assert on.found == ({"INV-25"} if again_s < 3.0 else set())
    assert on.checked(25) == 1


def test_a_refusal_that_is_lost_on_its_way_asks_for_nothing() -> None:
    on = Told()
    on.ask(1.0, 1)
    on.refuse(1.0, 1, 3.0, lost=True)
    on.ask(1.5, 3, "r.c0.2")
    assert on.found == set()


@pytest.mark.parametrize("late_s", [-0.1, 0.1])
@pytest.mark.parametrize("who", ["r", "another"])
def test_a_checkpoint_that_waits_for_a_refused_call(late_s: float, who: str) -> None:
    on = Told()
    on.ask(1.0, 1)
    on.refuse(1.0, 1, 3.0)
    on.not_ready(1.0 + PARKED_S + late_s, who)
    assert on.found == ({"INV-25"} if who == "r" and late_s > 0 else set())


def test_a_process_that_was_stopped_parks_when_it_goes_on() -> None:
    on = Told()
    on.ask(1.0, 1)
    on.refuse(1.0, 1, 0.0)
    on.at(5.0, "agent", "node.continued")
    on.not_ready(5.1, "r")
    assert on.found == set()


@pytest.mark.parametrize("status", [429, 503, 529, 500])
def test_an_attempt_that_fails_of_a_refusal(status: int) -> None:
    on = Told()
    reason = f"the agent failed: http://policy:80{PATH} answered {status}: overloaded"
    on.at(1.0, "controller", "collector.failure", episode="r", reason=reason, final=False)
    assert on.found == ({"INV-25"} if status != 500 else set())
