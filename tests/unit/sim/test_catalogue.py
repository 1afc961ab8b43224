"""Every fault of the catalogue: it is data, it is drawn, it strikes, and the system survives it."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from faults import catalogue as faults
from faults.acts import MALFORMED
from faults.budget import within_budget
from faults.catalogue import EVERYTHING, At, Fault, OnPhase, OnRow, Restart, kind_of
from faults.draw import AREAS, KINDS, POINTS, PROFILES, draw
from faults.plan import Plan, Setup, dump, load
from sim.cluster import HOSTS
from sim.network import parse
from sim.oracle.findings import caller
from sim.report import screen
from sim.run import run_seed
from sim.workload import RESTARTING, WORKLOADS, workload

CAPTURED, STREAMED, JUDGED = 1, 1, 1
WHOLE = Restart("whole", 0.01)
SLOW = faults.SlowWorker | faults.StuckWorker
PUBLISHED = OnRow("collector.published")
AT_RESTART = faults.NotThere | faults.GymChanged
EXAMPLES: tuple[Fault, ...] = (
    faults.Crash(("agent",), At(0.4), Restart("alone", 0.2)),
    faults.CrashHost("gpu", OnRow("gate.started", 3), WHOLE),
    faults.CrashAtProbe("gate.row_written", 2, Restart("alone", 0.1)),
    faults.CrashAtStep("policy", 1, "ledger.fsync", "after", Restart("alone", 0.1)),
    *(faults.CrashAtMessage("environment", side, 4, WHOLE) for side in get_args(faults.Side)),
    faults.Pause("agent", OnPhase("prepared", 1), 0.8),
    faults.Pause("policy", At(0.5), 30.0),
    faults.DelayAtProbe("commit.exported", 0.7, 2),
    faults.FailAtProbe("gate.row_written", 2),
    faults.FailAtProbe("collector.replied", 2),
    faults.Slow("inventory", 0.2, 1.0, 0.05),
    *(faults.Lose("agent", "responses", how, 2, chunks=1) for how in get_args(faults.Loss)),
    faults.Delay("policy", "completions", 2, 3, 0.2, 0.4),
    faults.Duplicate("inventory", "take_item", 1, 3, 0.01),
    faults.Duplicate("policy", "prepare", 1, 1, when=OnPhase("prepared", 4)),
    faults.Jitter(0.05),
    faults.Partition("agent", "policy", 0.2, 0.5),
    faults.Disconnect("policy", "completions", 0.1, 2, 2),
    faults.SlowReader("policy", "completions", 0.2, 1, 4),
    faults.HalfOpen("agent", "policy", OnRow("gate.started", 2), 0.5),
    faults.Overrun("commit", "agent", 4.0),
    faults.LeaseExpiry("agent", "prepared", 24.0),
    faults.LateTimers("controller", 0.1, 2.0, 0.1),
    faults.ClockOffset("policy", -600.0),
    faults.ClockDrift("agent", 0.1),
    faults.ClockJump("environment", 4000.0, At(0.5)),
    faults.DiskError("agent", "ENOSPC", 1, 2, "records.write"),
    faults.SlowDisk("controller", 0.5, 1, 2, "files.fsync"),
    *(faults.NotThere("controller", look, 1, 30) for look in get_args(faults.Look)),
    faults.BitFlip(OnRow("collector.published", 2), 3, 77),
    faults.Signal("SIGTERM", At(0.7), 0.2, group=True),
    faults.SlowWorker(1.5, 1, 4, keep_alives=2),
    faults.StuckWorker(2, 1, chunks=1),
    *(faults.Overload(At(0.3), 2.0, 429, says, 1.5) for says in ("", "retry-after", "retry-after-ms")),
    faults.FailedReply("inventory", "take_item", 500, 1, 2),
    faults.ToolFails("inventory", 1, 2),
    faults.JudgeFails("verifier", "raises"),
    faults.JudgeFails("inventory", "late"),
    *(faults.BadState("inventory", how, 1, 2) for how in get_args(faults.StateIs)),
    faults.GymChanged("inventory"),
    faults.Mislaid(OnRow("collector.checkpoint_closed")),
    faults.Mislaid(OnRow("collector.checkpoint_closed"), pointer=False),
    *(faults.Rival(how, 4) for how in get_args(faults.RivalDoes)),
    *(faults.Ungated(by, At(0.3)) for by in get_args(faults.UngatedBy)),
    *(faults.Stranger("policy", asks, OnPhase("prepared", 2), 3) for asks in get_args(faults.StrangerAsks)),
)
NAMES = [f"{kind_of(fault)}-{number}" for number, fault in enumerate(EXAMPLES)]


def played(fault: Fault, number: int = CAPTURED) -> Plan:
    setup = Setup(workload=number, every_s=0.5, timeout_s=8.0)
    lost = (faults.Crash((EVERYTHING,), PUBLISHED, WHOLE),) if isinstance(fault, AT_RESTART) else ()
    return Plan(setup, chaos_s=8.0, requeue=WHOLE, faults=(*lost, fault))


@pytest.mark.parametrize("fault", EXAMPLES, ids=NAMES)
def test_it_strikes_and_is_survived(fault: Fault) -> None:
    plan = played(fault)
    assert load(dump(plan)) == plan
    assert fault.words()
    verdict = run_seed(1, "kept", plan=plan)
    assert verdict.faults.get(kind_of(fault)), "a fault that never strikes finds nothing"
    assert verdict.ok, screen(verdict, "this test")


def test_every_class_has_an_example_and_is_drawn() -> None:
    classes = set(get_args(Fault))
    assert {type(fault) for fault in EXAMPLES} == classes
    drawn: Counter[type] = Counter()
    for seed in range(1200):
        drawn.update(type(fault) for fault in draw(seed, "default").faults)
    assert set(drawn) == classes, "each is drawn by the profile of every day"


@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_a_named_point_is_survived(point: str) -> None:
    slow = faults.SlowDisk("agent", 7.0, 2, 1, "records.write")  # long enough for a lease to be renewed
    lost = faults.Crash((EVERYTHING,), OnRow("collector.published", 2), WHOLE)
    gone = faults.Crash(("environment",), At(0.3), Restart("alone", 0.1))
    setup = Setup(workload=CAPTURED, every_s=0.5, timeout_s=20.0)
    plan = Plan(setup, chaos_s=30.0, requeue=WHOLE, faults=(slow, lost, gone, faults.FailAtProbe(point)))
    verdict = run_seed(1, "kept", plan=plan)
    assert verdict.faults.get("fail_at_probe") == 1
    assert verdict.ok, screen(verdict, "this test")


def test_a_tool_call_that_fails_after_its_effect_is_in_no_checkpoint() -> None:
    """Whatever fails between the effect and the answer: an answer that cannot be written, for one."""
    tools = ("add_item", "count_items", "take_item")
    slow = tuple(faults.Delay("inventory", tool, 1, 20, 0.3) for tool in tools)
    setup = Setup(workload=3, every_s=0.5, timeout_s=3.0)
    for point, k in (("after_effect", 1), ("after_effect", 4), ("before_effect", 4)):
        failing: tuple[Fault, ...] = (*slow, faults.FailAtProbe(f"resources.{point}", k))
        verdict = run_seed(1, "kept", plan=Plan(setup, chaos_s=8.0, requeue=WHOLE, faults=failing))
        assert verdict.faults.get("fail_at_probe") == 1
        assert verdict.ok, screen(verdict, "this test")


def test_each_of_two_workers_is_slow_or_stuck_by_its_name() -> None:
    two = next(number for number in range(WORKLOADS) if workload(number).workers[1:])
    other = workload(two).workers[1]
    for fault in (faults.SlowWorker(0.5, node=other), faults.StuckWorker(node=other)):
        verdict = run_seed(1, "kept", plan=played(fault, two), keep_all_rows=True)
        struck = [row for row in verdict.rows if row.event == "fault"]
        assert struck and all(str(row.fields["words"]).startswith(other) for row in struck)
        assert verdict.ok, screen(verdict, "this test")
    drawn = {fault.node for seed in range(600) for fault in draw(seed, "inference").faults if isinstance(fault, SLOW)}
    assert drawn == {"worker", other}


def test_every_area_has_a_profile_and_kinds() -> None:
    assert {area for area, *_ in KINDS} == set(AREAS) <= set(PROFILES)


def test_a_stopped_process_sees_what_came_meanwhile_all_at_once() -> None:
    verdict = run_seed(3, plan=played(faults.Pause("policy", OnRow("gate.admitted", 2), 2.0)), keep_all_rows=True)
    rows = list(verdict.rows)
    stopped = next(index for index, row in enumerate(rows) if row.event == "node.stopped")
    goes_on = next(index for index, row in enumerate(rows) if row.event == "node.continued")
    between = {row.event for row in rows[stopped:goes_on] if row.node == "policy" and row.t > rows[stopped].t}
    assert between <= {"net.arrived", "net.replied", "net.failed", "net.duplicate"}, "its connections live, it does not"
    assert rows[goes_on].t - rows[stopped].t == pytest.approx(2.0)
    assert verdict.ok, screen(verdict, "this test")


def test_a_rotten_checkpoint_is_passed_over_for_the_one_before() -> None:
    flip = faults.BitFlip(OnRow("collector.published", 2), 5, 9)
    crash = faults.Crash(("*",), OnRow("disk.flipped"), WHOLE)
    plan = Plan(Setup(workload=1, every_s=0.4), chaos_s=6.0, requeue=WHOLE, faults=(flip, crash))
    verdict = run_seed(2, plan=plan, keep_all_rows=True)
    said = [row.fields["text"] for row in verdict.rows if row.event == "collector.message"]
    assert any("cannot be used: " in text and "trying the one before" in text for text in said), said
    assert verdict.ok, screen(verdict, "this test")


def test_sessions_that_cannot_be_captured_start_again() -> None:
    crash = faults.Crash(("*",), PUBLISHED, WHOLE)
    plan = Plan(Setup(workload=RESTARTING, every_s=0.4), chaos_s=5.0, requeue=WHOLE, faults=(crash,))
    verdict = run_seed(4, plan=plan, keep_all_rows=True)
    restarts = [row.fields["report"]["restarts"] for row in verdict.rows if row.event == "prepare.replied"]
    assert any(restarts) and verdict.checked["INV-23"] and verdict.ok, screen(verdict, "this test")


def test_malformed_ids_are_malformed() -> None:
    for key in MALFORMED:
        assert caller(parse(f"http://a:80/ng-rollout/{key}/v1/responses").path) is None, key


def test_hosts_hold_every_node() -> None:
    nodes = {"controller", *(name for number in range(13) for name in workload(number).servers)}
    assert sorted(name for host in HOSTS.values() for name in host) == sorted(nodes)


def test_the_budget_bounds_what_lasts_and_counts_what_kills() -> None:
    long = within_budget(Plan(faults=(faults.Pause("agent", At(1.0), 1e6), faults.LateTimers("agent", 0.0, 1.0, 9.0))))
    assert long.faults[0] == faults.Pause("agent", At(1.0), 60.0)
    deaths = tuple(faults.CrashHost("cpu", At(1.0)) for _ in range(24))
    assert len(within_budget(Plan(faults=deaths)).faults) == 20
