"""What collection refuses before it begins, for callers that build its settings without the configuration's loader.

The type itself stands with the other settings, in `gym_ckpt.settings`.
"""

from __future__ import annotations

import msgspec

from gym_ckpt.controller.shared import Coordination
from gym_ckpt.errors import ConfigError
from gym_ckpt.settings import CollectSettings

__all__ = ["CollectSettings", "check"]


def check(settings: CollectSettings, coordination: Coordination | None) -> None:
    """Raises `ConfigError` naming the key and what is allowed."""
    try:  # a type that is made by hand has not looked at its values
        msgspec.convert(msgspec.to_builtins(settings), CollectSettings)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$.")
        raise ConfigError(f"collect.{key.rstrip('`')}: {what}") from None
    for key in ("input", "output", "checkpoint_dir"):
        path = getattr(settings, key)
        if path is not None and not path.startswith("/"):
            raise ConfigError(f"collect.{key}: {path!r} must be an absolute path")
    settings.check_together()
    if settings.checkpoint_dir is not None and coordination is None:
        raise ConfigError("collect.checkpoint_dir: no server of this gym takes part in checkpoints")
