"""Signals to a collector at every kind of moment, in the simulator (scenarios 30 and 31; INV-96)."""

from __future__ import annotations

import pytest

from faults.catalogue import At, Crash, DelayAtProbe, OnPhase, OnRow, Pause, Signal, When
from faults.plan import Setup
from gym_ckpt.limits import STOP_REST_S
from tests.scenario.plans import EVERYTHING, WHOLE, play, seen

MOMENTS: dict[str, When] = {
    "before the servers are up": At(0.0),
    "while servers are asked for their status": OnRow("net.arrived", 2),
    "as the first row is sent": OnRow("collector.dispatch", 1),
    "as a checkpoint opens": OnRow("collector.checkpoint_opened", 1),
    "in the middle of prepare": OnPhase("preparing", 3),
    "in the middle of the commit": OnPhase("committed", 3),
    "when it is published": OnRow("collector.published", 1),
    "while the last row finishes": OnRow("collector.settled", 8),
    "when the last row is written": OnRow("collector.row", 8),
}
IN_A_CHECKPOINT = {
    "as a checkpoint opens",
    "in the middle of prepare",
    "in the middle of the commit",
    "when it is published",
}
AT_THE_END = {"while the last row finishes", "when the last row is written"}
TAKEN = ("collector.checkpoint_opened", "collector.published")


@pytest.mark.parametrize("when", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("again_s", [None, 0.0, 0.05], ids=["once", "twice at once", "twice"])
def test_sigterm_ends_the_run_in_order_and_the_next_one_loses_nothing(when: When, again_s: float | None) -> None:
    verdict = play(Signal("SIGTERM", when, again_s), setup=Setup(workload=3, every_s=0.9))
    assert seen(verdict, "collector.signal"), "the signal was to come while there was a collector"
    first = seen(verdict, "collector.exit")[0].fields
    assert first["status"] in ((0,) if again_s is None else (0, 143)), first
    assert first["message"].startswith(("stopped", "all 8 rows")), first


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigusr1_leads_to_a_checkpoint_or_is_answered_and_the_run_goes_on(moment: str) -> None:
    """There is no timer: the checkpoint in which it comes is the one that an earlier signal asked for."""
    earlier = (Signal("SIGUSR1", At(0.4)),) if moment in IN_A_CHECKPOINT else ()
    verdict = play(*earlier, Signal("SIGUSR1", MOMENTS[moment], 0.0), setup=Setup(workload=3))
    assert len(seen(verdict, "collector.exit")) == 1, "no signal of this kind ends a run"
    told = seen(verdict, "collector.signal")
    assert len(told) == 2 + len(earlier)
    after = verdict.rows[verdict.rows.index(told[-1]) :]
    if moment in AT_THE_END:
        assert all("nothing is left to checkpoint" in each.fields["answer"] for each in told)
    else:
        assert [row.event for row in after if row.event in TAKEN][-2:] == list(TAKEN), "another one, for this signal"


def test_a_collector_that_is_stopped_as_it_asks_for_clocks_does_not_take_them_for_wrong() -> None:
    """SIGSTOP between a checkpoint's status calls and their answers: the prepares after SIGCONT came too late by half
    of the pause, and were made again in vain for as long as the checkpoint might take."""
    asked, setup = Signal("SIGUSR1", At(0.4)), Setup(workload=3, timeout_s=60.0)
    calm = play(asked, setup=setup)
    after = calm.rows[calm.rows.index(seen(calm, "collector.checkpoint_opened")[0]) :]
    ask = next(row for row in after if row.event == "net.request" and row.fields["path"].endswith("/status"))
    k = 1 + [row.fields["x"] for row in seen(calm, "net.arrived")].index(ask.fields["x"])
    verdict = play(asked, Pause("controller", OnRow("net.arrived", k), 45.0), setup=setup)
    (published,) = seen(verdict, "collector.published")
    assert not seen(verdict, "collector.checkpoint_failed")
    assert published.t < seen(verdict, "node.continued")[0].t + 1.0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_signal_in_the_middle_of_a_restore(name: str, k: int) -> None:
    lost = Crash(EVERYTHING, OnRow("collector.published"), WHOLE)
    signal = Signal("SIGTERM" if name == "SIGTERM" else "SIGUSR1", OnRow("restore.installed", k))
    verdict = play(lost, signal)
    assert seen(verdict, "collector.signal")
    if name == "SIGTERM":
        assert "is still in force" in seen(verdict, "collector.exit")[0].fields["message"]


HANGS: dict[str, When] = {
    "before it is asked": OnRow("collector.checkpoint_opened", 1),
    "in the middle of prepare": OnPhase("preparing", 2),
    "in the middle of the commit": OnPhase("committed", 1),
}


@pytest.mark.parametrize("node", ["agent", "environment", "inventory"])
@pytest.mark.parametrize("when", HANGS.values(), ids=HANGS)
@pytest.mark.parametrize("told", ["as the checkpoint begins", "while its servers are resumed"])
def test_a_stop_gives_a_server_that_hangs_no_time_beyond_its_own(node: str, when: When, told: str) -> None:
    timeout_s = 5.0
    begins = OnRow("collector.checkpoint_opened", 1)
    sigterm = Signal("SIGTERM", begins if told == "as the checkpoint begins" else At(timeout_s + 4.0))
    verdict = play(Pause(node, when, 300.0), sigterm, setup=Setup(workload=3, every_s=0.9, timeout_s=timeout_s))
    signal, ended = seen(verdict, "collector.signal")[0], seen(verdict, "collector.exit")[0]
    assert ended.fields["status"] == 1 and node in ended.fields["message"], ended.fields
    assert ended.t - signal.t < timeout_s + STOP_REST_S + 1.0, "one rest on the way out, and what is done at once"


@pytest.mark.parametrize("delay_s", [3.0, 40.0])
def test_a_stop_counts_the_time_for_which_a_dispatch_keeps_it_waiting(delay_s: float) -> None:
    """A dispatch that is being logged holds the gate; what a slow disk takes there is not given once more."""
    timeout_s = 5.0
    slow = DelayAtProbe("collector.dispatch_logged", delay_s, k=2)
    hangs = Pause("agent", OnRow("collector.signal"), 300.0)
    sigterm = Signal("SIGTERM", OnRow("collector.settled", 2))
    verdict = play(slow, sigterm, hangs, setup=Setup(workload=4, timeout_s=timeout_s))
    signal, ended = seen(verdict, "collector.signal")[0], seen(verdict, "collector.exit")[0]
    assert ended.fields["status"] == 1, ended.fields
    assert ended.t - signal.t < timeout_s + STOP_REST_S + 1.0
