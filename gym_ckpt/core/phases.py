"""The phases of one participant: which control call is valid now, and what it makes the participant do.

    idle ──prepare──▶ preparing ──ready──▶ prepared ──commit, written──▶ committed
    idle ──restore──▶ restoring ──installed──▶ restored
    preparing | prepared | committed | restored ──resume──▶ idle
    restored ──retire of all that it installs──▶ restoring, what was installed is discarded and retired
    restoring | restored ──lease expiry, restoring ──resume──▶ idle, what was installed is discarded and retired
    preparing | prepared | committed ──lease expiry──▶ idle

`restoring` covers an import that runs, that failed or was given up: admission stays closed until the controller, or the
lease, ends it. A retire of all that a restore installs gives it up, whether it has ended or not: whatever copies of its
calls still come, only its end is left. Who resumes a restore that its lease or a retire has ended first is told that
it is gone. `step` takes a state and an event and gives the next state and the actions, or raises the typed refusal and
changes nothing. Time arrives as data. Keeps INV-45, 49, 50, 53, 61, 66; of INV-30 and 60 the part that phases decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from gym_ckpt.errors import (
    AlreadyServing,
    CheckpointConflict,
    ExportFailed,
    InvalidPhase,
    ProtocolError,
    RestartInScope,
    ScopeMismatch,
    StaleCheckpoint,
)
from gym_ckpt.limits import RESUMED_IDS_KEPT
from gym_ckpt.types import EpisodeId


class Phase(StrEnum):
    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTED = "committed"
    RESTORING = "restoring"
    RESTORED = "restored"


TAKING = frozenset({Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED})
"""A checkpoint is open: retire and forget are refused (INV-30)."""
IMPORTING = frozenset({Phase.RESTORING, Phase.RESTORED})


@dataclass(frozen=True, slots=True)
class Target:
    """What a commit writes or a restore reads: a retry must name the same."""

    directory: str
    scope: tuple[EpisodeId, ...]
    stop: bool = False

    @property
    def installs(self) -> tuple[EpisodeId, ...]:
        """The attempts that a restore of this scope installs."""
        return tuple(episode.next() for episode in self.scope)


@dataclass(frozen=True, slots=True)
class State:
    phase: Phase = Phase.IDLE
    checkpoint_id: str | None = None
    target: Target | None = None
    export_failed: str | None = None
    """Why this checkpoint can never be committed."""
    import_failed: bool = False
    given_up: bool = False
    """What this restore installs has been retired."""
    lease_until: float | None = None
    """On the monotonic clock, seconds."""
    resumed: tuple[str, ...] = ()
    """Oldest first."""
    lapsed: tuple[str, ...] = ()
    """Restores among them whose end was not the resume: what they had installed was gone by then. Oldest first."""


@dataclass(frozen=True, slots=True)
class Prepare:
    checkpoint_id: str
    lease_until: float


@dataclass(frozen=True, slots=True)
class Ready:
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class PrepareRaised:
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class Renew:
    checkpoint_id: str
    lease_until: float


@dataclass(frozen=True, slots=True)
class Commit:
    """`restarts`: capture keys of the scope that this participant has reported as restarts."""

    checkpoint_id: str
    target: Target
    lease_until: float
    restarts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitWritten:
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class CommitFailed:
    checkpoint_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Restore:
    checkpoint_id: str
    target: Target
    served: bool
    lease_until: float


@dataclass(frozen=True, slots=True)
class Installed:
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class ImportFailed:
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class Retire:
    """These attempts, and earlier ones of the same rollouts."""

    episodes: tuple[EpisodeId, ...]


@dataclass(frozen=True, slots=True)
class LeaseCheck:
    now: float


Event = (
    Prepare
    | Ready
    | PrepareRaised
    | Renew
    | Commit
    | CommitWritten
    | CommitFailed
    | Restore
    | Installed
    | ImportFailed
    | Resume
    | Retire
    | LeaseCheck
)


class Action(StrEnum):
    CLOSE = "close admission"
    OPEN = "open admission"
    SETTLE = "start settling running work"
    EXPORT = "start the export"
    STOP_WRITING = "stop a write in progress before its next record"
    IMPORT = "start the import"
    DISCARD = "discard what was installed and retire it"
    EXPIRED = "report the expired lease"


Step = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Step:
    """The transition table.

    Raises:
        ProtocolError: the event is refused; the state stays as it was.
    """
    match event:
        case Prepare():
            return _prepare(state, event)
        case Ready() if _is(state, event.checkpoint_id, Phase.PREPARING):
            return replace(state, phase=Phase.PREPARED), ()
        case PrepareRaised() if _is(state, event.checkpoint_id, Phase.PREPARING):
            return _idle(state), (Action.OPEN,)
        case Renew():
            _require_open(state, event.checkpoint_id, "renew")
            return _leased(state, event.lease_until), ()
        case Commit():
            return _commit(state, event)
        case CommitWritten() if _is(state, event.checkpoint_id, Phase.PREPARED):
            return replace(state, phase=Phase.COMMITTED), ()
        case CommitFailed() if _is(state, event.checkpoint_id, Phase.PREPARED):
            return replace(state, export_failed=event.reason), ()
        case Restore():
            return _restore(state, event)
        case Installed() if _is(state, event.checkpoint_id, Phase.RESTORING) and not state.given_up:
            return replace(state, phase=Phase.RESTORED), ()
        case ImportFailed() if _is(state, event.checkpoint_id, Phase.RESTORING):
            return replace(state, import_failed=True), ()
        case Resume():
            return _resume(state, event)
        case Retire():
            return _retire(state, event)
        case LeaseCheck():
            return _lease_check(state, event)
        case _:  # the outcome of work that a resume or the lease has overtaken
            return state, ()


def refuse_stale(state: State, checkpoint_id: str) -> None:
    """Raises `StaleCheckpoint` when this checkpoint was resumed: asked before anything else, by all but a resume."""
    if checkpoint_id in state.resumed:
        raise StaleCheckpoint(f"checkpoint {checkpoint_id} was resumed here; take another one")


def refuse_lapsed(state: State, restore_id: str) -> None:
    """Raises `StaleCheckpoint` to a resume when nothing of this restore is left: nobody may go on with it."""
    if restore_id in state.lapsed:
        raise StaleCheckpoint(f"nothing of {restore_id} is left: its lease has ended, or its attempts were retired")


def refuse_retire(state: State, episodes: Iterable[EpisodeId]) -> ProtocolError | None:
    """Why these attempts cannot be retired now, if they cannot (INV-30).

    A restore is no checkpoint being taken: coordination retires what a failed restore installs while admission is still
    closed. Anything less than all of that waits until the import has ended.
    """
    importing = state.phase is Phase.RESTORING and not (state.import_failed or state.given_up)
    if state.phase in TAKING or (importing and not _gives_up(state, episodes)):
        return InvalidPhase(f"checkpoint {state.checkpoint_id} is {state.phase}; retire after it was resumed")
    return None


def refuse_forget(state: State) -> ProtocolError | None:
    """Why rollouts cannot be forgotten now, if they cannot (INV-30)."""
    if state.phase is not Phase.IDLE:
        return InvalidPhase(f"checkpoint {state.checkpoint_id} is {state.phase}; forget after it was resumed")
    return None


def _is(state: State, checkpoint_id: str, phase: Phase) -> bool:
    return state.checkpoint_id == checkpoint_id and state.phase is phase


def _idle(state: State) -> State:
    return State(resumed=state.resumed, lapsed=state.lapsed)


def _leased(state: State, until: float) -> State:
    # A call never shortens a lease: a duplicate that arrives late carries an older deadline.
    return replace(state, lease_until=max(until, state.lease_until or until))


def _require_open(state: State, checkpoint_id: str, operation: str) -> None:
    refuse_stale(state, checkpoint_id)
    if state.phase is Phase.IDLE:
        raise InvalidPhase(f"{operation} of checkpoint {checkpoint_id}: no checkpoint is open here")
    _refuse_other(state, checkpoint_id)


def _refuse_other(state: State, checkpoint_id: str) -> None:
    if state.checkpoint_id not in (None, checkpoint_id):
        raise CheckpointConflict(f"checkpoint {state.checkpoint_id} is {state.phase} here; resume it first")


def _prepare(state: State, event: Prepare) -> Step:
    refuse_stale(state, event.checkpoint_id)
    _refuse_other(state, event.checkpoint_id)
    if state.phase is Phase.IDLE:
        opened = replace(_idle(state), phase=Phase.PREPARING, checkpoint_id=event.checkpoint_id)
        return _leased(opened, event.lease_until), (Action.CLOSE, Action.SETTLE)
    if state.phase in IMPORTING:
        raise InvalidPhase(f"{event.checkpoint_id} is a restore; resume it before a checkpoint is prepared")
    if state.export_failed is not None:
        raise ExportFailed(state.export_failed)
    return _leased(state, event.lease_until), ()


def _commit(state: State, event: Commit) -> Step:
    _require_open(state, event.checkpoint_id, "commit")
    if state.phase not in (Phase.PREPARED, Phase.COMMITTED):
        raise InvalidPhase(f"commit of checkpoint {event.checkpoint_id}: it is {state.phase}, not prepared")
    if state.export_failed is not None:
        raise ExportFailed(state.export_failed)
    leased = _leased(state, event.lease_until)
    if state.target is None:
        if event.restarts:
            raise RestartInScope(f"{min(event.restarts)} was reported as a restart; leave it out of the scope")
        return replace(leased, target=event.target), (Action.EXPORT,)
    _same_target(state, event.target, "commit")
    return leased, ()


def _same_target(state: State, target: Target, operation: str) -> None:
    if state.target != target:
        raise ScopeMismatch(
            f"{operation} of checkpoint {state.checkpoint_id} was begun with another directory, scope or stop flag"
        )


def _restore(state: State, event: Restore) -> Step:
    refuse_stale(state, event.checkpoint_id)
    _refuse_other(state, event.checkpoint_id)
    if state.phase is Phase.IDLE:
        if event.served:
            raise AlreadyServing("this server has served since it started; restart it, then restore")
        opened = replace(_idle(state), phase=Phase.RESTORING, checkpoint_id=event.checkpoint_id, target=event.target)
        return _leased(opened, event.lease_until), (Action.CLOSE, Action.IMPORT)
    if state.phase not in IMPORTING:
        raise InvalidPhase(f"restore {event.checkpoint_id}: it is a checkpoint that is {state.phase}")
    if state.given_up:
        raise StaleCheckpoint(f"what restore {event.checkpoint_id} installs was retired here; resume it")
    _same_target(state, event.target, "restore")
    leased = _leased(state, event.lease_until)
    if state.import_failed:
        return replace(leased, import_failed=False), (Action.IMPORT,)
    return leased, ()


def _resume(state: State, event: Resume) -> Step:
    if event.checkpoint_id in state.lapsed:
        return state, ()
    remembered = _remember(state, event.checkpoint_id)
    if state.phase is Phase.IDLE:
        return remembered, ()
    _refuse_other(state, event.checkpoint_id)
    if state.given_up:
        remembered = _lapse(remembered, event.checkpoint_id)
    return _idle(remembered), _ending(state, keep_restored=True)


def _retire(state: State, event: Retire) -> Step:
    if (refusal := refuse_retire(state, event.episodes)) is not None:
        raise refusal
    if state.phase in IMPORTING and not state.given_up and _gives_up(state, event.episodes):
        return replace(state, phase=Phase.RESTORING, given_up=True), (Action.DISCARD,)
    return state, ()


def _gives_up(state: State, episodes: Iterable[EpisodeId]) -> bool:
    """Whether a retire of these attempts leaves nothing of what is restored."""
    highest: dict[str, int] = {}
    for each in episodes:
        highest[each.rollout_id] = max(each.attempt, highest.get(each.rollout_id, 0))
    installs = () if state.target is None else state.target.installs
    return bool(installs) and all(each.attempt <= highest.get(each.rollout_id, -1) for each in installs)


def _remember(state: State, checkpoint_id: str) -> State:
    if checkpoint_id in state.resumed:
        return state
    return replace(state, resumed=(*state.resumed, checkpoint_id)[-RESUMED_IDS_KEPT:])


def _lapse(state: State, restore_id: str) -> State:
    return replace(state, lapsed=(*state.lapsed, restore_id)[-RESUMED_IDS_KEPT:])


def _lease_check(state: State, event: LeaseCheck) -> Step:
    if state.lease_until is None or state.checkpoint_id is None or event.now < state.lease_until:
        return state, ()
    ended = _idle(_remember(state, state.checkpoint_id))
    if state.phase in IMPORTING:
        ended = _lapse(ended, state.checkpoint_id)
    return ended, (Action.EXPIRED, *_ending(state, keep_restored=False))


def _ending(state: State, *, keep_restored: bool) -> tuple[Action, ...]:
    actions: list[Action] = []
    if state.phase is Phase.PREPARED and state.target is not None:
        actions.append(Action.STOP_WRITING)
    if state.phase is Phase.RESTORING or (state.phase is Phase.RESTORED and not keep_restored):
        actions.append(Action.DISCARD)
    return (*actions, Action.OPEN)
