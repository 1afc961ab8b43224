"""A gym of your own, `docs/servers.md` step by step, and what it needs to be played in the simulator.

`gym = "examples.safe:SafeGym"` in a configuration serves it; tasks of a world hold no code, so there it gets one.
"""

from __future__ import annotations

from typing import Any

from gym_ckpt import Gym
from gym_ckpt.gyms import StateMode, ToolError, VerifyMode


class SafeGym(Gym):
    """Open a safe by guessing; the task says `{"code": 7}`."""

    state_mode = StateMode.EXPORTED  # sessions go into checkpoints
    verify_mode = VerifyMode.REPLAY  # verifying twice does no harm
    tools = (
        {
            "type": "function",
            "function": {
                "name": "guess",
                "description": "Try a code.",
                "parameters": {
                    "type": "object",
                    "required": ["code"],
                    "properties": {"code": {"type": "integer", "minimum": 0, "maximum": 9}},
                },
            },
        },
    )

    async def seed(self, task: dict[str, Any]) -> Any:
        return {"code": task["code"], "tries": 0, "open": False}

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        if tool != "guess" or not isinstance(arguments.get("code"), int):
            raise ToolError("guess takes a whole number, code")  # goes into the conversation
        state["tries"] += 1
        state["open"] = state["open"] or arguments["code"] == state["code"]
        return {"open": state["open"]}

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"reward": 1.0 if state["open"] else 0.0, "tries": state["tries"]}

    # The two hooks, and a check that refuses what they could not take back.

    async def export_session_state(self, state: Any) -> Any:
        return dict(state)

    async def check_session_state(self, exported: Any) -> None:
        if not isinstance(exported, dict) or set(exported) != {"code", "tries", "open"}:
            raise ValueError("a safe has code, tries and open")

    async def restore_session_state(self, exported: Any) -> Any:
        return dict(exported)


class SafeInAWorld(SafeGym):
    """For `--app inventory=examples.safe:SafeInAWorld`: a task of a world is `{"prompt": "..."}`."""

    async def seed(self, task: dict[str, Any]) -> Any:
        return await super().seed({"code": 7})
