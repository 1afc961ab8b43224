"""A whole gym and its collector, in situations that have a name. Told as fault plans; the oracle judges every one.

Each test looks for the events that make it the situation of its title, so that it cannot pass by missing it.
"""

from __future__ import annotations

from dataclasses import replace

from faults.catalogue import (
    At,
    Crash,
    CrashAtStep,
    DelayAtProbe,
    DiskError,
    Lose,
    OnPhase,
    OnRow,
    Restart,
    Signal,
)
from faults.plan import Setup
from gym_ckpt.errors import GymCkptError
from gym_ckpt.limits import OVER_DISCOVERY_S
from gym_ckpt.ports import Ports
from sim.cluster import Cluster, Options, until
from sim.oracle import Oracle
from sim.reference import played, reference
from sim.run import Verdict
from sim.workload import CONTROLLER, workload
from sim.world import World
from tests.scenario.plans import EVERYTHING, WHOLE, play, seen


def continued(verdict: Verdict) -> list[str]:
    """Episodes that went on from a checkpoint instead of starting from their input."""
    return [row.fields["episode"] for row in seen(verdict, "episode.started") if row.fields["continued"]]


def test_everything_dies_in_mid_generation_and_the_run_goes_on_from_its_checkpoint() -> None:
    verdict = play(Crash(EVERYTHING, OnRow("collector.published"), WHOLE))
    published = seen(verdict, "collector.published")[0].fields["continued"]
    restored = seen(verdict, "collector.restored")
    assert published, "nothing was in flight at the checkpoint"
    assert len(restored) == 1
    assert len(continued(verdict)) == len(published)
    assert verdict.checked["INV-6"] > 0, "no call of a continued rollout was looked at"
    saved = restored[0].fields["saved"]
    assert saved["model_calls"] >= 5 and saved["tokens"] > 40 * saved["model_calls"], "and the run says what it saved"


def test_a_checkpoint_under_way_is_lost_and_the_one_before_is_restored() -> None:
    verdict = play(Crash(EVERYTHING, OnPhase("committed", 7), WHOLE))
    first, *_ = [row.fields["checkpoint_id"] for row in seen(verdict, "collector.published")]
    assert [row.fields["checkpoint_id"] for row in seen(verdict, "collector.restored")] == [first]


def test_a_crash_between_the_first_collection_and_the_first_pointer_continues_all_the_same() -> None:
    """No pointer names the checkpoint, and every record of it is durable. The same after a pointer that was lost."""
    verdict = play(CrashAtStep("controller", 3, "files.rename", "before", WHOLE, everything=True))
    assert any("LATEST: is missing" in row.fields["text"] for row in seen(verdict, "collector.message"))
    assert len(seen(verdict, "collector.restored")) == 1 and continued(verdict)


def test_a_restore_that_one_server_cannot_do_is_undone_everywhere() -> None:
    lost = Crash(EVERYTHING, OnRow("collector.published"), WHOLE)
    verdict = play(lost, DiskError("inventory", "EIO", 1, 1000, "records.read"))
    assert not seen(verdict, "collector.restored")
    assert seen(verdict, "restore.discarded") and seen(verdict, "restore.installed")
    assert not continued(verdict)
    assert verdict.checked["INV-60"] > 0


def test_a_restore_whose_leases_end_before_it_is_resumed_has_failed() -> None:
    """Its rows start from input, one attempt after those that every server refuses."""
    lost, late = (
        Crash(EVERYTHING, OnRow("collector.published"), WHOLE),
        DelayAtProbe("collector.restore_installed", 6.0),
    )
    verdict = play(lost, late, setup=Setup(workload=3, every_s=0.9, timeout_s=1.5, grace_s=2.0))
    assert seen(verdict, "collector.restored") and len(seen(verdict, "coordination.restore_lapsed")) == 1
    assert any("gone before it could be used" in row.fields["text"] for row in seen(verdict, "collector.message"))
    assert not continued(verdict)
    installed = set(seen(verdict, "collector.restored")[0].fields["installed"])
    assert installed.isdisjoint(row.fields["episode"] for row in seen(verdict, "collector.dispatch"))


def test_a_restore_whose_reply_is_lost_is_no_lost_restore() -> None:
    lost = Crash(EVERYTHING, OnRow("collector.published"), WHOLE)
    verdict = play(lost, Lose("inventory", "restore", "after"))
    assert len(seen(verdict, "collector.restored")) == 1
    installed = [row.node for row in seen(verdict, "restore.installed")]
    assert sorted(installed) == sorted(set(installed)), "a repeated call did the work twice"


def test_sigterm_stops_with_a_checkpoint_and_the_requeued_job_continues_it() -> None:
    verdict = play(Signal("SIGTERM", At(0.8)), setup=Setup(workload=3))
    first, last = seen(verdict, "collector.exit")
    assert first.fields["status"] == last.fields["status"] == 0
    assert "stopped" in first.fields["message"]
    assert len(seen(verdict, "collector.published")) == 1
    assert continued(verdict)


