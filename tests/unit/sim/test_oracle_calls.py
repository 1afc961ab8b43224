"""The checks of calls on their way, of readiness and of signals, each told a story right and wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gym_ckpt.participants.ledger_routes import LEDGER_ROOT
from sim.oracle.calls import has_data
from sim.oracle.ledger import Owed
from tests.unit.sim.onlooker import Onlooker, checkpoint
from tests.unit.sim.stories import Stories, Story, check_right, check_wrong

story = Stories()
COMPLETIONS = "/ng-rollout/r/v1/chat/completions"


def later(on: Onlooker, seconds: float) -> None:
    on.world.clock._now += seconds


def asks(on: Onlooker, number: int, src: str, dst: str, path: str, **fields: Any) -> None:
    on.emit(src, "net.request", x=number, dst=dst, method="POST", path=path, **fields)
    on.emit(dst, "net.arrived", x=number)


def ready(on: Onlooker, node: str, **report: Any) -> None:
    on.phase(node, "preparing", "prepared", "c-1", "Ready")
    replied(on, node, ready=True, **report)


def replied(on: Onlooker, node: str, *, live: tuple[str, ...] = (), **report: Any) -> None:
    shown: Mapping[str, Any] = {"ready": False, "blockers": [], "restarts": [], **report}
    on.emit(node, "prepare.replied", checkpoint_id="c-1", report=shown, live=list(live))


def exported(on: Onlooker, node: str, kind: str, *keys: str, scope: tuple[str, ...] = ("r",)) -> None:
    fields = {"kind": kind, "instance": node, "checkpoint_id": "c-1"}
    on.emit(node, "commit.exported", episodes=list(keys), scope=list(scope), **fields)


# ------------------------------------------------------------------------------------------------- readiness


@story(10)
def a_prepare_waits_for_a_generation(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c0.1")
    on.emit("policy", "gate.admitted", episode="r", call="r.c0.1")
    on.close("policy")
    later(on, 1.0 if wrong else 0.001)
    ready(on, "policy")


@story(10)
def a_prepare_gives_up_and_no_answer_was_being_sent(on: Onlooker, wrong: bool) -> None:
    if not wrong:
        on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.close("policy")
    later(on, 3.0)
    replied(on, "policy", blockers=[] if wrong else ["r"])
    on.emit("policy", "gate.done", episode="r", call="r.c0.1")
    ready(on, "policy")


@story(12)
def it_is_ready_while_an_answer_is_being_sent(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.close("policy")
    if not wrong:
        on.emit("policy", "gate.done", episode="r", call="r.c0.1")
    ready(on, "policy")


@story(12)
def it_is_not_ready_because_of_a_call_that_has_not_begun(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "gate.started", episode="t0", call="t0.c0.1")
    on.close("policy")
    replied(on, "policy", blockers=["t0", *(["r"] if wrong else [])])


@story(23)
def an_episode_ends_while_the_checkpoint_is_open(on: Onlooker, wrong: bool) -> None:
    on.close("environment")
    ready(on, "environment", live=("r", "t0"))
    exported(on, "environment", "environment", *(() if wrong else ("r",)))


@story(23)
def a_session_is_left_out_of_the_checkpoint(on: Onlooker, wrong: bool) -> None:
    on.close("inventory")
    ready(on, "inventory", live=("r", "t0", "t1"), restarts=["t1"])
    exported(on, "inventory", "resources", *(() if wrong else ("r",)), scope=("r", "t1"))


@story(23, 40)
def an_episode_begins_while_the_checkpoint_is_open(on: Onlooker, wrong: bool) -> None:
    on.close("inventory")
    ready(on, "inventory", live=("r",))
    exported(on, "inventory", "resources", "r", *(("t0",) if wrong else ()))


@story(23)
def a_restart_is_named_once_and_not_again(on: Onlooker, wrong: bool) -> None:
    on.close("environment")
    ready(on, "environment", live=("r",), restarts=["r"])
    replied(on, "environment", live=("r",), ready=True, restarts=[] if wrong else ["r"])


@story(45)
def a_failed_export_is_committed_after_all(on: Onlooker, wrong: bool) -> None:
    on.close("environment")
    ready(on, "environment", live=("r",))
    on.emit("environment", "commit.failed", checkpoint_id="c-1", why="no space")
    if wrong:
        exported(on, "environment", "environment", "r")


# ------------------------------------------------------------------------------------------------- calls


@story(13)
def an_answer_starts_at_a_keep_alive(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c0.1")
    asks(on, 2, "policy", "worker", "/v1/chat/completions", call="r.c0.1")
    tap = on.world.network.tap
    assert tap is not None
    tap(2, 200, b": keep-alive\n\n" if wrong else b"data: {}\n\n")
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")


@story(13)
def data_leaves_before_its_answer_starts(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c0.1")
    tap = on.world.network.tap
    assert tap is not None
    tap(1, 200, b": keep-alive\n\n")
    asks(on, 2, "policy", "worker", "/v1/chat/completions", call="r.c0.1")
    tap(2, 200, b"data: {}\n\n")
    if not wrong:
        on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    tap(1, 200, b"data: {}\n\n")


@story(15)
def a_session_stands_behind_the_call_that_is_under_way(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call=f"r.c{2 if wrong else 1}.1")
    held = checkpoint("r.c0.1")
    on.emit("policy", "gate.admitted", episode="r", call="r.c0.1")
    started(on, "r.c0.1")
    on.publish("c-1", held)


@story(15)
def a_call_that_is_under_way_has_its_row(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c1.1")
    held = checkpoint("r.c0.1")
    started(on, "r.c0.1")
    started(on, "r.c1.1")
    if wrong:
        held["policy"]["r"] = {"rows": [{"model_call_id": "r.c0.1"}, {"model_call_id": "r.c1.1"}]}
    on.publish("c-1", held)


@story(15)
def a_session_stands_before_a_call_whose_answer_has_reached_it(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c1.1" if wrong else "r.c0.1")
    on.emit("agent", "net.replied", x=1, status=200)
    held = checkpoint("r.c0.1")
    started(on, "r.c0.1")
    on.publish("c-1", held)


@story(15)
def an_answer_that_its_server_broke_off_was_one(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c1.1")
    if not wrong:
        on.emit("policy", "gate.broken", call="r.c1.1", why="the worker is lost")
    on.emit("agent", "net.replied", x=1, status=200)
    started(on, "r.c0.1")
    asks(on, 2, "agent", "policy", COMPLETIONS, call="r.c1.2")
    on.publish("c-1", checkpoint("r.c0.1"))


def started(on: Onlooker, call: str) -> None:
    tap = on.world.network.tap
    assert tap is not None
    asks(on, 90, "policy", "worker", "/v1/chat/completions", call=call)
    tap(90, 200, b"{}")
    on.emit("policy", "gate.started", episode="r", call=call)
    on.emit("policy", "gate.done", episode="r", call=call)


@story(35)
def a_call_that_was_retired_while_it_waited_is_served(on: Onlooker, wrong: bool) -> None:
    on.close("inventory")
    asks(on, 1, "agent", "inventory", "/ng-rollout/r/add_item")
    on.emit("inventory", "admission.stopped", asked=["r"], refused=[True], stopped=[])
    on.open("inventory")
    on.emit("inventory", "net.head", x=1, status=200 if wrong else 409)


@story(14)
def a_call_is_admitted_whose_caller_has_gone(on: Onlooker, wrong: bool) -> None:
    on.close("policy")
    asks(on, 1, "agent", "policy", COMPLETIONS, call="r.c0.1")
    on.emit("policy", "net.gone", x=1)
    later(on, 5.0)
    asks(on, 2, "agent", "policy", COMPLETIONS, call="r.c0.2")
    on.open("policy")
    on.emit("policy", "admission.admitted", episode="r", ticket=2)
    if wrong:
        on.emit("policy", "admission.admitted", episode="r", ticket=1)


@story(22)
def a_malformed_id_is_served(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "stranger", "agent", "/ng-rollout/../v1/responses")
    on.emit("agent", "net.head", x=1, status=404 if wrong else 400)


@story(22)
def an_untagged_call_is_refused(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "stranger", "policy", "/v1/chat/completions", call="stranger-1")
    on.emit("policy", "net.head", x=1, status=409 if wrong else 200)


@story(22)
def an_untagged_call_waits_until_the_checkpoint_is_over(on: Onlooker, wrong: bool) -> None:
    asks(on, 1, "stranger", "policy", "/v1/chat/completions", call="stranger-1")
    on.close("policy")
    asks(on, 2, "policy", "worker", "/v1/chat/completions", call="stranger-1")
    tap = on.world.network.tap
    assert tap is not None
    tap(2, 200, b"{}")
    if not wrong:
        on.emit("policy", "net.head", x=1, status=200)
    later(on, 2.0)
    on.open("policy", "preparing")
    on.emit("policy", "net.head", x=1, status=200)


@story(47)
def a_ledger_is_changed_while_a_checkpoint_is_open(on: Onlooker, wrong: bool) -> None:
    on.close("policy")
    asks(on, 1, "stranger", "policy", LEDGER_ROOT + "retire")
    on.emit("policy", "net.head", x=1, status=200 if wrong else 409)


# ------------------------------------------------------------------------------------------------- signals


@story(96)
def a_signal_in_a_checkpoint_is_forgotten(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "node.started", epoch=1)
    on.emit("controller", "collector.checkpoint_opened")
    on.emit("controller", "collector.signal", signal="SIGUSR1")
    on.emit("controller", "collector.checkpoint_closed")
    if not wrong:
        on.emit("controller", "collector.checkpoint_opened")
    on.emit("", "world.complete")


@story(96)
def rows_go_on_being_sent_although_a_checkpoint_was_asked_for_in_one(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "node.started", epoch=1)
    on.emit("controller", "collector.checkpoint_opened")
    on.emit("controller", "collector.signal", signal="SIGUSR1")
    on.emit("controller", "collector.checkpoint_closed")
    for number in range(3):
        later(on, 1.0)
        on.emit("controller", "collector.dispatch", episode=f"t{number}")
        if number == 1 and not wrong:
            on.emit("controller", "collector.checkpoint_opened")
            on.emit("controller", "collector.checkpoint_closed")


@story(96)
def a_stop_takes_for_ever(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "node.started", epoch=1)
    on.emit("controller", "collector.signal", signal="SIGTERM")
    later(on, 1000.0 if wrong else 10.0)
    on.emit("controller", "collector.checkpoint_failed", reason="not ready", blockers=[], again=False)


@story(96)
def a_process_stops_and_does_not_say_why(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "node.started", epoch=1)
    on.emit("controller", "collector.signal", signal="SIGTERM")
    on.emit("controller", "collector.exit", status=0, message="" if wrong else "stopped: no row was in flight")


@story(96)
def a_second_sigterm_is_ignored(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "node.started", epoch=1)
    on.emit("controller", "collector.signal", signal="SIGTERM")
    later(on, 0.5)
    on.emit("controller", "collector.signal", signal="SIGTERM")
    on.emit("controller", "collector.exit", status=0 if wrong else 143, message="stopped")


@story(96)
def a_checkpoint_is_tried_again_beside_its_blocker(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    on.emit("controller", "collector.checkpoint_opened")
    on.emit("controller", "collector.checkpoint_failed", reason="not ready", blockers=["r"], again=True)
    on.emit("controller", "collector.checkpoint_closed")
    if not wrong:
        on.emit("controller", "collector.retire", episodes=["r"])
    on.emit("controller", "collector.checkpoint_opened")


@story(21)
def an_agent_starts_that_would_call_a_worker_past_the_gate(on: Onlooker, wrong: bool) -> None:
    on.emit("agent-2", f"ungated.{'ready' if wrong else 'refused'}", model=["worker"], why="it is past the gate")


@story(21)
def such_an_agent_is_refused_for_another_reason(on: Onlooker, wrong: bool) -> None:
    on.emit("agent-2", "ungated.refused", why="its port is taken" if wrong else "it would call past the gate")


@story(95)
def another_collector_gets_the_directory(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    on.emit("", "rival.took", swept=not wrong)


@story(95)
def a_row_is_written_after_another_collector_began(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    if not wrong:
        on.emit("controller", "collector.settled", episode="r", outcome="Finished")
    on.emit("", "rival.took", swept=True)
    if wrong:
        on.emit("controller", "collector.settled", episode="r", outcome="Finished")
    on.emit("controller", "collector.row", episode="r")


@story(38)
def a_rollout_is_forgotten_before_its_row_is_durable(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    on.emit("controller", "collector.settled", episode="r", outcome="Finished")
    if not wrong:
        on.emit("controller", "collector.row", episode="r")
    on.emit("controller", "collector.forget", episodes=["r"])


# ------------------------------------------------------------------------------------------------- told


@story.each
def test_what_goes_wrong_is_seen_and_named(number: int, also: tuple[int, ...], told: Story) -> None:
    check_wrong(told, number, *also)


@story.each
def test_what_goes_well_is_looked_at_and_passes(number: int, also: tuple[int, ...], told: Story) -> None:
    check_right(told, number)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_delete_that_failed_is_tried_again_by_the_next_commit(wrong: bool) -> None:
    """INV-44; a check of captured workloads only, so it is asked alone."""
    on = Onlooker()
    owed = Owed(on.oracle._findings)
    for event, handler in owed.handlers().items():
        on.world.trace.subscribe(handler, [event])

    def commit(**discarded: list[str]) -> None:
        exported(on, "policy", "model", "r")
        if discarded:
            on.emit("policy", "ledger.discarded", **{"deleted": [], "started": [], "failed": [], **discarded})
        on.phase("policy", "prepared", "committed", "c-1", "CommitWritten")

    commit(failed=["t0-a1"])
    commit(**({} if wrong else {"deleted": ["t0-a1"]}))
    commit()
    assert (on.found - {"INV-48"}) == ({"INV-44"} if wrong else set())
    assert on.checked(44)


@pytest.mark.parametrize(
    ("chunk", "data"),
    [(b": keep-alive\n\n", False), (b"\n\n", False), (b"data: x\n", True), (b"{", True), (b": a\ndata: b\n\n", True)],
)
def test_what_is_data_of_an_answer(chunk: bytes, data: bool) -> None:
    assert has_data(chunk) is data
