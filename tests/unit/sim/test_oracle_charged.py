"""What the oracle sees of an environment's clocks: stories at their times (INV-24)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sim.onlooker import Onlooker


def story(*, charged_s: float, before_s: float | None = None) -> set[str]:
    """An episode runs from 1 s on; admission is closed from 3 s to 5 s and from 6 s on: 3 s of work."""
    on = Onlooker()

    def at(t: float, event: str, **fields: Any) -> None:
        on.world.trace.emit(t, "environment", event, fields)

    key = "r" if before_s is None else "r-a1"
    if before_s is not None:
        on.write("c-1", {"environment": {"r": {"worked_s": before_s}}})
        told = {"kind": "environment", "instance": "environment", "source": "c-1", "restore_id": "x"}
        at(0.5, "restore.installed", scope=["r"], digests={}, live=[key], marks={"r": 0}, **told)
    at(1.0, "episode.started", episode=key, continued=before_s is not None)
    for t, event in ((3.0, "closed"), (5.0, "opened"), (6.0, "closed")):
        at(t, f"admission.{event}")
    told = {"kind": "environment", "instance": "environment", "checkpoint_id": "c-2"}
    at(6.5, "commit.exported", episodes=[key], scope=[key], digests={}, **told)
    on.write("c-2", {"environment": {key: {"worked_s": charged_s}}})
    on.say_published("c-2", [key])
    assert on.checked(24) == 1
    return on.found & {"INV-24"}


@pytest.mark.parametrize(
    ("charged_s", "before_s", "broken"),
    [(2.9, None, False), (3.0, None, False), (3.1, None, True), (5.5, 2.5, False), (5.6, 2.5, True)],
)
def test_an_episode_is_charged_for_no_more_than_admission_was_open(
    charged_s: float, before_s: float | None, broken: bool
) -> None:
    assert story(charged_s=charged_s, before_s=before_s) == ({"INV-24"} if broken else set())
