"""The shipped gyms as authors would have written them on a bad day: the fates say when (`sim.fates.Fates.behave`).

Must not know who asks for trouble.
"""

from __future__ import annotations

from typing import Any, Final

import anyio

from gym_ckpt.gyms import AnswerGym, InventoryGym, StateMode, VerifyMode
from sim.epoch import current_epoch

INVENTORY: Final = "sim.gyms:TroubledInventory"
RESTARTING: Final = "sim.gyms:RestartingInventory"
ANSWER: Final = "sim.gyms:TroubledAnswer"
LATE_S: Final = 12.0
"""How long a late verification takes."""
HUGE_CHARS: Final = 300_000
_STATE, _BALLAST, _FREED = "inventory", "ballast", "freed"


class Misbehaved(AssertionError):
    """The author's code fails, as it was told to: by an `assert`, which must not be taken for one of ours."""


def _asked(what: str) -> str:
    epoch = current_epoch()
    return "" if epoch is None else epoch.behave(what)


async def _verifying() -> None:
    match _asked("verify"):
        case "raises":
            raise Misbehaved("the verification cannot be done")
        case "late":
            await anyio.sleep(LATE_S)


class TroubledInventory(InventoryGym):
    """Wraps a state that is to be huge: what `export_session_state` adds, the other hooks take away. A state that was
    freed is of no use any more."""

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        assert _FREED not in state, f"{tool} is called in a session whose author has freed it"
        result = await super().call(state, tool, arguments)
        if _asked("tool"):
            raise Misbehaved(f"{tool} was done, and then this")
        return result

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        await _verifying()
        return await super().verify(state, task, messages)

    async def export_session_state(self, state: Any) -> Any:
        exported = await super().export_session_state(state)
        match _asked("export"):
            case "raises":
                raise Misbehaved("the session cannot be exported")
            case "unserializable":
                return {_STATE: exported, _BALLAST: object}
            case "huge":
                return {_STATE: exported, _BALLAST: "x" * HUGE_CHARS}
        return exported

    async def close(self, state: Any) -> None:
        state[_FREED] = True

    async def check_session_state(self, exported: Any) -> None:
        await super().check_session_state(_unwrapped(exported))
        if _asked("check"):
            raise ValueError("the session is of another version of this gym")

    async def restore_session_state(self, exported: Any) -> Any:
        return await super().restore_session_state(_unwrapped(exported))


class RestartingInventory(TroubledInventory):
    """Its sessions cannot be captured: their episodes start again from their input. As with every gym that declares
    nothing, a checkpoint waits for its verifications, and none is done again."""

    state_mode = StateMode.RESTART_ONLY
    verify_mode = VerifyMode.WAIT


class TroubledAnswer(AnswerGym):
    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        await _verifying()
        return await super().verify(state, task, messages)


def _unwrapped(exported: Any) -> Any:
    return exported[_STATE] if isinstance(exported, dict) and set(exported) == {_STATE, _BALLAST} else exported
