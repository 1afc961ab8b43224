"""Three participants and a controller: two episodes, two checkpoints, one fault, every interleaving, to the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gym_ckpt.core import coordination, phases
from gym_ckpt.core.phases import Action, Phase, State
from tests.explore import gym
from tests.explore.explorer import Broken, explore
from tests.explore.gym import AGENT, KINDS_OF_FAULT, MODEL, Gym, key, moves, start


def check(at: Gym) -> None:
    if at.pointer:
        snapshots = [server.snapshot(at.pointer) for server in at.servers]
        assert None not in snapshots, "the pointer names what a participant has not written (INV-48)"
        scopes = {each.scope for each in snapshots if each is not None}
        assert len(scopes) == 1, f"participants exported different episodes (INV-40): {scopes}"
        delivered, seen = (snapshots[each] for each in (MODEL, AGENT))
        assert delivered is not None and seen is not None
        if delivered.scope:
            assert delivered.calls == seen.calls, "a call in the checkpoint was delivered and not seen (INV-17)"
    if at.doing in ("commit", "publish") and not at.faults:
        assert all(server.closed for server in at.servers), "it commits, and a participant is open (INV-11)"
    if at.restoring and at.lost:
        for server in at.servers:
            left = set(gym.installs(at)).intersection(server.live)
            assert server.closed or not left, "a server has opened with what a failed restore installed (INV-60)"
    if at.doing in ("run", "over") and not at.lost:
        for server in at.servers:
            assert server.live == at.episodes, "an attempt is installed on some participants only (INV-60)"


def is_over(at: Gym) -> bool:
    return at.doing == "over" and not any(server.closed for server in at.servers)


@pytest.mark.parametrize("kind", KINDS_OF_FAULT)
def test_two_episodes_two_checkpoints_and_one_fault(kind: str) -> None:
    found = explore(start(), partial(moves, kind=kind), check, key=key, goal=is_over)
    print(found.words(f"gym, with a fault of kind {kind}"))
    assert found.states > 1000 and found.goals > 10


def ready_at_once(state: State, event: phases.Prepare) -> phases.Step:
    """Prepared without waiting for what is under way."""
    prepared = replace(state, phase=Phase.PREPARED, checkpoint_id=event.checkpoint_id, lease_until=event.lease_until)
    return prepared, (Action.CLOSE,) if state.phase is Phase.IDLE else ()


@pytest.mark.parametrize(
    ("kind", "owner", "name", "instead", "says"),
    [
        ("write", coordination, "PREPARE", coordination.PREPARE[::-1], "INV-17"),
        ("write", phases, "_prepare", ready_at_once, "INV-17"),
        ("controller", phases, "_lease_check", lambda state, _: (state, ()), "nothing leads from here"),
        ("lapse", phases, "_lapse", lambda state, _: state, "installed on some participants only"),
        ("lapse", phases, "_gives_up", lambda *_: False, "what a failed restore installed"),
    ],
    ids=["agent-before-model", "ready-at-once", "lease-never-ends", "lapse-unsaid", "retire-refused-in-import"],
)
def test_a_mistake_in_it_is_found(
    kind: str, owner: Any, name: str, instead: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym, "CHECKPOINTS", 1)
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises(Broken, match=says):
        explore(start(), partial(moves, kind=kind), check, key=key, goal=is_over)
