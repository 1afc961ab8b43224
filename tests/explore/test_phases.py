"""One participant's phases: two checkpoints, two targets, every order of calls, of work that ends and of a lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gym_ckpt.core import phases
from gym_ckpt.core.phases import Action, Event, Phase, State, Target, step
from gym_ckpt.errors import InvalidPhase, ProtocolError
from gym_ckpt.types import EpisodeId
from tests.explore.explorer import Broken, explore

IDS = ("a", "b")
TARGETS = (Target("/one", (EpisodeId("r"),)), Target("/two", (EpisodeId("r"), EpisodeId("s"))))
LEASE = 10.0


@dataclass(frozen=True)
class Participant:
    """The machine, and the shell around it. `work`: what runs, by kind and checkpoint, and is yet to report its end."""

    state: State = field(default_factory=State)
    closed: bool = False
    served: bool = False
    work: frozenset[tuple[str, str]] = frozenset()
    written: frozenset[tuple[str, Target]] = frozenset()
    """Exports that have ended well."""
    installed: str = ""
    """`open`: by a restore that goes on; `kept`: by one that was resumed."""
    retired: bool = False
    """What the open restore installs has been retired."""
    stopped: frozenset[str] = frozenset()
    """Checkpoints whose write was told to stop."""


def calls() -> Iterator[Event]:
    for name in IDS:
        yield phases.Prepare(name, LEASE)
        yield phases.Renew(name, LEASE)
        yield phases.Resume(name)
        for target in TARGETS:
            yield phases.Commit(name, target, LEASE)
    for target in TARGETS:
        yield phases.Retire(target.installs)
    yield phases.LeaseCheck(0.0)
    yield phases.LeaseCheck(2 * LEASE)


def moves(at: Participant) -> Iterator[tuple[str, Participant]]:
    events: list[tuple[Event, tuple[str, str] | None]] = [(event, None) for event in calls()]
    events += [(phases.Restore(name, target, at.served, LEASE), None) for name in IDS for target in TARGETS]
    for kind, name in sorted(at.work):
        ends: dict[str, tuple[Any, ...]] = {
            "settle": (phases.Ready(name), phases.PrepareRaised(name)),
            "export": (phases.CommitWritten(name), phases.CommitFailed(name, "disk full")),
            "import": (phases.Installed(name), phases.ImportFailed(name)),
        }
        events += [(event, (kind, name)) for event in ends[kind]]
    for event, ended in events:
        after = moved(at, event, ended)
        if after is not None:
            yield f"{type(event).__name__} {getattr(event, 'checkpoint_id', '')}".strip(), after
    if not at.closed and not at.served:
        yield "serve", replace(at, served=True)


def moved(at: Participant, event: Event, ended: tuple[str, str] | None) -> Participant | None:
    try:
        state, actions = step(at.state, event)
    except ProtocolError:
        return None  # a refusal changes nothing
    work = at.work - {ended} if ended is not None else at.work
    after = replace(at, state=state, work=work)
    if isinstance(event, phases.CommitWritten) and state.phase is Phase.COMMITTED and at.state is not state:
        assert at.state.target is not None, "INV-49: what is committed has a target"
        after = replace(after, written=after.written | {(event.checkpoint_id, at.state.target)})
    if isinstance(event, phases.Installed) and state.phase is Phase.RESTORED and at.state.phase is not Phase.RESTORED:
        after = replace(after, installed="open")
    if isinstance(event, phases.Resume) and at.state.phase is Phase.RESTORED and state.phase is Phase.IDLE:
        after = replace(after, installed="kept")
    if isinstance(event, phases.Resume) and event.checkpoint_id in at.state.lapsed:
        assert state == at.state, "what has lapsed is told so, and nothing else"
    if isinstance(event, phases.Retire) and at.state.phase in phases.IMPORTING:
        assert at.state.target is not None, "a restore has a target"
        after = replace(after, retired=at.retired or set(at.state.target.installs) <= set(event.episodes))
    for action in actions:
        after = acted(after, at, state, action)
    return after


def acted(after: Participant, at: Participant, state: State, action: Action) -> Participant:
    name = state.checkpoint_id or at.state.checkpoint_id or ""
    match action:
        case Action.CLOSE:
            assert not after.closed, "closed twice"
            return replace(after, closed=True)
        case Action.OPEN:
            assert after.closed, "opened what is open"
            return replace(after, closed=False, retired=False)
        case Action.SETTLE | Action.EXPORT | Action.IMPORT:
            kind = {Action.SETTLE: "settle", Action.EXPORT: "export", Action.IMPORT: "import"}[action]
            assert (kind, name) not in after.work or kind == "settle", f"the same {kind} is begun twice"
            return replace(after, work=after.work | {(kind, name)})
        case Action.STOP_WRITING:
            return replace(after, stopped=after.stopped | {name})
        case Action.DISCARD:
            return replace(after, installed="")
    return after


def check(at: Participant) -> None:
    state = at.state
    idle = state.phase is Phase.IDLE
    assert at.closed == (not idle), "admission is closed while, and only while, a checkpoint is open (INV-53, INV-66)"
    assert idle == (state.checkpoint_id is None) == (state.lease_until is None), "an open checkpoint has a lease"
    assert state.checkpoint_id not in state.resumed, "a resumed checkpoint is never open again (INV-49)"
    if state.phase is Phase.COMMITTED:
        assert (state.checkpoint_id, state.target) in at.written, "committed, and not written"
        assert state.export_failed is None, "an export that failed is never committed (INV-45)"
    for kind, name in at.work:
        if kind == "export" and name != state.checkpoint_id:
            assert name in at.stopped, "a write goes on after its checkpoint has ended (INV-50)"
    assert not (idle and at.installed == "open"), "an abandoned restore leaves nothing (INV-60)"
    assert not (at.retired and at.installed == "open"), "what was retired is installed (INV-60)"
    assert at.retired == state.given_up, "a restore whose attempts were retired is given up, and no other (INV-60)"
    if state.phase in phases.TAKING:
        assert phases.refuse_retire(state, ()) and phases.refuse_forget(state), "retired in a checkpoint (INV-30)"
    if idle:
        assert phases.refuse_retire(state, ()) is None and phases.refuse_forget(state) is None, "refused while open"


def test_two_checkpoints_of_one_participant() -> None:
    found = explore(Participant(), moves, check, goal=lambda at: at.state.phase is Phase.IDLE)
    print(found.words("phases"))
    assert found.states > 500


@pytest.mark.parametrize(
    ("name", "instead", "says"),
    [
        ("refuse_stale", lambda *_: None, "resumed checkpoint is never open again"),
        ("_ending", lambda *_, **__: (Action.OPEN,), "INV-50|INV-60"),
        ("_gives_up", lambda *_: False, "INV-60"),
        ("_commit", lambda *given: retargeting(*given), "committed, and not written"),
    ],
)
def test_a_mistake_in_it_is_found(name: str, instead: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(getattr(phases, name)), f"phases has no {name} any more"
    monkeypatch.setattr(phases, name, instead)
    with pytest.raises(Broken, match=says):
        explore(Participant(), moves, check)


def retargeting(state: State, event: phases.Commit) -> phases.Step:
    """The target of a checkpoint changes under its write."""
    if state.phase not in (Phase.PREPARED, Phase.COMMITTED) or state.checkpoint_id != event.checkpoint_id:
        raise InvalidPhase("not now")
    begun = state.target is not None
    return replace(state, target=event.target), () if begun else (Action.EXPORT,)
