"""The undisturbed run that every other must equal (INV-1): one per workload and process, independent of any seed.

Rows are compared without what may differ: attempt numbers, times, and ids of model calls. Must not know faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from faults.endurance import HEAVY_WORKLOADS
from faults.plan import App
from gym_ckpt.errors import ConfigError
from gym_ckpt.runtime.applications import names_gym
from gym_ckpt.wire import json
from sim.cluster import OUTPUT, Cluster, Options, until
from sim.workload import CONTROLLER, WORKLOADS, Workload, workload
from sim.world import World

UNDISTURBED_S = 600.0
"""Virtual seconds within which a calm run ends."""
TASKS = '; a task of a world is {"prompt": "..."}, so a subclass of the gym has to make up what else its seed needs'
"""What most gyms miss."""


@dataclass(frozen=True, slots=True)
class Output:
    """Output rows. `rows`: in canonical form without effects and tokens; `effects`, `tokens`: by rollout, in order."""

    rollout_ids: tuple[str, ...]
    rows: tuple[bytes, ...]
    effects: tuple[tuple[str, Any], ...]
    tokens: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """What a workload gives. `steps`: tool calls of each rollout's conversation."""

    output: Output
    effects: Mapping[str, Any]
    tokens: Mapping[str, Any]
    steps: Mapping[str, int] = field(default_factory=dict)


def reference(number: int, apps: tuple[App, ...] = ()) -> Reference:
    """The undisturbed run of the workload of this number, on a gym with these applications.

    Raises:
        AssertionError: it did not end well, so that there is nothing to compare with.
        ConfigError: the same, with an application.
    """
    try:
        return _played(workload(number).number, apps)
    except AssertionError as error:
        if not apps:
            raise
        own = ", ".join(app.words() for app in apps)
        hint = TASKS if any(names_gym(app.factory) for app in apps) else ""
        raise ConfigError(f"a gym where {own} fails with nothing that strikes it: {error}{hint}") from error


def check_apps(apps: tuple[App, ...]) -> None:
    """Raises `ConfigError` for applications that fail with nothing that strikes them, whatever the workload."""
    for number in range(WORKLOADS if apps else 0):
        reference(number, apps)


@lru_cache(maxsize=WORKLOADS + HEAVY_WORKLOADS)
def _played(number: int, apps: tuple[App, ...]) -> Reference:
    return played(workload(number), apps)


def played(work: Workload, apps: tuple[App, ...] = ()) -> Reference:
    """The undisturbed run of any workload; raises as `reference`."""
    world = World(0)
    cluster = Cluster(world, work, Options(checkpoint=False, apps=apps))

    async def script(_: World) -> None:
        cluster.start()
        await until(world, lambda: not world.nodes[CONTROLLER].alive, UNDISTURBED_S)

    with cluster.playing():
        world.run(script, 2 * UNDISTURBED_S).check()
    ended = cluster.outcome or cluster.refusal
    assert cluster.complete, f"the undisturbed run of workload {work.number} ended as {ended}"
    data = world.disk.tree(OUTPUT)[OUTPUT]
    output = output_of(data)
    rows = [json.loads(line) for line in data.splitlines()]
    steps = {row["rollout_id"]: sum(each["role"] == "tool" for each in row["messages"]) for row in rows}
    return Reference(output, dict(output.effects), dict(output.tokens), steps)


def output_of(data: bytes) -> Output:
    """The whole lines of an output file. Raises `ValueError` for one that is no row."""
    rollout_ids, rows, effects, tokens = [], [], [], []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        row = json.loads(line)
        rollout_id = row["rollout_id"]
        calls = row.pop("calls", [])
        rollout_ids.append(rollout_id)
        effects.append((rollout_id, row.get("verification", {}).pop("effects", None)))
        tokens.append((rollout_id, [{**call, "model_call_id": None} for call in calls]))
        del row["attempt"]
        rows.append(json.dumps(row, sort_keys=True))
    return Output(tuple(rollout_ids), tuple(rows), tuple(effects), tuple(tokens))
