"""The phases of one participant against a reference model that knows only what the protocol says.

The model is a handful of facts: which checkpoint is open and how far, whether admission is closed, which ids are
resumed, whether an export failed for good (INV-45), until when the lease runs. The machine under test decides; the
model says what must come of it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gym_ckpt.core import phases
from gym_ckpt.core.phases import Action, Phase, State, Target, step
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

IDS = st.sampled_from(["open", "open", "open", "a", "b", "c"])
"""`open`: whichever checkpoint is open now. Most calls are about that one, or the machine never gets far."""
TARGETS = st.sampled_from([Target("/one", (EpisodeId("r"),)), Target("/two", ()), Target("/one", (), stop=True)])
RESTARTS = st.sampled_from([(), (), (), ("r",)])
RETIRED = st.sampled_from([(), (EpisodeId("r"),), (EpisodeId("r", 1),), (EpisodeId("r", 1), EpisodeId("s", 7))])
LEASES = st.floats(10, 50)
STEPS = st.floats(0.1, 6)


class Phases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.now = 0.0
        self.closed = False
        self.open: str | None = None
        self.stage = "idle"
        self.target: Target | None = None
        self.failed = False
        self.lease = 0.0
        self.resumed: list[str] = []
        self.writing = False
        self.installed = False
        self.given_up = False
        self.lapsed: list[str] = []

    def do(self, event: phases.Event) -> tuple[type[ProtocolError] | None, tuple[Action, ...]]:
        before = self.state
        try:
            self.state, actions = step(before, event)
        except ProtocolError as error:
            assert self.state is before, "a refusal changes nothing"
            return type(error), ()
        for action in actions:
            if action is Action.CLOSE:
                assert not self.closed, "closed twice"
                self.closed = True
            elif action is Action.OPEN:
                assert self.closed, "opened what was open"
                self.closed = False
            elif action is Action.EXPORT:
                assert not self.writing, "the same commit written twice"
                self.writing = True
            elif action is Action.IMPORT:
                self.installed = True
            elif action is Action.DISCARD:
                self.installed = False
        return None, actions

    def named(self, drawn: str) -> str:
        return (self.open or "a") if drawn == "open" else drawn

    def expected_refusal(self, checkpoint_id: str) -> type[ProtocolError] | None:
        if checkpoint_id in self.resumed[-RESUMED_IDS_KEPT:]:
            return StaleCheckpoint
        if self.open not in (None, checkpoint_id):
            return CheckpointConflict
        return None

    def ended(self, checkpoint_id: str | None, actions: tuple[Action, ...] = ()) -> None:
        assert not (self.writing and self.stage == "prepared") or Action.STOP_WRITING in actions, "INV-50"
        if checkpoint_id is not None and checkpoint_id not in self.resumed:
            self.resumed.append(checkpoint_id)
        self.open, self.stage, self.target, self.failed, self.writing = None, "idle", None, False, False
        self.given_up = False

    def lease_to(self, until: float) -> None:
        self.lease = max(self.lease, until) if self.stage != "idle" else until

    @rule(checkpoint_id=IDS, seconds=LEASES)
    def prepare(self, checkpoint_id: str, seconds: float) -> None:
        checkpoint_id = self.named(checkpoint_id)
        refusal, _ = self.do(phases.Prepare(checkpoint_id, self.now + seconds))
        expected = self.expected_refusal(checkpoint_id)
        if expected is None and self.stage in ("restoring", "restored"):
            expected = InvalidPhase
        if expected is None and self.failed:
            expected = ExportFailed
        assert refusal is expected
        if expected is None:
            self.lease_to(self.now + seconds)
            if self.stage == "idle":
                self.open, self.stage = checkpoint_id, "preparing"

    @precondition(lambda self: self.stage == "preparing")
    @rule()
    def ready(self) -> None:
        assert self.do(phases.Ready(self.open or ""))[0] is None
        self.stage = "prepared"

    @precondition(lambda self: self.stage == "preparing")
    @rule()
    def prepare_raises(self) -> None:
        self.do(phases.PrepareRaised(self.open or ""))
        self.ended(None)

    @rule(checkpoint_id=IDS, to=TARGETS, seconds=LEASES, restarts=RESTARTS)
    def commit(self, checkpoint_id: str, to: Target, seconds: float, restarts: tuple[str, ...] = ()) -> None:
        checkpoint_id = self.named(checkpoint_id)
        writing = self.writing
        refusal, actions = self.do(phases.Commit(checkpoint_id, to, self.now + seconds, restarts))
        expected = self.expected_refusal(checkpoint_id)
        if expected is None and self.stage not in ("prepared", "committed"):
            expected = InvalidPhase
        if expected is None and self.failed:
            expected = ExportFailed
        if expected is None and self.target is None and restarts:
            expected = RestartInScope
        if expected is None and self.target not in (None, to):
            expected = ScopeMismatch
        assert refusal is expected
        if expected is None:
            assert (Action.EXPORT in actions) == (self.target is None)
            self.target = to
            self.lease_to(self.now + seconds)
        else:
            assert self.writing == writing

    @precondition(lambda self: self.writing and self.stage == "prepared")
    @rule(ok=st.booleans())
    def write_ends(self, ok: bool) -> None:
        self.do(phases.CommitWritten(self.open or "") if ok else phases.CommitFailed(self.open or "", "disk full"))
        self.writing = False
        if ok:
            self.stage = "committed"
        else:
            self.failed = True

    @rule(checkpoint_id=IDS, to=TARGETS, served=st.booleans(), seconds=LEASES)
    def restore(self, checkpoint_id: str, to: Target, served: bool, seconds: float) -> None:
        checkpoint_id = self.named(checkpoint_id)
        refusal, actions = self.do(phases.Restore(checkpoint_id, to, served, self.now + seconds))
        expected = self.expected_refusal(checkpoint_id)
        if expected is None and self.stage == "idle" and served:
            expected = AlreadyServing
        if expected is None and self.stage in ("preparing", "prepared", "committed"):
            expected = InvalidPhase
        if expected is None and self.given_up:
            expected = StaleCheckpoint
        if expected is None and self.target not in (None, to):
            expected = ScopeMismatch
        assert refusal is expected
        if expected is None:
            assert (Action.IMPORT in actions) == (self.stage == "idle" or self.failed)
            self.lease_to(self.now + seconds)
            self.failed = False
            if self.stage == "idle":
                self.open, self.stage, self.target = checkpoint_id, "restoring", to

    @precondition(lambda self: self.stage == "restoring" and not self.failed)
    @rule(ok=st.booleans())
    def import_ends(self, ok: bool) -> None:
        self.do(phases.Installed(self.open or "") if ok else phases.ImportFailed(self.open or ""))
        if ok and not self.given_up:
            self.stage = "restored"
        elif not ok:
            self.failed, self.installed = True, False

    @rule(episodes=RETIRED)
    def retire(self, episodes: tuple[EpisodeId, ...]) -> None:
        """All that a restore installs: it is given up, and closed, whether its import has ended or not."""
        installs = () if self.target is None else self.target.installs
        restoring = self.stage in ("restoring", "restored")
        gives_up = restoring and bool(installs) and set(installs) <= set(episodes)
        importing = self.stage == "restoring" and not self.failed and not self.given_up
        refusal, actions = self.do(phases.Retire(episodes))
        refused = self.stage in ("preparing", "prepared", "committed") or (importing and not gives_up)
        assert refusal is (InvalidPhase if refused else None)
        assert (Action.DISCARD in actions) == (gives_up and not self.given_up)
        if gives_up:
            self.stage, self.given_up, self.installed = "restoring", True, False

    @rule(checkpoint_id=IDS)
    def resume(self, checkpoint_id: str) -> None:
        checkpoint_id = self.named(checkpoint_id)
        kept = self.stage == "restored"
        refusal, actions = self.do(phases.Resume(checkpoint_id))
        if checkpoint_id in self.lapsed:
            assert refusal is None and not actions, "the shell says what became of it, whatever else is open"
            return
        if self.open not in (None, checkpoint_id):
            assert refusal is CheckpointConflict
            return
        assert refusal is None
        assert (checkpoint_id in self.state.lapsed) == (self.given_up or checkpoint_id in self.lapsed)
        if self.given_up:
            self.lapsed.append(checkpoint_id)
        if self.open is not None:
            assert self.installed == kept, "a restored state stays on resume, anything else of a restore goes"
            self.installed = False
        self.ended(checkpoint_id, actions)

    @rule(checkpoint_id=IDS, seconds=LEASES)
    def renew(self, checkpoint_id: str, seconds: float) -> None:
        checkpoint_id = self.named(checkpoint_id)
        refusal, _ = self.do(phases.Renew(checkpoint_id, self.now + seconds))
        expected: type[ProtocolError] | None = StaleCheckpoint if checkpoint_id in self.resumed else None
        if expected is None and self.open is None:
            expected = InvalidPhase
        elif expected is None and self.open != checkpoint_id:
            expected = CheckpointConflict
        assert refusal is expected
        if expected is None:
            self.lease_to(self.now + seconds)

    @rule(to=TARGETS)
    def the_usual_next_call(self, to: Target) -> None:
        """Drawn at random alone, calls rarely come in an order that gets far."""
        if self.stage == "preparing":
            self.ready()
        elif self.stage == "idle":
            self.prepare("open", 40.0)
        elif self.stage == "prepared" and self.target is None:
            self.commit("open", to, 40.0)
        elif self.stage == "prepared" and self.writing:
            self.write_ends(True)
        elif self.stage == "restoring" and not self.failed:
            self.import_ends(not self.given_up)

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        _, actions = self.do(phases.LeaseCheck(self.now))
        expired = self.open is not None and self.now >= self.lease
        assert (Action.EXPIRED in actions) == expired
        if expired:
            assert not self.installed, "an abandoned restore leaves nothing (INV-60)"
            if self.stage in ("restoring", "restored"):
                self.lapsed.append(self.open or "")
            self.ended(self.open, actions)

    @rule(checkpoint_id=IDS)
    def late_outcomes_change_nothing(self, checkpoint_id: str) -> None:
        """What work reports after its checkpoint has ended (INV-50)."""
        checkpoint_id = self.named(checkpoint_id)
        if self.open == checkpoint_id:
            return
        before = self.state
        for event in (phases.Ready, phases.CommitWritten, phases.Installed, phases.ImportFailed):
            self.do(event(checkpoint_id))
        assert self.state == before

    @invariant()
    def phase_and_admission_agree(self) -> None:
        assert self.closed == (self.state.phase is not Phase.IDLE)
        assert self.state.phase == self.stage
        assert self.state.checkpoint_id == self.open

    @invariant()
    def retire_only_while_no_checkpoint_is_open(self) -> None:
        importing = self.stage == "restoring" and not self.failed and not self.given_up
        refused = self.stage in ("preparing", "prepared", "committed") or importing
        assert (phases.refuse_retire(self.state, ()) is not None) == refused
        assert (phases.refuse_forget(self.state) is not None) == (self.stage != "idle")

    @invariant()
    def resumed_ids_are_bounded(self) -> None:
        assert len(self.state.resumed) <= RESUMED_IDS_KEPT
        assert set(self.state.lapsed) <= set(self.state.resumed), "what has lapsed is fenced, and bounded with the rest"


TestPhases = Phases.TestCase
TestPhases.settings = settings(max_examples=300)


def test_resumed_ids_are_kept_up_to_the_bound() -> None:
    state = State()
    for number in range(RESUMED_IDS_KEPT + 3):
        state, _ = step(state, phases.Resume(f"c{number}"))
    assert state.resumed[0] == "c3" and len(state.resumed) == RESUMED_IDS_KEPT
