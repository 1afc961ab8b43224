"""What coordination must know and does not have to ask: the order of the participants, and what their replies must say.

Stages run one after the other, the members of a stage at the same time.

    prepare          environment ▶ model ▶ agent ▶ resources     new steps stop first; the model closes, so that
                                                                 agents reach a boundary; resources serve to the end
    resume           resources ▶ agent ▶ model ▶ environment     nobody goes on before whom it calls
    retire, forget   environment ▶ agent ▶ model, resources      callers stop before those whom they call
    commit, restore  all at once

Keeps INV-40, 41, 46 at the border: replies that contradict each other publish nothing. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gym_ckpt.core.phases import Phase
from gym_ckpt.errors import InconsistentReplies, NotReady
from gym_ckpt.types import EpisodeId, Kind, keys
from gym_ckpt.wire.messages import CommitReply, Report, RestoreReply

Stages = tuple[tuple[Kind, ...], ...]
PREPARE: Stages = ((Kind.ENVIRONMENT,), (Kind.MODEL,), (Kind.AGENT,), (Kind.RESOURCES,))
RESUME: Stages = ((Kind.RESOURCES,), (Kind.AGENT,), (Kind.MODEL,), (Kind.ENVIRONMENT,))
RETIRE: Stages = ((Kind.ENVIRONMENT,), (Kind.AGENT,), (Kind.MODEL, Kind.RESOURCES))


@dataclass(frozen=True, slots=True)
class Member:
    """One participant. `skew_s`: its wall clock minus ours, when it was discovered."""

    name: str
    url: str
    kind: Kind
    skew_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit on every participant. `staging_keys_by_episode`: by capture key.

    `episodes`: those of the scope that an environment owns, and that will be continued. One that nobody owns has not
    begun (its `/run` waits) or is over (its reply is on the wire): there is nothing of it to continue.
    """

    episodes: tuple[EpisodeId, ...]
    staging_keys: tuple[str, ...]
    staging_keys_by_episode: Mapping[str, tuple[str, ...]]


def skew_s(asked: float, answered: float, theirs: float) -> float:
    """A clock that said `theirs` between these times of ours, minus ours: the smallest that this leaves possible.

    Of an exchange that took long, because this process was stopped in it, the middle says nothing: half of that time
    would be missing from every deadline, and each prepare come too late however often it was made.
    """
    return min(max(theirs - answered, 0.0), max(theirs - asked, theirs - answered))


def stages(order: Stages, members: Iterable[Member]) -> list[list[Member]]:
    """Members by stage, in their configured order; empty stages left out."""
    listed = list(members)
    by_stage = [[member for member in listed if member.kind in kinds] for kinds in order]
    return [stage for stage in by_stage if stage]


def not_ready(stage: Sequence[Member], reports: Sequence[Report]) -> NotReady | None:
    """What a prepare of this stage fails with, unless every member is ready."""
    if all(report.ready for report in reports):
        return None
    blockers, count = merged(reports)
    names = ", ".join(member.name for member in stage)
    return NotReady(
        f"{names} not ready in time, blocked by {count} episode(s): {', '.join(blockers[:5]) or 'unknown'}",
        blockers=blockers,
        blocker_count=count,
    )


def merged(reports: Iterable[Report]) -> tuple[tuple[str, ...], int]:
    """Blockers (capped lists joined, sorted) and their number (never capped) over a stage's reports."""
    listed = list(reports)
    return (
        tuple(sorted({key for report in listed for key in report.blockers})),
        sum(report.blocker_count for report in listed),
    )


def committed(scope: Iterable[EpisodeId], replies: Sequence[tuple[Member, CommitReply]]) -> Committed:
    """The commit that these replies add up to.

    Raises:
        InconsistentReplies: some check of a commit is violated; nothing may be published.
    """
    wanted = sorted(set(scope))
    wanted_keys = set(keys(wanted))
    owners: Counter[str] = Counter()
    by_episode: dict[str, tuple[str, ...]] = {}
    for member, reply in replies:
        if reply.phase != Phase.COMMITTED:
            raise InconsistentReplies(f"{member.name} replied phase {reply.phase} to a commit")
        foreign = sorted(set(reply.episode_ids) - wanted_keys)
        if foreign:
            raise InconsistentReplies(f"{member.name} exported {foreign[0]}, which is not in the scope")
        if member.kind is Kind.ENVIRONMENT:
            owners.update(reply.episode_ids)
        if member.kind is Kind.MODEL:
            by_episode = _partition(member, reply, by_episode)
    for key in sorted(owners):
        if owners[key] > 1:
            raise InconsistentReplies(f"episode {key} has {owners[key]} environment owners instead of one")
    staged = tuple(sorted(key for staging_keys in by_episode.values() for key in staging_keys))
    return Committed(tuple(episode for episode in wanted if owners[episode.key]), staged, by_episode)


def _partition(member: Member, reply: CommitReply, before: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    by_episode = reply.staging_keys_by_episode or {}
    listed = sorted(reply.staging_keys or ())
    if sorted(key for staging_keys in by_episode.values() for key in staging_keys) != listed:
        raise InconsistentReplies(f"{member.name}: staging_keys_by_episode does not partition staging_keys")
    both = {name: (*before.get(name, ()), *by_episode.get(name, ())) for name in (*before, *by_episode)}
    return dict(sorted(both.items()))


def saved(replies: Sequence[tuple[Member, RestoreReply]]) -> dict[str, int]:
    """Work that a restore saves, by name, sorted: each kind's participants together, and the kind that knows most.

    Agents and model servers tell of the same calls, and only some of them tell of tokens.
    """
    by_kind: dict[Kind, Counter[str]] = {}
    for member, reply in replies:
        by_kind.setdefault(member.kind, Counter()).update(reply.saved)
    most: Counter[str] = Counter()
    for counted in by_kind.values():
        most |= counted
    return dict(sorted(most.items()))


def installed(scope: Iterable[EpisodeId], replies: Sequence[tuple[Member, RestoreReply]]) -> frozenset[EpisodeId]:
    """The attempts that a restore has installed: for each episode in scope the next, with one environment owner.

    Raises:
        InconsistentReplies: the restore is none, and must be undone.
    """
    targets = sorted({episode.next() for episode in scope})
    owners: Counter[str] = Counter()
    sources = {reply.source_checkpoint_id for _, reply in replies}
    if len(sources) > 1:
        raise InconsistentReplies(f"participants restored different checkpoints: {', '.join(sorted(sources))}")
    for member, reply in replies:
        if reply.phase != Phase.RESTORED:
            raise InconsistentReplies(f"{member.name} replied phase {reply.phase} to a restore")
        foreign = sorted(set(reply.installed) - set(keys(targets)))
        if foreign:
            raise InconsistentReplies(f"{member.name} installed {foreign[0]}, which nobody asked for")
        if member.kind is Kind.ENVIRONMENT:
            owners.update(reply.installed)
    for key in keys(targets):
        if owners[key] != 1:
            raise InconsistentReplies(f"restored episode {key} has {owners[key]} environment owners instead of one")
    return frozenset(targets)