def test_a_stopped_job_that_comes_back_to_servers_that_stayed_up_starts_from_input() -> None:
    verdict = play(Signal("SIGTERM", At(0.8)), setup=Setup(workload=3), requeue=Restart("alone", 60.0))
    messages = [row.fields["text"] for row in seen(verdict, "collector.message")]
    assert any("the servers stayed up" in text for text in messages), messages
    assert not continued(verdict)


def test_a_second_sigterm_stops_at_once_and_the_checkpoint_in_force_is_continued() -> None:
    verdict = play(Signal("SIGTERM", OnRow("collector.checkpoint_opened", 2), 0.05))
    assert seen(verdict, "collector.exit")[0].fields["status"] == 143
    assert len(seen(verdict, "collector.signal")) == 2 and continued(verdict)


def test_two_sigterms_of_one_cause_cost_no_checkpoint() -> None:
    verdict = play(
        Signal("SIGTERM", OnRow("collector.checkpoint_opened", 2), 0.05),
        setup=Setup(workload=3, every_s=0.9, one_sigterm_s=0.1),
    )
    stopped = seen(verdict, "collector.exit")[0]
    before = [row for row in seen(verdict, "collector.published") if row.t <= stopped.t]
    assert stopped.fields["status"] == 0 and len(before) == 2, "the second was the last one's"


def test_a_second_collector_on_the_directory_of_a_live_one_is_turned_away() -> None:
    world = World(5, keep_all_rows=True)
    cluster = Cluster(world, workload(3), Options(every_s=0.9))
    oracle = Oracle(world, cluster, reference(3))
    oracle.attach()
    refusals: list[str] = []

    async def intruder(ports: Ports) -> None:
        try:
            await cluster.collect(ports, resume=True)
        except GymCkptError as error:
            refusals.append(str(error))

    async def script(world: World) -> None:
        cluster.start()
        await world.sleep(1.0)
        world.add_node("intruder", intruder, start=True)
        await until(world, lambda: bool(refusals), 30.0)
        assert world.nodes[CONTROLLER].alive, "the live collector was to be disturbed"
        assert await until(world, lambda: not world.nodes[CONTROLLER].alive, 300.0)

    world.run(script, horizon_s=1000.0).check()
    oracle.judge()
    assert len(refusals) == 1 and "/run" in refusals[0]
    assert cluster.complete
    assert not oracle.violations


def test_an_environment_that_is_down_for_a_while_costs_the_rows_that_were_being_sent_and_no_other() -> None:
    work = replace(workload(3, 40), concurrency=4)
    world = World(7, keep_all_rows=True)
    cluster = Cluster(world, work, Options())
    oracle = Oracle(world, cluster, played(work))
    oracle.attach()
    down: list[float] = []

    async def script(world: World) -> None:
        cluster.start()
        await world.sleep(1.0)
        world.nodes["environment"].crash()
        down.append(world.now)
        await world.sleep(120.0)
        down.append(world.now)
        world.nodes["environment"].start()
        assert await until(world, lambda: not world.nodes[CONTROLLER].alive, 600.0)

    world.run(script, horizon_s=2000.0).check()
    oracle.judge()
    assert cluster.complete
    sent = [row.t for row in world.trace.rows if row.event == "collector.dispatch"]
    assert len(sent) > len(work.tasks), "no row was lost with the environment"
    meanwhile = sum(down[0] <= t <= down[1] for t in sent)
    assert 1 <= meanwhile <= work.concurrency, f"{meanwhile} rows were sent to nobody"


def test_a_complete_run_that_is_started_again_without_servers_ends_at_once() -> None:
    world = World(3, keep_all_rows=True)
    cluster = Cluster(world, workload(3), Options())
    oracle = Oracle(world, cluster, reference(3))
    oracle.attach()
    took: list[float] = []

    async def script(world: World) -> None:
        cluster.start()
        assert await until(world, lambda: not world.nodes[CONTROLLER].alive, 300.0)
        for servers in (False, True):
            cluster.crash()
            if servers:
                cluster.start()
            else:
                world.nodes[CONTROLLER].start()
            began = world.now
            assert await until(world, lambda: not world.nodes[CONTROLLER].alive, 30.0, 0.05)
            took.append(world.now - began)
            assert cluster.complete and cluster.outcome is not None and cluster.outcome.summary.complete

    world.run(script, horizon_s=1000.0).check()
    oracle.judge()
    assert not oracle.violations
    assert max(took) < OVER_DISCOVERY_S + 0.5, took
    assert sum(row.event == "forget.done" for row in world.trace.rows) > 0
