"""Patches of what a resources server does for its sessions. As in `faults.patches`."""

from __future__ import annotations

import inspect

from faults.patches import Bug, Patches, mutated
from gym_ckpt.participants.resources import ResourcesParticipant


def dead_attempts_close() -> Patches:
    old, new = "self._named(request)", 'self._sessions.get(request.cookie("ng_session") or "")'
    return [(ResourcesParticipant, "close_session", mutated(ResourcesParticipant.close_session, old, new))]


def verified_again() -> Patches:
    old = "known is not None and known.key == key"
    return [(ResourcesParticipant, "_judged_once", mutated(ResourcesParticipant._judged_once, old, "False"))]


def freed_sessions_go_on() -> Patches:
    held = mutated(inspect.unwrap(ResourcesParticipant._held), "if session.closed:", "if False:")
    return [(ResourcesParticipant, "_held", held)]


def fresh_sessions_left_out() -> Patches:
    old = "if episode in self._of_episode]"
    new = "if episode in self._of_episode and self._sessions[self._of_episode[episode]].revision]"
    return [(ResourcesParticipant, "export", mutated(ResourcesParticipant.export, old, new))]


BUGS: tuple[Bug, ...] = (
    Bug(
        "freed-sessions-go-on",
        "after a stop that failed sessions go on of which the stop has freed what they hold",
        "INV-1",
        freed_sessions_go_on,
    ),
    Bug(
        "dead-attempts-close",
        "a copy of a dead attempt's last call closes the session of the attempt that continues it",
        "INV-63",
        dead_attempts_close,
    ),
    Bug(
        "verified-again",
        "a verification with effects whose reply was lost is done again",
        "INV-3",
        verified_again,
    ),
    Bug(
        "fresh-sessions-left-out",
        "a checkpoint leaves out sessions that no tool has changed yet, and their rows start over after a restore",
        "INV-23",
        fresh_sessions_left_out,
    ),
)
