"""What an author of a resources server writes: tools, a verifier, and two hooks.

The host (`gym_ckpt.participants.resources`) owns sessions, cookies, admission, idempotency and checkpoints; a gym knows
none of that. One gym object serves all sessions of its server, so it keeps no per-session state of its own: the
session's state is what `seed` returned, mutated in place by tools.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar


class StateMode(StrEnum):
    """How sessions of a resources server take part in checkpoints."""

    STATELESS = "stateless"
    EXPORTED = "exported"
    RESTART_ONLY = "restart-only"


class VerifyMode(StrEnum):
    """Whether an interrupted verification may simply run again."""

    REPLAY = "replay"
    WAIT = "wait"


class ToolError(Exception):
    """The tool's answer to a call that it cannot do; goes into the conversation as the tool's result."""


class Gym(ABC):
    """One kind of environment state with its tools and its verifier."""

    state_mode: ClassVar[StateMode] = StateMode.RESTART_ONLY
    verify_mode: ClassVar[VerifyMode] = VerifyMode.WAIT
    tools: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Tool definitions in the form of OpenAI's chat completions."""

    @abstractmethod
    async def seed(self, task: dict[str, Any]) -> Any:
        """A fresh session's state for a task. Deterministic in the task."""

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        """Do one tool call; mutates `state`; returns JSON.

        Raises:
            ToolError: for a call that cannot be done, with nothing of it done. Any other exception ends the attempt:
                how much of the effect is in `state` is not known, so it is neither repeated nor restored (INV-3).
        """
        raise ToolError(f"unknown tool {tool!r}")

    @abstractmethod
    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The reward and what else belongs in the output row: `{"reward": float, ...}`. Does not change `state`."""

    async def export_session_state(self, state: Any) -> Any:
        """The session as lossless JSON. Called between tool calls, never during one."""
        raise NotImplementedError(f"{type(self).__name__} declares exported sessions without an export hook")

    async def check_session_state(self, exported: Any) -> None:
        """Raise `ValueError` with a reason unless `restore_session_state` would accept this; installs nothing."""

    async def restore_session_state(self, exported: Any) -> Any:
        """The inverse of `export_session_state`. Makes no model call and no tool call (INV-68)."""
        raise NotImplementedError(f"{type(self).__name__} declares exported sessions without a restore hook")

    async def close(self, state: Any) -> None:
        """Free what a session holds outside the process: a sandbox, a browser.

        Called once, when the session is over: its episode has ended, its attempt was retired or forgotten, its restore
        was discarded, or the last checkpoint of a stop is durable. An exported state must be enough to open it again.
        """
