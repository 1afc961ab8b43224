"""The patches behind the planted bugs about what the field does to a run: engines that are full.

As in `faults.patches`. Knows the implementation from inside.
"""

from __future__ import annotations

from faults.patches import Bug, Patches, mutated
from gym_ckpt.core.patience import Patience
from gym_ckpt.participants import asked
from gym_ckpt.participants.agent import AgentParticipant


def refusal_fails() -> Patches:
    old = "return self._refused.next_s(tried_s, min(asked_s or 0.0, MODEL_RETRY_AFTER_MAX_S))"
    return [(Patience, "pause_s", mutated(Patience.pause_s, old, "return None"))]


def pause_not_heeded() -> Patches:
    return [(asked, "asked_s", lambda headers, wall: None)]


def rest_not_parked() -> Patches:
    return [(AgentParticipant, "_rest", mutated(AgentParticipant._rest, "    work.park()\n", ""))]


BUGS: tuple[Bug, ...] = (
    Bug(
        "refusal-fails-the-episode",
        "a model call that an engine refuses for a while fails its episode",
        "INV-25",
        refusal_fails,
    ),
    Bug(
        "retry-after-ignored",
        "a refused call is made again before the pause that the engine asked for is over",
        "INV-25",
        pause_not_heeded,
    ),
    Bug(
        "refused-call-not-parked",
        "a session whose call was refused is at work while it waits, and checkpoints wait for it",
        "INV-25",
        rest_not_parked,
    ),
)
