"""Plans for gyms in which a server is an author's own application (`faults.plan.App`).

Faults are drawn for the shipped gym. What they say of calls of its tools strikes the application's tools, whatever
these are called: the first that is ever called stands for the first of `TOOLS`, and so on. Faults in the shipped gyms'
own code (`ToolFails`, `BadState`, `JudgeFails`) do not strike an application: its author fails well enough alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from faults.inject import Injector
from faults.plan import App, Plan
from gym_ckpt.wire.messages import ROLLOUT_PREFIX
from sim.fates import ExchangeFate

TOOLS = ("add_item", "take_item", "count_items")
"""The shipped gym's tools, for which faults are drawn."""
NO_TOOLS = frozenset({"seed_session", "verify", "close_session", "tools"})


def with_apps(plan: Plan, apps: Iterable[App]) -> Plan:
    """The plan, on a gym with these applications."""
    return msgspec.structs.replace(plan, setup=msgspec.structs.replace(plan.setup, apps=tuple(apps)))


def options_of(apps: Iterable[App]) -> str:
    """What of a command line names these applications."""
    return "".join(f" --app {app.server}={app.factory}" for app in apps)


class ToolsByTurn(Injector):
    """An `Injector` for a gym with applications."""

    def __init__(self, seed: int, plan: Plan, everyone: tuple[str, ...], controller: str) -> None:
        super().__init__(seed, plan, everyone, controller)
        self._tools: dict[tuple[str, str], str] = {}
        """By server and route: the tool of the shipped gym that it stands for."""

    def exchange(self, src: str, dst: str, method: str, path: str) -> ExchangeFate:
        """See `sim.fates.Fates`."""
        return super().exchange(src, dst, method, self._in_the_shipped_gym(dst, path))

    def _in_the_shipped_gym(self, dst: str, path: str) -> str:
        head, _, route = path.rpartition("/")
        ours = path.startswith(ROLLOUT_PREFIX) and any(app.server == dst for app in self.plan.setup.apps)
        if not ours or route in NO_TOOLS:
            return path
        known = sum(each == dst for each, _ in self._tools)
        return f"{head}/{self._tools.setdefault((dst, route), TOOLS[known % len(TOOLS)])}"
