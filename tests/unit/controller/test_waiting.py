"""What is said of servers that do not answer."""

from __future__ import annotations

import math

import anyio
import pytest

from gym_ckpt.controller.calls import Waiting
from gym_ckpt.errors import GymCkptError, PeerTimeout, PeerUnreachable, Unavailable
from gym_ckpt.limits import WAITING_SAID_AFTER_S, WAITING_SAID_EVERY_S
from sim.world import World

STARTS = "; if they do not run, gym-ckpt serve CONFIG starts them"
HANGS = "takes calls and does not answer, look at its process and its log"


@pytest.mark.parametrize(
    ("errors", "mend"),
    [
        ({"a": PeerUnreachable("refused")}, STARTS),
        ({"a": PeerTimeout("GET x: no answer in time")}, f"; a: {HANGS}"),
        ({"a": PeerTimeout("no answer"), "b": PeerUnreachable("refused")}, f"; a: {HANGS}{STARTS}"),
        ({"a": Unavailable("busy")}, ""),
    ],
)
def test_a_server_that_hangs_is_told_from_one_that_does_not_run(errors: dict[str, GymCkptError], mend: str) -> None:
    async def script(_: World) -> None:
        waiting = Waiting()
        for name, error in errors.items():
            waiting.failed(name, error, 5.0)
        assert waiting.mend() == mend

    World(1).run(script, 1.0).check()


def test_only_what_ends_is_counted_down() -> None:
    async def script(_: World) -> None:
        said: list[str] = []
        waiting = Waiting()
        waiting.say = said.append
        for until in (math.inf, math.inf, 30.0):
            waiting.failed("a", PeerUnreachable("refused"), until)
            await anyio.sleep(WAITING_SAID_AFTER_S if not said else WAITING_SAID_EVERY_S)
        assert said == [f"waiting for a (refused), {long}{STARTS}" for long in ("until they answer", "up to 24 s more")]

    World(1).run(script, 60.0).check()
