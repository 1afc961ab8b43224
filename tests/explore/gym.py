"""A gym of three participants and its controller as one state: the machines of `core`, and as little around as can be.

Environment, model and agent run `phases.step`; the controller goes by `coordination`'s stages and rules. Two episodes
make a model call each; the answer is on its way between the model's row and the agent's having seen it. A checkpoint
may be cut at any moment, and one fault strikes: a reply is lost, a lease ends, a write or an import fails, a server or
the controller dies; or the job dies, and a lease ends in the restore that follows.

Must not know what must hold: see `test_gym`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from gym_ckpt.core import coordination, phases
from gym_ckpt.core.coordination import Member
from gym_ckpt.core.phases import Action, Event, Phase, State, Target, step
from gym_ckpt.errors import InconsistentReplies, ProtocolError
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire.messages import CommitReply, ManifestInfo, RestoreReply

ENVIRONMENT, MODEL, AGENT = range(3)
KINDS = (Kind.ENVIRONMENT, Kind.MODEL, Kind.AGENT)
MEMBERS = tuple(Member(str(kind), "", kind) for kind in KINDS)
NUMBER = {member.name: at for at, member in enumerate(MEMBERS)}
ROLLOUTS = ("r", "s")
CHECKPOINTS = 2
KINDS_OF_FAULT = {"reply": 1, "lease": 1, "write": 1, "server": 1, "controller": 1, "job": 1, "lapse": 2}
"""And how many faults there are of it."""
LEASE = 10.0
ENDING = (Action.STOP_WRITING, Action.DISCARD, Action.OPEN)
"""What ends the work of a server."""
MANIFEST = ManifestInfo(
    schema_version=1, kind="", instance="", checkpoint_id="", records_file="", records_sha256="", record_count=0
)


@dataclass(frozen=True)
class Snapshot:
    """What one participant wrote. `calls`: of each episode, delivered (model) or seen (agent)."""

    checkpoint: str
    scope: tuple[EpisodeId, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Server:
    """`work`: what runs and has not ended. `live`: its attempts. `kept`: snapshots on the disk, by participant."""

    state: State = field(default_factory=State)
    work: str = ""
    live: tuple[EpisodeId, ...] = ()
    calls: tuple[int, ...] = (0, 0)
    served: bool = False
    kept: tuple[Snapshot, ...] = ()

    @property
    def closed(self) -> bool:
        return self.state.phase is not Phase.IDLE

    def snapshot(self, checkpoint: str) -> Snapshot | None:
        return next((each for each in self.kept if each.checkpoint == checkpoint), None)


@dataclass(frozen=True)
class Gym:
    """`doing`: run, prepare, commit, publish, restore, undo, resume, down, over. `called`: in this stage."""

    servers: tuple[Server, ...]
    doing: str = "run"
    number: int = 0
    attempt: int = 0
    stage: int = 0
    called: frozenset[int] = frozenset()
    pointer: str = ""
    restoring: bool = False
    faults: int = 0
    lost: bool = False
    """A server has died, and with it what was in flight: the rows are in no scope."""

    @property
    def checkpoint(self) -> str:
        return f"{'restore' if self.restoring else 'c'}{self.number}"

    @property
    def episodes(self) -> tuple[EpisodeId, ...]:
        return tuple(EpisodeId(name, self.attempt) for name in ROLLOUTS)

    @property
    def scope(self) -> tuple[EpisodeId, ...]:
        return () if self.lost else self.episodes

    @property
    def target(self) -> Target:
        return Target(f"/{self.checkpoint}", self.scope)

    def arriving(self, at: int) -> bool:
        """An answer of this episode has left the model, and the agent has not seen all of it."""
        model, agent = self.servers[MODEL], self.servers[AGENT]
        return self.episodes[at] in agent.live and model.calls[at] > agent.calls[at]

    def pruned(self, server: Server) -> Server:
        """Without snapshots that nobody will ask for."""
        return replace(server, kept=tuple(each for each in server.kept if each.checkpoint == self.pointer))

    def with_server(self, at: int, server: Server) -> Gym:
        return replace(self, servers=(*self.servers[:at], server, *self.servers[at + 1 :]))


def fresh(kept: tuple[Snapshot, ...] = ()) -> Server:
    return Server(kept=kept)


def key(gym: Gym) -> Hashable:
    """The two episodes are alike, so a state and its mirror image are one."""
    columns = [
        tuple((server.calls[at], *(each.calls[at] for each in server.kept)) for server in gym.servers)
        for at in range(len(ROLLOUTS))
    ]
    servers = tuple(
        (each.state, each.work, each.live, each.served, tuple((kept.checkpoint, kept.scope) for kept in each.kept))
        for each in gym.servers
    )
    rest = (gym.doing, gym.number, gym.attempt, gym.stage, gym.called, gym.pointer, gym.restoring, gym.faults, gym.lost)
    return servers, tuple(sorted(columns)), rest


def start() -> Gym:
    live = tuple(EpisodeId(name, 0) for name in ROLLOUTS)
    return Gym(tuple(Server(live=live) for _ in MEMBERS))


def moves(gym: Gym, kind: str) -> Iterator[tuple[str, Gym]]:
    """With faults of this kind, as many as there may be."""
    yield from _traffic(gym)
    for at in range(len(MEMBERS)):
        yield from _work(gym, at)
        yield from _lease(gym, at)
    yield from _controller(gym)
    if gym.faults < KINDS_OF_FAULT[kind] and gym.doing != "over":
        yield from _faults(replace(gym, faults=gym.faults + 1), kind)


# ---------------------------------------------------------------------------------------------------- servers


def _traffic(gym: Gym) -> Iterator[tuple[str, Gym]]:
    model, agent = gym.servers[MODEL], gym.servers[AGENT]
    for at, episode in enumerate(gym.episodes):
        if (
            not gym.lost
            and not model.closed
            and not model.calls[at]
            and all(episode in server.live for server in gym.servers)
        ):
            told = gym.with_server(MODEL, replace(model, calls=_more(model.calls, at), served=True))
            yield f"{episode}'s answer starts", _served(told)
        if gym.arriving(at):
            yield f"{episode}'s answer is there", gym.with_server(AGENT, replace(agent, calls=_more(agent.calls, at)))


def _served(gym: Gym) -> Gym:
    return replace(gym, servers=tuple(replace(server, served=True) for server in gym.servers))


def _more(calls: tuple[int, ...], at: int) -> tuple[int, ...]:
    return (*calls[:at], calls[at] + 1, *calls[at + 1 :])


def _work(gym: Gym, at: int) -> Iterator[tuple[str, Gym]]:
    server, name = gym.servers[at], MEMBERS[at].name
    checkpoint = server.state.checkpoint_id or ""
    if server.work == "settle" and not (at == AGENT and any(map(gym.arriving, range(len(ROLLOUTS))))):
        yield f"{name} is ready", told(gym, at, phases.Ready(checkpoint), "")
    if server.work == "export":
        assert server.state.target is not None, "it exports towards a target"
        owned = tuple(each for each in server.live if each in server.state.target.scope)
        kept = replace(server, kept=(*server.kept, Snapshot(checkpoint, owned, server.calls)))
        yield f"{name} has written", told(gym.with_server(at, kept), at, phases.CommitWritten(checkpoint), "")
    if server.work == "import":
        assert server.state.target is not None, "it imports from somewhere"
        source = server.snapshot(gym.pointer)
        calls = (0, 0) if source is None else source.calls
        live = tuple(each.next() for each in server.state.target.scope)
        after = gym.with_server(at, replace(server, live=live, calls=calls))
        yield f"{name} has installed", told(after, at, phases.Installed(checkpoint), "")


def _lease(gym: Gym, at: int) -> Iterator[tuple[str, Gym]]:
    """Of a checkpoint that its controller has left: only a matter of time."""
    server = gym.servers[at]
    left = gym.doing in ("run", "over", "down") or server.state.checkpoint_id != gym.checkpoint
    if server.closed and left:
        yield f"{MEMBERS[at].name}'s lease ends", told(gym, at, phases.LeaseCheck(2 * LEASE), server.work)


def told(gym: Gym, at: int, event: Event, work: str) -> Gym:
    """The participant after an event. Raises `ProtocolError`."""
    server = gym.servers[at]
    state, actions = step(server.state, event)
    begun = {Action.SETTLE: "settle", Action.EXPORT: "export", Action.IMPORT: "import"}
    for action in actions:
        work = begun.get(action, "" if action in ENDING else work)
    live = () if Action.DISCARD in actions else server.live
    return gym.with_server(at, replace(server, state=state, work=work, live=live))


# ------------------------------------------------------------------------------------------------- controller


def _controller(gym: Gym) -> Iterator[tuple[str, Gym]]:
    match gym.doing:
        case "run" if gym.number < CHECKPOINTS:
            begun = replace(gym, doing="prepare", number=gym.number + 1, stage=0)
            yield "a checkpoint begins", replace(begun, servers=tuple(map(begun.pruned, gym.servers)))
        case "run":
            yield "the run is over", replace(gym, doing="over")
        case "prepare":
            yield from _stages(gym, coordination.PREPARE, Phase.PREPARED, "commit")
        case "commit":
            yield from _stages(gym, (KINDS,), Phase.COMMITTED, "publish")
        case "publish":
            yield "published", replace(gym, pointer=gym.checkpoint, doing="resume", stage=0, called=frozenset())
        case "restore":
            yield from _stages(gym, (KINDS,), Phase.RESTORED, "resume")
        case "undo":
            yield from _undo(gym)
        case "resume":
            yield from _resume(gym)
        case "down":
            yield "the controller starts again", _requeued(gym, whole=False)


def _stages(gym: Gym, order: coordination.Stages, wanted: Phase, then: str) -> Iterator[tuple[str, Gym]]:
    stages = coordination.stages(order, MEMBERS)
    stage = [NUMBER[member.name] for member in stages[gym.stage]]
    for at in stage:
        if at not in gym.called:
            try:
                yield f"{gym.doing} {MEMBERS[at].name}", _call(gym, at)
            except ProtocolError:
                yield f"{MEMBERS[at].name} refuses {gym.doing}", _given_up(gym)
    states = [gym.servers[at].state for at in stage]
    if gym.called.issuperset(stage):
        if all(state.phase is wanted and state.checkpoint_id == gym.checkpoint for state in states):
            last = gym.stage + 1 == len(stages)
            done = replace(
                gym, stage=0 if last else gym.stage + 1, called=frozenset(), doing=then if last else gym.doing
            )
            yield f"{gym.doing} done", _judged(gym, done) if last else done
        elif any(state.checkpoint_id != gym.checkpoint or state.export_failed for state in states):
            yield f"{gym.doing} fails", _given_up(gym)
        elif any(state.import_failed for state in states):
            yield "the restore fails", _given_up(gym)


def _call(gym: Gym, at: int) -> Gym:
    server, name = gym.servers[at], gym.checkpoint
    source = Target(f"/{gym.pointer}", _restored_scope(gym))
    events: dict[str, Event] = {
        "prepare": phases.Prepare(name, LEASE),
        "commit": phases.Commit(name, gym.target, LEASE),
        "restore": phases.Restore(name, source, server.served, LEASE),
    }
    event = events[gym.doing]
    return replace(told(gym, at, event, server.work), called=gym.called | {at})


def _judged(gym: Gym, done: Gym) -> Gym:
    """What the replies add up to."""
    try:
        if gym.doing == "commit":
            coordination.committed(gym.scope, [(member, _committed(gym, at)) for at, member in enumerate(MEMBERS)])
        if gym.doing == "restore":
            scope = _restored_scope(gym)
            replies = [(member, _installed(gym, at)) for at, member in enumerate(MEMBERS)]
            coordination.installed(scope, replies)
            return replace(done, attempt=scope[0].attempt + 1 if scope else gym.attempt + 1)
    except InconsistentReplies:
        return _given_up(gym)
    return done


def _committed(gym: Gym, at: int) -> CommitReply:
    server = gym.servers[at]
    snapshot = server.snapshot(gym.checkpoint)
    assert snapshot is not None, "it said that it had written"
    keys = tuple(each.key for each in snapshot.scope)
    return CommitReply(phase=str(server.state.phase), episode_ids=keys, manifest=MANIFEST)


def _installed(gym: Gym, at: int) -> RestoreReply:
    server = gym.servers[at]
    keys = tuple(each.key for each in server.live)
    return RestoreReply(phase=str(server.state.phase), source_checkpoint_id=gym.pointer, installed=keys)


def _restored_scope(gym: Gym) -> tuple[EpisodeId, ...]:
    snapshot = gym.servers[ENVIRONMENT].snapshot(gym.pointer)
    return () if snapshot is None else snapshot.scope


def installs(gym: Gym) -> tuple[EpisodeId, ...]:
    """The attempts that a restore of what the pointer names is for."""
    return tuple(each.next() for each in _restored_scope(gym))


def _given_up(gym: Gym) -> Gym:
    doing = "undo" if gym.doing == "restore" else "resume"
    return replace(gym, doing=doing, stage=0, called=frozenset())


def _undo(gym: Gym) -> Iterator[tuple[str, Gym]]:
    """A failed restore is retired everywhere while admission is still closed; then it begins from the input."""
    after = gym
    for at in range(len(MEMBERS)):
        try:
            after = told(after, at, phases.Retire(installs(gym)), after.servers[at].work)
        except ProtocolError:
            continue
        after = after.with_server(at, replace(after.servers[at], live=(), calls=(0, 0)))
    yield "what was installed is retired", replace(after, doing="resume", lost=True)


def _resume(gym: Gym) -> Iterator[tuple[str, Gym]]:
    stages = coordination.stages(coordination.RESUME, MEMBERS)
    (at,) = [NUMBER[member.name] for member in stages[gym.stage]]
    if gym.restoring and not gym.lost and gym.checkpoint in gym.servers[at].state.lapsed:
        yield f"nothing of it is left on {MEMBERS[at].name}", replace(gym, doing="undo", stage=0, called=frozenset())
        return
    last = gym.stage + 1 == len(stages)
    done = replace(gym, stage=0 if last else gym.stage + 1, doing="run" if last else gym.doing)
    if last and gym.restoring:
        done = replace(done, restoring=False)
    try:
        yield f"resume {MEMBERS[at].name}", told(done, at, phases.Resume(gym.checkpoint), gym.servers[at].work)
    except ProtocolError:
        yield f"{MEMBERS[at].name} refuses resume", done


def _requeued(gym: Gym, *, whole: bool) -> Gym:
    servers = tuple(fresh(server.kept) for server in gym.servers) if whole else gym.servers
    doing = "restore" if gym.pointer else "run"
    return replace(
        gym,
        servers=servers,
        doing=doing,
        stage=0,
        called=frozenset(),
        restoring=bool(gym.pointer),
        lost=not gym.pointer,
    )


# ------------------------------------------------------------------------------------------------------ faults


def _faults(gym: Gym, kind: str) -> Iterator[tuple[str, Gym]]:
    for at, server in enumerate(gym.servers):
        name = MEMBERS[at].name
        if kind == "server" and gym.doing != "down":
            yield f"{name} dies", replace(gym.with_server(at, fresh(server.kept)), lost=True)
        if kind == "reply" and gym.doing in ("prepare", "commit", "restore") and at in gym.called:
            yield f"{name}'s reply is lost", _given_up(gym)
        if server.closed and (kind == "lease" or (kind == "lapse" and gym.restoring)):
            yield f"{name}'s lease ends too early", told(gym, at, phases.LeaseCheck(2 * LEASE), server.work)
        if kind == "write" and server.work == "export":
            yield f"{name} cannot write", told(gym, at, phases.CommitFailed(gym.checkpoint, "disk full"), "")
    dead = replace(gym, doing="down", stage=0, called=frozenset())
    if kind == "controller":
        yield "the controller dies", dead
    if kind == "job" or (kind == "lapse" and gym.faults == 1 and gym.pointer and not gym.lost):
        yield "the job dies", _requeued(dead, whole=True)
