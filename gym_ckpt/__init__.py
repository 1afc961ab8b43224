"""Keeps reinforcement-learning rollouts alive through crashes and preemptions.

The public names, by what they are for:

* a controller of its own: `Coordination`, `OpenCheckpoint`, `Committed`, `Ended`, and `production_ports` to run it on;
* a server of its own: `Serving`, `Participant`, `Record`, `up_to`, `ControlPlane`, `install`, `admitting`; `Gym` with
  `StateMode`, `VerifyMode` and `ToolError` for tools and a verifier;
* identity: `EpisodeId`, `Kind`;
* errors: `GymCkptError` and its tree in `gym_ckpt.errors`;
* the world's interfaces: `Ports` and what it holds, in `gym_ckpt.ports`.

Everything else is private. Names are loaded when first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gym_ckpt.adapters.system import production_ports
    from gym_ckpt.controller.coordination import Coordination
    from gym_ckpt.controller.opened import OpenCheckpoint
    from gym_ckpt.core.coordination import Committed
    from gym_ckpt.core.forgotten import Ended
    from gym_ckpt.errors import GymCkptError
    from gym_ckpt.gyms.base import Gym, StateMode, ToolError, VerifyMode
    from gym_ckpt.ports import Ports
    from gym_ckpt.runtime.applications import Serving
    from gym_ckpt.runtime.control import ControlPlane
    from gym_ckpt.runtime.install import admitting, install
    from gym_ckpt.runtime.participant import Participant, Record, up_to
    from gym_ckpt.types import EpisodeId, Kind

__all__ = [
    "Committed",
    "ControlPlane",
    "Coordination",
    "Ended",
    "EpisodeId",
    "Gym",
    "GymCkptError",
    "Kind",
    "OpenCheckpoint",
    "Participant",
    "Ports",
    "Record",
    "Serving",
    "StateMode",
    "ToolError",
    "VerifyMode",
    "admitting",
    "install",
    "production_ports",
    "up_to",
]

_HOME: Final = (
    ("gym_ckpt.adapters.system", ("production_ports",)),
    ("gym_ckpt.controller.coordination", ("Coordination",)),
    ("gym_ckpt.controller.opened", ("OpenCheckpoint",)),
    ("gym_ckpt.core.coordination", ("Committed",)),
    ("gym_ckpt.core.forgotten", ("Ended",)),
    ("gym_ckpt.errors", ("GymCkptError",)),
    ("gym_ckpt.gyms.base", ("Gym", "StateMode", "ToolError", "VerifyMode")),
    ("gym_ckpt.ports", ("Ports",)),
    ("gym_ckpt.runtime.applications", ("Serving",)),
    ("gym_ckpt.runtime.control", ("ControlPlane",)),
    ("gym_ckpt.runtime.install", ("admitting", "install")),
    ("gym_ckpt.runtime.participant", ("Participant", "Record", "up_to")),
    ("gym_ckpt.types", ("EpisodeId", "Kind")),
)


def __getattr__(name: str) -> Any:
    for module, names in _HOME:
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no public name {name!r}")
