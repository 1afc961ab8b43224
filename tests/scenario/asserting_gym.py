"""Gyms of authors: some assert what they believe of a session in a hook and are wrong, one counts its frees, one judges
with effects."""

from __future__ import annotations

from itertools import count
from typing import Any

import anyio

from gym_ckpt.gyms import InventoryGym, StateMode, VerifyMode

CLOSED: list[Any] = []
"""States that `Frees` was told to free."""
JUDGED: list[Any] = []
"""Tasks that `Judges` has judged."""
SANDBOXES: list[int] = []
"""Those of `Sandboxed` that are there."""
NUMBERS = count()


def _believed(state: Any) -> None:
    assert not state["items"]["drum"], "nobody has a drum"


class Exports(InventoryGym):
    async def export_session_state(self, state: Any) -> Any:
        _believed(state)
        return await super().export_session_state(state)


class Checks(InventoryGym):
    async def check_session_state(self, exported: Any) -> None:
        _believed(exported)


class Restores(InventoryGym):
    async def restore_session_state(self, exported: Any) -> Any:
        _believed(exported)
        return await super().restore_session_state(exported)


class Frees(InventoryGym):
    async def close(self, state: Any) -> None:
        CLOSED.append(state)


class Judges(InventoryGym):
    """Its verification has an effect and takes a while; of some tasks it fails when it has had it."""

    verify_mode = VerifyMode.WAIT

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        JUDGED.append(task)
        await anyio.sleep(1.0)
        if task.get("fails"):
            raise RuntimeError("the score was posted, and then this")
        return {"reward": 1.0, "times": len(JUDGED)}


class JudgesAnew(Judges):
    verify_mode = VerifyMode.REPLAY


class JudgesAnswers(Judges):
    state_mode = StateMode.STATELESS


class Oops(Exception):
    """Of an author's code."""


class Raises(InventoryGym):
    """In the hook that its task names."""

    async def seed(self, task: dict[str, Any]) -> Any:
        self._raise_in("seed", task)
        return {**await super().seed({}), "task": task}

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        self._raise_in("tool", state["task"])
        return await super().call(state, tool, arguments)

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        self._raise_in("verify", task)
        return {"reward": 0.0}

    async def close(self, state: Any) -> None:
        self._raise_in("close", state["task"])

    def _raise_in(self, hook: str, task: dict[str, Any]) -> None:
        if task.get("raises") == hook:
            raise Oops(f"{hook} of r")


class Deep(InventoryGym):
    """Its verdict is nested as deeply as its task says."""

    async def seed(self, task: dict[str, Any]) -> Any:
        return await super().seed({})

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        value: Any = 1
        for _ in range(task["depth"] - 1):
            value = [value]
        return {"reward": 1.0, "value": value}


class Sandboxed(InventoryGym):
    """Each session has a sandbox, without which no hook of it works."""

    async def seed(self, task: dict[str, Any]) -> Any:
        return _opened(await super().seed({}))

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        _enter(state)
        return await super().call(state, tool, arguments)

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        _enter(state)
        await anyio.sleep(task.get("takes_s", 0.0))
        _enter(state)
        return {"reward": 1.0, "items": state["items"]}

    async def export_session_state(self, state: Any) -> Any:
        _enter(state)
        return {name: value for name, value in state.items() if name != "sandbox"}  # the parts are the session's own

    async def restore_session_state(self, exported: Any) -> Any:
        return _opened(await super().restore_session_state(exported))

    async def close(self, state: Any) -> None:
        await anyio.sleep(0.2)
        SANDBOXES.remove(state["sandbox"])
        state["items"].clear()


def _opened(state: Any) -> Any:
    SANDBOXES.append(next(NUMBERS))
    return {**state, "sandbox": SANDBOXES[-1]}


def _enter(state: Any) -> None:
    if state["sandbox"] not in SANDBOXES:
        raise Oops("the sandbox is gone")
