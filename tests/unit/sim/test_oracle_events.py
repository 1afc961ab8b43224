"""Each check of the oracle that goes by events: blind where all is well, and sure of its number where it is not.

Long because it tells a story, right and wrong, for each rule of each check.
"""

from __future__ import annotations

from tests.unit.sim.onlooker import Onlooker, checkpoint
from tests.unit.sim.stories import Stories, Story, check_right, check_wrong

story = Stories()


# ------------------------------------------------------------------------------------------------- gate


def call(on: Onlooker, number: int) -> None:
    path = "/ng-rollout/r/v1/chat/completions"
    on.emit("agent", "net.request", x=number, dst="policy", method="POST", path=path, call="r.c0.1")
    on.emit("policy", "net.arrived", x=number)


@story(11)
def an_answer_starts_while_closed(on: Onlooker, wrong: bool) -> None:
    call(on, 1)
    on.close("policy")
    on.emit("policy", "gate.held", episode="r", call="r.c0.1")
    if not wrong:
        on.open("policy")
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.emit("policy", "net.head", x=1, status=200)


@story(11)
def an_answer_leaves_while_closed_and_nobody_says_that_it_started(on: Onlooker, wrong: bool) -> None:
    call(on, 1)
    on.close("policy")
    on.emit("policy", "gate.held", episode="r", call="r.c0.1")
    if not wrong:
        on.open("policy")
        on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.emit("policy", "net.head", x=1, status=200)


@story(11)
def an_error_of_an_admitted_call_leaves_while_closed(on: Onlooker, wrong: bool) -> None:
    call(on, 1)
    on.emit("policy", "gate.admitted", episode="r", call="r.c0.1")
    if not wrong:  # it had leave before
        on.emit("policy", "gate.error", episode="r", call="r.c0.1")
    on.close("policy")
    on.emit("policy", "gate.held", episode="r", call="r.c0.1")
    on.emit("policy", "net.head", x=1, status=502)


@story(16)
def an_answer_leaves_without_its_row(on: Onlooker, wrong: bool) -> None:
    call(on, 1)
    if not wrong:
        on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.emit("policy", "net.head", x=1, status=200)


@story(14)
def work_is_admitted_while_closed(on: Onlooker, wrong: bool) -> None:
    on.close("policy")
    call(on, 1)
    if not wrong:
        on.open("policy")
    on.emit("policy", "admission.admitted", episode="r", ticket=1)


@story(14)
def a_call_is_refused_because_of_the_checkpoint(on: Onlooker, wrong: bool) -> None:
    on.close("inventory")
    on.emit("agent", "net.request", x=1, dst="inventory", method="POST", path="/ng-rollout/r/add_item")
    on.emit("inventory", "net.arrived", x=1)
    if not wrong:  # of a retired attempt it may be
        on.emit("inventory", "admission.stopped", asked=["r"], refused=[True], stopped=[])
    on.emit("inventory", "net.head", x=1, status=409)


@story(61)
def a_server_that_has_served_restores(on: Onlooker, wrong: bool) -> None:
    on.emit("agent", "admission.admitted", episode="r", ticket=1)
    if not wrong:
        on.emit("agent", "node.started", epoch=2)
    on.begin_restore("agent")


