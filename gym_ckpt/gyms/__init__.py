"""The gyms that this package ships, and how a configuration names one of them or somebody else's."""

from __future__ import annotations

import importlib
import inspect
from types import MappingProxyType
from typing import Final

from gym_ckpt.errors import ConfigError
from gym_ckpt.gyms.answer import AnswerGym
from gym_ckpt.gyms.base import Gym, StateMode, ToolError, VerifyMode
from gym_ckpt.gyms.inventory import InventoryGym

__all__ = ["SHIPPED", "AnswerGym", "Gym", "InventoryGym", "StateMode", "ToolError", "VerifyMode", "by_name"]

SHIPPED: Final = MappingProxyType({"answer": AnswerGym, "inventory": InventoryGym})
"""Name in a configuration → class."""
ROUTES: Final = frozenset({"seed_session", "verify", "close_session"})
"""What a resources server answers besides the tools of its gym."""


def by_name(name: str) -> Gym:
    """A new gym: a shipped one by its name, or any subclass of `Gym` as `package.module:Class`.

    Raises:
        ConfigError: saying what is wrong with the name and what is allowed.
    """
    shipped = SHIPPED.get(name)
    if shipped is not None:
        return shipped()
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise _refusal(name, "unknown")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise _refusal(
            name, f"cannot be imported ({error}): install its package beside gym-ckpt, or name its folder in PYTHONPATH"
        ) from error
    except AttributeError:
        raise _refusal(name, f"module {module} has no {attribute}") from None
    if not (inspect.isclass(found) and issubclass(found, Gym)):
        raise _refusal(name, "not a subclass of gym_ckpt.gyms.Gym")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise _refusal(name, f"it does not define {missing}")
    made = found()
    for tool in made.tools:
        called = tool.get("function", {}).get("name")
        if called in ROUTES:
            raise _refusal(name, f"its tool {called} would be called by the name of a route of its server; rename it")
    return made


def _refusal(name: str, why: str) -> ConfigError:
    return ConfigError(f"gym {name!r}: {why}; allowed are {', '.join(SHIPPED)} or package.module:Class")
