"""What a plan's setup makes of a world, and a gym of its hosts."""

from __future__ import annotations

from collections import Counter

from faults.catalogue import At, ClockDrift, ClockJump
from faults.draw import draw
from faults.plan import Plan, Setup, dump, load
from sim.cluster import HOST_OF, HOSTS, Cluster, Options
from sim.run import run_seed
from sim.trace import Row
from sim.workload import WORKLOADS, workload
from sim.world import World


def test_a_file_system_without_hard_links_publishes_manifests_under_a_lock() -> None:
    steps: Counter[str] = Counter()

    def watch(world: World) -> None:
        def saw(row: Row) -> None:
            steps[row.fields["step"]] += 1

        world.trace.subscribe(saw, ("disk.step",))

    plan = Plan(setup=Setup(workload=1, every_s=0.8, links=False))
    assert load(dump(plan)) == plan and "no hard links" in plan.words()[0]
    verdict = run_seed(3, plan=plan, watch=watch)
    assert verdict.ok, verdict.violations
    assert steps["manifest.lock"] == steps["manifest.rename"] > 0


def test_words_say_how_many_signals_are_one() -> None:
    assert "SIGTERMs within 0.1 s are one" in Setup(one_sigterm_s=0.1).words()
    assert "SIGTERM" not in Setup().words()


def test_some_seeds_have_no_hard_links_and_most_have() -> None:
    without = sum(not draw(seed, "default").setup.links for seed in range(300))
    assert 10 < without < 60


def test_the_nodes_of_a_host_share_its_wall_clock() -> None:
    for number in range(WORKLOADS):
        world = World(1)
        Cluster(world, workload(number), Options())
        clocks = {name: node.clock for name, node in world.nodes.items()}
        assert {HOST_OF[name] for name in clocks} == {*HOSTS}
        for one, clock in clocks.items():
            for other, its in clocks.items():
                assert (clock is its) is (HOST_OF[one] == HOST_OF[other])


def test_a_fault_of_a_clock_is_its_hosts() -> None:
    plan = Plan(
        setup=Setup(workload=0, every_s=0.8),
        chaos_s=3.0,
        faults=(ClockJump("agent", -500.0, At(1.0)), ClockDrift("environment", 0.5)),
    )
    worlds: list[World] = []
    verdict = run_seed(3, plan=plan, watch=worlds.append)
    assert verdict.ok and set(verdict.faults) == {"clock_jump", "clock_drift"}
    walls = {name: node.clock.wall() for name, node in worlds[0].nodes.items() if name in HOST_OF}
    assert walls["agent"] == walls["inventory"] < walls["policy"] - 400 < walls["controller"] - 400
    assert walls["controller"] == walls["environment"]