@story(63)
def a_continued_attempt_is_at_work_again(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    on.emit("agent", "restore.installed", **installed_of(scope=["r"]))
    on.open("agent", "restored")
    on.emit("agent", "admission.admitted", episode="r" if wrong else "r-a1", ticket=1)


@story(63)
def a_restore_does_not_retire_what_it_continues(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    on.emit("agent", "restore.installed", **installed_of(scope=["r"], marks={} if wrong else {"r": 0}))


@story(66)
def a_restore_leaves_admission_open(on: Onlooker, wrong: bool) -> None:
    on.phase("agent", "idle", "restoring", "x-restore", "Restore")
    if not wrong:
        on.emit("agent", "admission.closed")
    on.install("agent", {})


@story(66)
def admission_opens_before_the_resume(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    on.install("agent", {})
    if wrong:
        on.emit("agent", "admission.opened")
    else:
        on.open("agent", "restored")


@story(68)
def a_tool_is_called_during_a_restore(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("inventory")
    on.install("inventory", {})
    if not wrong:
        on.open("inventory", "restored")
    on.emit("inventory", "tool.effect", episode="r", key="r:tool0", revision=1, session="s", tool="add_item")


def installed_of(**changed: object) -> dict[str, object]:
    """Fields of an installation from a checkpoint that holds nothing."""
    fields = {"kind": "agent", "instance": "agent", "source": "c-0", "restore_id": "x-restore", "digests": {}}
    return {**fields, "scope": [], "live": [], "marks": {"r": 0}} | changed


# ------------------------------------------------------------------------------------------------- retire, forget


def retire(on: Onlooker, key: str = "r-a1", **changed: object) -> None:
    """A whole retire. `changed`: fields of its end."""
    on.emit("policy", "admission.stopped", asked=[key], refused=[True], stopped=[[1, key]])
    on.emit("policy", "retire.marked", episodes=[key])
    on.emit("policy", "retire.freeing", live=[key, "r-a2", "r.b"])
    fields = {"episodes": [key], "remaining": [], "live": ["r-a2", "r.b"], "marks": {"r": 1}}
    on.emit("policy", "retire.done", **fields | changed)


@story(30)
def a_retire_in_a_checkpoint(on: Onlooker, wrong: bool) -> None:
    on.close("policy")
    if not wrong:
        on.open("policy")
    retire(on)


@story(30)
def a_forget_in_a_restore(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("policy")
    if not wrong:
        on.open("policy", "restored")
    on.emit("policy", "forget.done", rollouts=["r"], ended=None, marks={})


@story(31)
def a_retire_stops_the_next_attempt(on: Onlooker, wrong: bool) -> None:
    stopped = [[1, "r-a1"], [2, "r-a2" if wrong else "r"]]
    on.emit("policy", "admission.stopped", asked=["r-a1"], refused=[True], stopped=stopped)


@story(31)
def a_retire_frees_the_next_attempt(on: Onlooker, wrong: bool) -> None:
    retire(on, live=["r.b"] if wrong else ["r-a2", "r.b"])


@story(31)
def a_rollout_leaves_whose_only_call_was_withdrawn_meanwhile(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "retire.freeing", live=["r-a1", "r-a2", "r.b"])
    on.emit("policy", "gate.withdrawn", episode="r-a2" if wrong else "r.b", call="c", why="fenced", failed=False)
    done = {"episodes": ["r-a1"], "remaining": [], "live": ["r-a2"], "marks": {"r": 1}}
    on.emit("policy", "admission.stopped", asked=["r-a1"], refused=[True], stopped=[])
    on.emit("policy", "retire.done", **done)


@story(31)
def a_retire_marks_the_next_attempt(on: Onlooker, wrong: bool) -> None:
    retire(on, marks={"r": 2 if wrong else 1})


@story(32)
def work_is_stopped_before_it_is_refused(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "admission.stopped", asked=["r"], refused=[not wrong], stopped=[[1, "r"]])


@story(32)
def a_retired_attempt_is_not_refused(on: Onlooker, wrong: bool) -> None:
    retire(on, marks={} if wrong else {"r": 1})


@story(33)
def a_retire_replies_before_work_has_left(on: Onlooker, wrong: bool) -> None:
    retire(on, remaining=["r"] if wrong else [])


@story(33)
def state_outlives_its_retire(on: Onlooker, wrong: bool) -> None:
    retire(on, live=["r-a1", "r-a2", "r.b"] if wrong else ["r-a2", "r.b"])


@story(34)
def work_is_cancelled_twice(on: Onlooker, wrong: bool) -> None:
    for number in (1, 1 if wrong else 2):
        on.emit("policy", "admission.stopped", asked=["r"], refused=[True], stopped=[[number, "r"]])


@story(37)
def a_mark_outlives_a_forget(on: Onlooker, wrong: bool) -> None:
    retire(on)
    on.emit("policy", "forget.done", rollouts=["r"], ended=None, marks={"r": 1} if wrong else {})


@story(38)
def a_retired_attempt_has_an_effect(on: Onlooker, wrong: bool) -> None:
    retire(on)
    on.emit("policy", "gate.started", episode="r-a1" if wrong else "r-a2", call="r.c0.1")


@story(38)
def a_copy_of_a_call_is_begun_when_all_is_over_and_forgotten(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "forget.done", rollouts=["r"], ended=1, marks={})
    on.emit("policy", "admission.admitted", episode="r-a1" if wrong else "r-a2", ticket=1)


@story(38)
def a_row_of_an_attempt_that_was_given_up(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.retire", episodes=["r"])
    on.emit("controller", "collector.row", episode="r" if wrong else "r-a1")


# ------------------------------------------------------------------------------------------------- restore


@story(60)
def another_state_is_installed(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.publish("c-1", checkpoint("r.c0.1"))
    on.begin_restore("environment")
    on.install("environment", {"r": {"done": 3 if wrong else 2}})


@story(60)
def a_record_is_left_out(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.publish("c-1", checkpoint("r.c0.1"))
    on.begin_restore("environment")
    digests: dict[str, object] = {"digests": {}, "live": []} if wrong else {}
    on.install("environment", checkpoint()["environment"], **digests)


@story(60)
def a_restore_counts_as_done_without_one_participant(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    held = checkpoint("r.c0.1")
    on.publish("c-1", held)
    on.restart()
    for node in held if not wrong else list(held)[:-1]:
        on.begin_restore(node)
        on.install(node, held[node])
    on.emit("controller", "collector.restored", checkpoint_id="c-1", restore_id="x-restore", installed=["r-a1"])


@story(60)
def a_failed_restore_leaves_state(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    live = ["r-a1"] if wrong else []
    on.emit("agent", "restore.ended", restore_id="x-restore", targets=["r-a1"], live=live, marks={"r": 1})


@story(60)
def a_failed_restore_is_not_retired(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    marks = {"r": 0 if wrong else 1}
    on.emit("agent", "restore.ended", restore_id="x-restore", targets=["r-a1"], live=[], marks=marks)


@story(60)
def a_restore_is_resumed_of_which_nothing_is_left(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    on.emit(
        "agent",
        "phase",
        kind="agent",
        instance="agent",
        was="restored",
        now="idle",
        checkpoint_id=None,
        why="LeaseCheck",
    )
    on.emit("agent", "resume.done", checkpoint_id="x-restore" if wrong else "another")


@story(60)
def a_restore_is_continued_of_which_nothing_is_left(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.restored", checkpoint_id="c-0", restore_id="x-restore", installed=["r-a1"])
    on.emit("controller", "coordination.restore_lapsed", restore_id="x-restore", why="its lease has ended")
    on.emit("controller", "collector.dispatch", episode="r-a1" if wrong else "s-a1")


@story(62)
def the_mark_of_a_dead_restore_is_left(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    on.emit("agent", "restore.installed", **installed_of(scope=["r"], marks={"r": 1 if wrong else 0}))


@story(62)
def the_state_of_a_dead_execution_is_left(on: Onlooker, wrong: bool) -> None:
    on.begin_restore("agent")
    live = ["r-a2", "r.b"] if wrong else ["r.b"]
    on.emit("agent", "restore.installed", **installed_of(scope=["r"], live=live))


@story(65, 60)
def the_second_restore_gives_another_state(on: Onlooker, wrong: bool) -> None:
    on.publish("c-1", checkpoint())
    for life in (2, 3):
        on.emit("environment", "node.started", epoch=life)
        on.begin_restore("environment")
        on.install("environment", {"r": {"done": life if wrong else 2}})


# ------------------------------------------------------------------------------------------------- contents


@story(6)
def a_delivered_call_is_made_again(on: Onlooker, wrong: bool) -> None:
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    held = checkpoint("r.c0.1")
    on.publish("c-1", held)
    on.restart()
    for node in held:
        on.begin_restore(node)
        on.install(node, held[node])
    on.emit("controller", "collector.restored", checkpoint_id="c-1", restore_id="x-restore", installed=["r-a1"])
    for node in held:
        on.open(node, "restored")
    on.emit("policy", "gate.started", episode="r-a1", call=f"r-a1.c{0 if wrong else 1}.1")


@story(17)
def an_undelivered_call_is_in_a_session(on: Onlooker, wrong: bool) -> None:
    held = checkpoint()
    held["agent"] = checkpoint("r.c0.1")["agent"]
    if not wrong:
        on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    on.publish("c-1", held)


@story(18)
def a_row_comes_after_the_snapshot(on: Onlooker, wrong: bool) -> None:
    def export() -> None:
        on.emit("policy", "commit.exported", kind="model", checkpoint_id="c-1", episodes=["r"], scope=["r"])

    if wrong:
        export()
    on.emit("policy", "gate.started", episode="r", call="r.c0.1")
    if not wrong:
        export()
    on.publish("c-1", checkpoint("r.c0.1"))


@story(40)
def an_export_goes_beyond_its_scope(on: Onlooker, wrong: bool) -> None:
    episodes = ["r", "r-1"] if wrong else ["r"]
    on.emit("agent", "commit.exported", kind="agent", checkpoint_id="c-1", episodes=episodes, scope=["r"])


@story(40)
def a_checkpoint_holds_a_record_that_nobody_asked_for(on: Onlooker, wrong: bool) -> None:
    held = checkpoint()
    if wrong:
        held["inventory"]["r-1"] = held["inventory"]["r"]
    on.publish("c-1", held)


@story(41)
def nobody_owns_a_continued_episode(on: Onlooker, wrong: bool) -> None:
    on.publish("c-1", checkpoint(), continued=["r", "r-1"] if wrong else ["r"])


@story(52)
def token_ids_are_in_a_checkpoint(on: Onlooker, wrong: bool) -> None:
    held = checkpoint()
    held["environment"]["r"] = {"token_ids" if wrong else "tokens_hash": [1, 2, 3]}
    on.publish("c-1", held)


# ------------------------------------------------------------------------------------------------- controller


@story(2)
def a_second_row_is_written(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.row", episode="r")
    on.emit("controller", "collector.row", episode="r-a1" if wrong else "r-1")


@story(3)
def an_effect_happens_twice(on: Onlooker, wrong: bool) -> None:
    for revision, key in ((1, "r:tool0"), (2, "r:tool0" if wrong else "r:tool1")):
        on.emit("inventory", "tool.effect", episode="r", key=key, revision=revision, session="s", tool="add_item")


@story(3)
def a_session_in_which_a_tool_broke_off_is_exported(on: Onlooker, wrong: bool) -> None:
    route = "add_item" if wrong else "verify"
    on.emit("agent", "net.request", x=1, dst="inventory", method="POST", path=f"/ng-rollout/r/{route}")
    on.emit("inventory", "handler.error", x=1, error="ValueError: the author's")
    held = checkpoint()
    on.publish("c-1", {"inventory": held["inventory"], **held})


@story(3)
def there_are_more_effects_than_steps(on: Onlooker, wrong: bool) -> None:
    revision = 3 if wrong else 2
    on.emit("inventory", "tool.effect", episode="r", key="r:tool2", revision=revision, session="s", tool="add_item")


@story(38)
def an_attempt_is_sent_again(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r-a1")
    on.emit("controller", "node.started", epoch=2)
    on.emit("controller", "collector.retire", episodes=["r-a1"])
    on.emit("controller", "collector.dispatch", episode="r-a1" if wrong else "r-a2")


@story(38)
def the_reply_of_an_attempt_that_was_given_up_settles_the_next(on: Onlooker, wrong: bool) -> None:
    for number, key in enumerate(("r", "r-a1")):
        on.emit("controller", "collector.dispatch", episode=key)
        path = f"/ng-rollout/{key}/run"
        on.emit("controller", "net.request", x=number, dst="environment", method="POST", path=path)
        if not number:
            on.emit("controller", "collector.retire", episodes=["r"])
    on.emit("controller", "net.replied", x=0 if wrong else 1, status=409)
    on.emit("controller", "collector.settled", episode="r-a1", outcome="Lost")


@story(38)
def what_was_given_up_is_continued(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    on.emit("controller", "collector.retire", episodes=["r"])
    if wrong:
        on.emit("controller", "collector.dispatch", episode="r-a1")
    on.emit("controller", "node.started", epoch=2)
    on.emit("controller", "collector.restored", checkpoint_id="c-0", restore_id="x-restore", installed=["r-a1"])


@story(90)
def a_row_is_sent_in_a_checkpoint(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.checkpoint_opened")
    if not wrong:
        on.emit("controller", "collector.checkpoint_closed")
    on.emit("controller", "collector.dispatch", episode="r")


@story(91)
def a_row_in_flight_is_not_committed(on: Onlooker, wrong: bool) -> None:
    for key in ("r", "r-1", "r.b"):
        on.emit("controller", "collector.dispatch", episode=key)
    on.emit("controller", "collector.settled", episode="r.b", outcome="Finished")
    scope = ["r"] if wrong else ["r", "r-1"]
    on.emit("controller", "collector.scope", scope=scope, restarts=[], stop=False)


@story(91)
def a_row_ended_and_is_neither_written_nor_in_the_checkpoint(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    if wrong:
        on.emit("controller", "collector.settled", episode="r", outcome="Finished")
    on.emit("controller", "collector.scope", scope=[] if wrong else ["r"], restarts=[], stop=False)
    if not wrong:  # it is in the checkpoint, and ends while a slow disk publishes that: the leases ran out
        on.emit("controller", "collector.settled", episode="r", outcome="Finished")
    on.publish("c-1", {"environment": {}} if wrong else checkpoint(), continued=[] if wrong else ["r"])


@story(92)
def a_stop_is_resumed(on: Onlooker, wrong: bool) -> None:
    on.close("policy")
    on.emit("controller", "collector.scope", scope=[], restarts=[], stop=True)
    on.publish("c-1", {"environment": {}}, continued=[])
    if wrong:
        on.open("policy", "committed")


@story(93)
def a_row_that_replied_is_retired(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.dispatch", episode="r")
    on.emit("controller", "collector.settled", episode="r", outcome="Failed" if wrong else "Lost")
    on.emit("controller", "collector.retire", episodes=["r"])


@story(93)
def a_row_is_retired_in_a_checkpoint(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.checkpoint_opened")
    if not wrong:
        on.emit("controller", "collector.checkpoint_closed")
    on.emit("controller", "collector.retire", episodes=["r"])


@story(94)
def a_row_is_sent_before_the_restore_is_decided(on: Onlooker, wrong: bool) -> None:
    if wrong:
        on.emit("controller", "collector.dispatch", episode="r-1")
    on.emit("controller", "collector.restored", checkpoint_id="c-0", restore_id="x-restore", installed=["r-a1"])


@story(94)
def a_finished_row_is_sent(on: Onlooker, wrong: bool) -> None:
    on.emit("controller", "collector.row", episode="r")
    on.emit("controller", "collector.dispatch", episode="r-a1" if wrong else "r-1")


# ------------------------------------------------------------------------------------------------- told


@story.each
def test_what_goes_wrong_is_seen_and_named(number: int, also: tuple[int, ...], told: Story) -> None:
    check_wrong(told, number, *also)


@story.each
def test_what_goes_well_is_looked_at_and_passes(number: int, also: tuple[int, ...], told: Story) -> None:
    check_right(told, number)


def test_a_violation_says_where_it_happened() -> None:
    on = Onlooker()
    a_retire_in_a_checkpoint(on, True)
    first = on.oracle.violations[0]
    assert (first.node, first.t) == ("policy", 0.0)
    assert 0 < first.event_index <= on.world.trace.events
    assert "preparing" in first.seen and "no checkpoint is open" in first.must


def test_a_copy_whose_answer_is_still_sent_is_seen_behind_the_original() -> None:
    on = Onlooker()
    for event in ("gate.started", "gate.started"):
        on.emit("policy", event, episode="r", call="r.c0.1")
    on.close("policy")
    on.emit("policy", "gate.done", episode="r", call="r.c0.1")
    on.phase("policy", "preparing", "prepared", "c-1", "Ready")
    assert on.found == {"INV-12"}
