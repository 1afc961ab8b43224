"""Servers that come up late, or not at all, as a controller finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.core.coordination import skew_s
from gym_ckpt.errors import NotCheckpointable
from gym_ckpt.limits import CONTROL_RETRY_MAX_S
from gym_ckpt.ports import Clock, Ports
from sim.world import World
from tests.property.toys import TOKEN, Toy, ToyEnvironment, serve

LATE_S, BUDGET_S = 20.0, 5.0
NAMES = ("environment", "model")


def play(up_after_s: float | None, controller: Callable[[Coordination, dict[str, Clock]], Awaitable[None]]) -> None:
    """`up_after_s`: of the model server; None is never. The controller is also given everybody's clock."""
    world = World(1)
    over = anyio.Event()
    clocks: dict[str, Clock] = {}

    def server(name: str, kind: type[Toy]) -> Callable[[Ports], Awaitable[None]]:
        async def main(ports: Ports) -> None:
            clocks[name] = ports.clock
            await serve(kind(name, ports), f"http://{name}:80")

        return main

    async def main(ports: Ports) -> None:
        clocks["controller"] = ports.clock
        await controller(Coordination({name: f"http://{name}:80" for name in NAMES}, TOKEN, ports), clocks)
        over.set()

    async def script(world: World) -> None:
        world.nodes["controller"].start()
        world.nodes["environment"].start()
        if up_after_s is not None:
            await anyio.sleep(up_after_s)
            world.nodes["model"].start()
        await over.wait()

    for name, kind in zip(NAMES, (ToyEnvironment, Toy), strict=True):
        world.add_node(name, server(name, kind))
    world.add_node("controller", main)
    world.run(script, 200.0).check()


def test_the_clock_of_a_server_that_came_up_late_is_not_taken_for_another() -> None:
    """Or its deadlines would be later than meant, by half the time for which it was waited (INV-53)."""

    async def controller(coordination: Coordination, clocks: dict[str, Clock]) -> None:
        found = await coordination.discover()
        assert anyio.current_time() > LATE_S and [member.name for member in found] == list(NAMES)
        for member in found:
            ahead_s = clocks[member.name].wall() - clocks["controller"].wall()
            assert member.skew_s == pytest.approx(ahead_s, abs=0.1)

    play(LATE_S, controller)


@pytest.mark.parametrize("off_s", [0.0, 30.0, -30.0])
@pytest.mark.parametrize(("before_s", "after_s"), [(0.001, 0.001), (45.0, 0.0), (0.0, 45.0)])
def test_an_exchange_that_took_long_proves_no_clock_wrong(off_s: float, before_s: float, after_s: float) -> None:
    found = skew_s(100.0, 100.0 + before_s + after_s, 100.0 + before_s + off_s)
    assert abs(found) <= abs(off_s) and abs(found - off_s) <= before_s + after_s


def test_a_checkpoint_looks_for_its_servers_no_longer_than_it_may_take() -> None:
    async def controller(coordination: Coordination, _: dict[str, Clock]) -> None:
        began = anyio.current_time()
        with pytest.raises(NotCheckpointable, match="no status from model"):
            async with coordination.prepared("c", BUDGET_S):
                pass
        assert anyio.current_time() - began <= BUDGET_S + CONTROL_RETRY_MAX_S

    play(None, controller)
