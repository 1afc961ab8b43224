"""What collection refuses before it begins, for callers that build its settings without the configuration's loader.

The type itself stands with the other settings, in `gym_ckpt.settings`.
"""

from __future__ import annotations

from gym_ckpt.controller.shared import Coordination
from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import BUDGET_MAX_S, ONE_SIGTERM_MAX_S, PUBLISHED_LISTED_MAX
from gym_ckpt.settings import CollectSettings

__all__ = ["CollectSettings", "check"]


def check(settings: CollectSettings, coordination: Coordination | None) -> None:
    """Raises `ConfigError` naming the key and what is allowed."""
    for key in ("repeats", "concurrency", "max_attempts", "keep_checkpoints"):
        if getattr(settings, key) < 1:
            raise ConfigError(f"collect.{key}: {getattr(settings, key)} is less than 1")
    if settings.keep_checkpoints > PUBLISHED_LISTED_MAX:
        raise ConfigError(f"collect.keep_checkpoints: {settings.keep_checkpoints} is more than {PUBLISHED_LISTED_MAX}")
    if settings.retry_prepare < 0:
        raise ConfigError(f"collect.retry_prepare: {settings.retry_prepare} is less than 0")
    if not 0 < settings.checkpoint_timeout_s <= BUDGET_MAX_S:
        raise ConfigError(f"collect.checkpoint_timeout_s: must be above 0 and at most {BUDGET_MAX_S:g} seconds")
    if settings.checkpoint_every_s is not None and not settings.checkpoint_every_s > 0:
        raise ConfigError("collect.checkpoint_every_s: must be above 0 seconds")
    if not 0 <= settings.one_sigterm_s <= ONE_SIGTERM_MAX_S:
        raise ConfigError(f"collect.one_sigterm_s: must be 0 to {ONE_SIGTERM_MAX_S:g} seconds")
    for key in ("input", "output", "checkpoint_dir"):
        path = getattr(settings, key)
        if path is not None and not path.startswith("/"):
            raise ConfigError(f"collect.{key}: {path!r} must be an absolute path")
    if settings.checkpoint_dir is None:
        if settings.checkpoint_every_s is not None:
            raise ConfigError("collect.checkpoint_every_s: needs collect.checkpoint_dir")
        if settings.resume_from_cache:
            raise ConfigError("collect.resume_from_cache: needs collect.checkpoint_dir")
    elif coordination is None:
        raise ConfigError("collect.checkpoint_dir: no server of this gym takes part in checkpoints")
