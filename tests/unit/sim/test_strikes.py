"""A fault strikes as its words say: there, then, and nothing beside it."""

from __future__ import annotations

from random import Random

import pytest

from faults import catalogue as faults
from faults.catalogue import At, Fault, Restart
from faults.draw import _Drawing
from faults.plan import Plan, Setup
from sim.run import Verdict, run_seed
from sim.workload import WORKLOADS, workload
from sim.world import World

WHOLE = Restart("whole", 0.05)
CAPTURED = next(number for number in range(WORKLOADS) if workload(number).policies[1:])


class Seen:
    """What a world with these faults comes by: disk operations that took effect, and rows of its trace."""

    def __init__(self, *strikes: Fault, chaos_s: float = 8.0, number: int = 3, seed: int = 5) -> None:
        self.did: list[tuple[float, str, str]] = []
        setup = Setup(workload=number, every_s=0.8, timeout_s=8.0)
        plan = Plan(setup, chaos_s=chaos_s, requeue=WHOLE, faults=strikes)
        self.verdict: Verdict = run_seed(seed, plan=plan, watch=self._watch, keep_all_rows=True)
        assert self.verdict.ok, self.verdict.violations
        self.rows = self.verdict.rows

    def _watch(self, world: World) -> None:
        world.disk.on_done = lambda owner, op, _path: self.did.append((world.now, owner, op))
        world.trace.subscribe(lambda row: self.did.append((row.t, row.node, "dies")), ("node.crashed",))

    def before_death(self, node: str) -> str:
        """The last thing that this node did on the disk before it died first."""
        mine = [op for _, owner, op in self.did if owner == node]
        return mine[mine.index("dies") - 1]

    def deaths(self) -> list[tuple[float, str]]:
        return [(t, node) for t, node, op in self.did if op == "dies"]


@pytest.mark.parametrize("everything", [False, True])
def test_a_crash_after_a_step_finds_it_done_and_one_before_does_not(everything: bool) -> None:
    for side, last in (("before", "create"), ("after", "write")):
        fault = faults.CrashAtStep("controller", 6, "files.write", side, WHOLE, everything)  # type: ignore[arg-type]
        seen = Seen(fault)
        assert seen.before_death("controller") == last
        at_once = [node for t, node in seen.deaths() if t == seen.deaths()[0][0]]
        assert sorted(at_once) == sorted(("controller", *workload(3).servers) if everything else ("controller",))
        assert seen.verdict.faults["crash_at_step"] == 1


def test_once_all_is_healed_a_slow_step_kills_nobody() -> None:
    slow = faults.SlowDisk("controller", 20.0, 6, 1, "files.write")
    for everything in (False, True):
        dies = faults.CrashAtStep("controller", 6, "files.write", "after", WHOLE, everything)
        seen = Seen(slow, dies, chaos_s=3.0)
        assert not seen.deaths() and "crash_at_step" not in seen.verdict.faults


def test_a_request_whose_sender_dies_once_it_is_sent_is_worked_on() -> None:
    worked = 0
    for k in (2, 3, 4, 5, 8):
        seen = Seen(faults.CrashAtMessage("agent", "sent", k, Restart("alone", 1.0)))
        died = next(at for at, row in enumerate(seen.rows) if row.event == "node.crashed")
        sent = next(row for row in reversed(seen.rows[:died]) if row.event == "net.request" and row.node == "agent")
        assert seen.rows[died].t - sent.t == pytest.approx(0.0001)
        after = [row for row in seen.rows[died:] if row.t < sent.t + 0.1]
        assert any(row.event == "net.arrived" and row.fields["x"] == sent.fields["x"] for row in after)
        worked += any(row.event == "gate.admitted" and row.fields["call"] == sent.fields.get("call") for row in after)
    assert worked, "a model call of an agent that is gone"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keep_alives", [0, 3])
def test_a_slow_worker_is_slow_whether_it_streams_and_whatever_it_sends_meanwhile(
    stream: bool, keep_alives: int
) -> None:
    number = next(number for number in range(WORKLOADS) if workload(number).stream is stream)
    seen = Seen(faults.SlowWorker(2.0, 1, 6, keep_alives), number=number, chaos_s=30.0)
    requests = [row for row in seen.rows if row.event == "net.request" and row.fields["dst"] == "worker"]
    asked = {row.fields["x"]: row.t for row in requests if row.fields["path"].endswith("/completions")}
    slow = sorted(asked)[:6]
    took = [row.t - asked[x] for row in seen.rows if row.event == "net.replied" and (x := row.fields["x"]) in slow]
    assert took and min(took) > 2.0
    assert seen.verdict.faults["slow_worker"] == 6


@pytest.mark.parametrize("silent", [False, True])
def test_a_partition_loses_replies_too(silent: bool) -> None:
    """One way, on the way there and on the way back, also of exchanges that were under way before it."""
    from_s, for_s = 0.3, 2.0
    cut = faults.Partition("agent", "environment", from_s, for_s, silent)
    seen = Seen(cut, chaos_s=40.0)
    to_agent = {
        row.fields["x"]: row.t
        for row in seen.rows
        if row.event == "net.request" and (row.node, row.fields["dst"]) == ("environment", "agent")
    }
    of_agent = [row for row in seen.rows if row.fields.get("x") in to_agent]
    during = [row for row in of_agent if from_s + 0.01 < row.t < from_s + for_s]
    assert not [row for row in during if row.event == "net.replied"], "no reply gets through"
    heads = [row for row in during if row.event == "net.head"]
    assert heads and any(to_agent[row.fields["x"]] < from_s for row in heads), "requests do, and are answered"
    failed = [row.t - from_s for row in of_agent if row.event == "net.failed"]
    assert failed and (min(failed) > 5.0) is silent
    assert seen.verdict.faults["partition"] >= len(failed)


def test_what_lasts_counts_once_it_is_felt() -> None:
    late = faults.Slow("agent", 500.0, 1.0, 1.0), faults.Partition("agent", "environment", 500.0, 1.0)
    nobody = faults.HalfOpen("verifier", "worker", At(0.5), 2.0)
    offset, jitter = faults.ClockOffset("agent", 3.0), faults.Jitter(0.005)
    slow = faults.Slow("policy", 0.0, 4.0, 0.01)
    struck = Seen(*late, nobody, offset, jitter, slow).verdict.faults
    assert struck == {"clock_offset": 1, "jitter": 1, "slow": 1}
    assert Seen(faults.LeaseExpiry("agent", "prepared", 12.0), chaos_s=20.0).verdict.faults.keys() == {"lease_expiry"}


def test_links_are_cut_between_those_who_talk() -> None:
    rows = Seen(number=CAPTURED).rows
    asked = {(row.node, row.fields["dst"].removesuffix(":80")) for row in rows if row.event == "net.request"}
    pairs = set(_Drawing(Random(1), 1.0, Setup(workload=CAPTURED)).pairs)
    assert pairs <= asked and {pair for pair in asked if "operator" not in pair and "worker" not in pair} <= pairs
