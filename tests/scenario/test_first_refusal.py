"""One server refuses a commit or a restore while another is silent: that is what is told, and it is told at once."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest

from gym_ckpt.controller.calls import each
from gym_ckpt.controller.coordination import Coordination
from gym_ckpt.errors import (
    AlreadyServing,
    ExportFailed,
    GymCkptError,
    InvalidCheckpointState,
    ParticipantFailed,
    PeerTimeout,
    Unavailable,
)
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.runtime.participant import Record
from gym_ckpt.types import EpisodeId
from sim.world import World
from tests.property.toys import TOKEN, Toy, ToyEnvironment, serve

R = EpisodeId("r")
BUDGET_S, AT_ONCE_S = 60.0, 2.0


class Silent(ToyEnvironment):
    """Its files hang, when `hangs`."""

    hangs = False

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        await anyio.sleep(1000.0 * self.hangs)
        return await super().export(scope, stop)

    async def check(self, records: Sequence[Record]) -> None:
        await anyio.sleep(1000.0 * self.hangs)


class Refusing(Toy):
    """Its disk is full and it will have no state, when `refuses`."""

    refuses = False

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        if self.refuses:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await super().export(scope, stop)

    async def check(self, records: Sequence[Record]) -> None:
        if self.refuses:
            raise InvalidCheckpointState("another gym's")


class Gym:
    """An environment and a model, the environment first in the configuration, and a checkpoint of one episode."""

    def __init__(self) -> None:
        self.world = World(1)
        self.world.disk.make_dirs("/run/c")
        self.toys: dict[str, Toy] = {}
        for name, kind in (("environment", Silent), ("model", Refusing)):
            self.world.add_node(name, self._server(name, kind))

    def _server(self, name: str, kind: type[Toy]) -> Callable[[Ports], Awaitable[None]]:
        async def main(ports: Ports) -> None:
            self.toys[name] = kind(name, ports)
            await serve(self.toys[name], f"http://{name}:80", 10.0)

        return main

    async def start(self) -> None:
        for name in ("environment", "model"):
            self.world.nodes[name].crash()
            self.world.nodes[name].start()
        await anyio.sleep(0.1)

    async def work(self) -> None:
        for name in self.toys:
            await self.world.client().request("POST", tagged(f"http://{name}:80", R, "/add"))

    def trouble(self) -> None:
        silent, refusing = self.toys.values()
        assert isinstance(silent, Silent) and isinstance(refusing, Refusing)
        silent.hangs = refusing.refuses = True

    def is_open(self) -> bool:
        return not any(toy.admission.book.closed for toy in self.toys.values())

    def play(self, controller: Callable[[Coordination], Awaitable[None]]) -> None:
        over = anyio.Event()

        async def main(ports: Ports) -> None:
            servers = {name: f"http://{name}:80" for name in ("environment", "model")}
            await controller(Coordination(servers, TOKEN, ports))
            over.set()

        async def script(world: World) -> None:
            await self.start()
            world.nodes["controller"].start()
            await over.wait()

        self.world.add_node("controller", main)
        self.world.run(script, 600.0).check()


def test_a_commit_that_one_server_refuses_keeps_the_gym_closed_no_longer() -> None:
    gym = Gym()

    async def controller(coordination: Coordination) -> None:
        await gym.work()
        gym.trouble()
        began = anyio.current_time()
        with pytest.raises(ParticipantFailed, match=r"commit on model: .*No space left") as refused:
            async with coordination.prepared("c", BUDGET_S) as opened:
                await opened.commit("/run/c", [R])
        assert isinstance(refused.value.error, ExportFailed)
        assert anyio.current_time() - began < AT_ONCE_S and gym.is_open()
        assert not coordination.cut_off(), "nobody was waited for in vain"

    gym.play(controller)


def test_a_restore_that_one_server_refuses_is_undone_at_once_and_says_so() -> None:
    gym = Gym()

    async def controller(coordination: Coordination) -> None:
        await gym.work()
        async with coordination.prepared("c", BUDGET_S) as opened:
            await opened.commit("/run/c", [R])
        await gym.start()
        gym.trouble()
        began = anyio.current_time()
        with pytest.raises(ParticipantFailed, match="another gym's") as refused:
            await coordination.restore("r", "/run/c", [R], BUDGET_S)
        assert isinstance(refused.value.error, InvalidCheckpointState), "or its rows would start over, unasked"
        assert anyio.current_time() - began < AT_ONCE_S and gym.is_open()
        for toy in gym.toys.values():
            assert not toy.numbers and toy.admission.book.marks.refuses(R.next())

    gym.play(controller)


def failed(error: GymCkptError) -> GymCkptError:
    return ParticipantFailed("a server", "restore", error)


STATE, SERVING = failed(InvalidCheckpointState("not mine")), failed(AlreadyServing("it serves"))
SILENCES = failed(PeerTimeout("no answer")), failed(Unavailable("the disk hangs"))


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ((*SILENCES, STATE), STATE),
        ((SERVING, STATE), STATE),
        ((SILENCES[1], SERVING), SERVING),
        (SILENCES, SILENCES[0]),
    ],
)
def test_of_several_errors_the_one_that_says_most_is_told_whatever_the_order_of_the_servers(
    errors: tuple[GymCkptError, ...], told: GymCkptError
) -> None:
    async def fail(error: GymCkptError) -> None:
        raise error

    async def script(_: World) -> None:
        for order in (errors, errors[::-1] if told is not SILENCES[0] else errors):
            with pytest.raises(ParticipantFailed) as raised:
                await each(order, fail)
            assert raised.value is told

    World(1).run(script, 10.0).check()
