"""What a configuration says of a server that is an author's own (`faults.plan.App`): a factory, or a gym.

Must not know worlds: plans on real processes ask the same.
"""

from __future__ import annotations

from faults.plan import App
from gym_ckpt.gyms import by_name
from gym_ckpt.runtime.applications import factory_of, names_gym


def keys_of(app: App) -> dict[str, str]:
    """The keys of its table: `app`, or the `gym` that the shipped resources server serves.

    Raises:
        ConfigError: the name is neither a factory's nor a usable gym's.
    """
    if names_gym(app.factory):
        by_name(app.factory)
        return {"gym": app.factory}
    factory_of(app.factory)
    return {"app": app.factory}
