"""What must hold, numbered: the registry of all invariants, and predicates over plain data for those that data decides.

A predicate returns None where its invariant holds and otherwise what was seen against it, as text for a person. The
same one serves an assertion in the implementation, the simulator's oracle, and a property test's model.

Pure: knows identity (`gym_ckpt.types`) and how to count, nothing else. It must not know where the data comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from gym_ckpt.types import EpisodeId
from gym_ckpt.words import counted

InvariantKind = Literal["S", "L", "C"]
Reason = str | None
"""None: it holds."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """`kind`: S safety, after every step; L liveness, once faults have stopped; C a contract of start-up or load."""

    number: int
    kind: InvariantKind
    title: str

    @property
    def name(self) -> str:
        return f"INV-{self.number}"


_TITLES: Final[tuple[tuple[int, InvariantKind, str], ...]] = (
    # End to end
    (1, "L", "crash equivalence: the output rows equal the undisturbed run's, but for attempt numbers and times"),
    (2, "S", "each rollout has at most one output row"),
    (3, "S", "a tool's side effect happens once per logical step of the conversation that reaches the output"),
    (4, "S", "a row's tokens are exactly prompt, generated and tool text of its own chain"),
    (5, "L", "once faults stop every rollout ends, and every server is idle and open with nothing left over"),
    (6, "L", "a continued rollout repeats no model call that was delivered before its checkpoint"),
    # Admission and delivery
    (10, "S", "prepare never waits for a generation to finish"),
    (11, "S", "from closing to resume no undelivered response leaves the gate"),
    (12, "S", "only a response that has begun delays readiness"),
    (13, "S", "a response starts at its first chunk that is neither empty nor a keep-alive"),
    (14, "S", "a call arriving at closed admission waits, uncounted, and is not refused because of the checkpoint"),
    (15, "S", "the agent of a waiting call is at the boundary recorded before that call"),
    (16, "S", "a ledger row exists only for a call whose response started, and before its first chunk is sent"),
    (17, "S", "an undelivered call is in no checkpoint"),
    (18, "S", "a row written after a commit's snapshot is not in that commit"),
    (19, "S", "a failed row write sends no answer and poisons the call"),
    (20, "S", "a retire and a checkpoint wait for a row write in progress"),
    (21, "C", "every model server that a capturing agent names is behind the gate"),
    (22, "S", "untagged calls break nothing; a malformed id is a typed 400"),
    (23, "S", "what a checkpoint exports and reports as restarts does not change while it is open"),
    (24, "S", "time parked for checkpoints is not charged to an episode's time-out"),
    (
        25,
        "S",
        "a call that an engine refuses for seconds waits, parked, as long as it was asked to, and fails no attempt",
    ),
    # Retire and forget
    (30, "S", "retire and forget happen only while no checkpoint is open on that server"),
    (31, "S", "retiring attempt N affects N and earlier ones, never N+1"),
    (32, "S", "the mark comes before any work that the deadline limits, and before anything is stopped"),
    (33, "S", "retire replies only after the attempt's work and waiting calls have left"),
    (34, "S", "a call is cancelled at most once"),
    (35, "S", "a waiting call refused by a mark stays refused after forget and reopening"),
    (36, "S", "after a retire no late row recreates a ledger of attempts 0..N"),
    (37, "S", "forget removes the mark everywhere"),
    (38, "S", "a retired attempt never produces an output row, a tool effect or a ledger row afterwards"),
    (39, "S", "what is kept per rollout goes when the rollout is forgotten"),
    # Commit and publication
    (40, "S", "a checkpoint holds only episodes in its scope"),
    (41, "S", "every continued episode has exactly one environment owner"),
    (42, "S", "restored, unclaimed state in scope is exported again"),
    (43, "S", "'started' is decided by the shared marker under the ledger's lock"),
    (44, "S", "a delete that fails stays pending for the next commit"),
    (45, "S", "export_failed is final for its checkpoint id"),
    (46, "S", "staging_keys names every staged key that the checkpoint needs; by episode it partitions them"),
    (47, "S", "ledger retire and delete routes refuse while a checkpoint is open"),
    (48, "S", "at any crash point the pointer names a complete checkpoint or the one before"),
    (49, "S", "a directory with a manifest never changes"),
    (50, "S", "after resume a write in progress publishes nothing"),
    (51, "S", "a failed checkpoint never harms the previous one; exactly keep_checkpoints published ones remain"),
    (52, "S", "token arrays never enter checkpoint files"),
    (53, "S", "the lease ends every abandoned checkpoint"),
    # Restore
    (60, "S", "restore is all or nothing: installed everywhere under N+1, or N+1 is retired and nowhere left"),
    (61, "S", "only servers that have served nothing restore"),
    (62, "S", "what dead executions left for target and later attempts is gone before the import, marks included"),
    (63, "S", "attempts 0..N of a restored rollout stay refused, over any number of restores"),
    (64, "S", "a carried row keeps the capture key of its first staging"),
    (65, "S", "restoring the same checkpoint again gives the same state"),
    (66, "S", "a restore leaves everything closed until resume"),
    (67, "S", "a parent is found by lookup, never consumed"),
    (68, "S", "a restore makes no model call and no tool call"),
    # Cuts
    (70, "S", "cutting takes at most half of the prepare time that is left"),
    (71, "S", "constrained calls are never cut and never continue a cut"),
    (72, "S", "one cut per episode, the latest undelivered call's by admission time"),
    (73, "S", "a restored cut has one owner"),
    (74, "S", "a continued generation is token-identical to the uncut one"),
    (75, "S", "a prefix counts only when it is durable"),
    # Workers
    (80, "S", "a server with several workers is one participant"),
    (81, "S", "a lost worker blocks or fails a checkpoint, never weakens it"),
    (82, "S", "an attempt started on any worker is pending on none"),
    (83, "S", "worker messages carry any JSON value unchanged"),
    (84, "C", "runtime directories are private, one per process, and removed at exit"),
    # Collection
    (90, "S", "no row starts while a checkpoint is open"),
    (91, "S", "a checkpoint commits exactly the rows in flight plus restored ones not dispatched, minus restarts"),
    (92, "S", "a stop does not resume; a failed checkpoint does"),
    (93, "S", "a row without a reply is retired, one with any reply is not; never inside a checkpoint"),
    (94, "S", "finished rows win over the checkpoint; nothing is dispatched before the restore is decided"),
    (95, "S", "one live collector owns a directory"),
    (96, "L", "a signal leads to a published checkpoint, or to an orderly stop that says why there is none"),
    (97, "S", "what a whole checkpoint holds is given up only where it cannot be had back, or as told"),
    # Training side
    (100, "S", "tracing never blocks the event loop, never fails a run, and costs nothing when off"),
    (101, "S", "each attempt has exactly one terminal event over all runs"),
    (102, "S", "the cost report equals the simulator's true cost"),
    (103, "S", "every ledger change happens inside a cut"),
)

INVARIANTS: Final[Mapping[int, Invariant]] = MappingProxyType(
    {number: Invariant(number, kind, title) for number, kind, title in _TITLES}
)


# ------------------------------------------------------------------------------------------------- rows


def rows_equal(expected: Iterable[bytes], seen: Iterable[bytes]) -> Reason:
    """INV-1: two multisets of canonical rows are equal."""
    want, have = Counter(expected), Counter(seen)
    missing, surplus = want - have, have - want
    if not missing and not surplus:
        return None
    return "; ".join(
        f"{counted(sum(counts.values()), 'row')} {what}, such as {min(counts)[:300]!r}"
        for what, counts in (("missing", missing), ("that should not be", surplus))
        if counts
    )


def one_row_each(rollout_ids: Iterable[str]) -> Reason:
    """INV-2: no rollout id occurs twice."""
    twice = sorted(name for name, count in Counter(rollout_ids).items() if count > 1)
    return f"more than one output row of {', '.join(twice[:5])}" if twice else None


# ------------------------------------------------------------------------------------------------- checkpoints


def within_scope(exported: Iterable[EpisodeId], scope: Iterable[EpisodeId]) -> Reason:
    """INV-40: nothing but what is in scope was exported."""
    foreign = sorted(set(exported).difference(scope))
    return f"{foreign[0]} is in the checkpoint and not in its scope" if foreign else None


def one_owner(continued: Iterable[EpisodeId], owned: Iterable[EpisodeId]) -> Reason:
    """INV-41: `owned`, the episodes of all environments' records, holds each continued one exactly once."""
    count = Counter(owned)
    for episode in sorted(set(continued)):
        if count[episode] != 1:
            return f"{episode} has {count[episode]} environment owners"
    return None


def only_started(calls: Iterable[str], started: Iterable[str]) -> Reason:
    """INV-17: every recorded call is one whose answer had started."""
    early = sorted(set(calls).difference(started))
    return f"call {early[0]} is in the checkpoint, and its answer had not started" if early else None


def unchanged(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> Reason:
    """INV-49: a participant's directory whose manifest stood holds the same bytes, or has no manifest any more."""
    if "manifest.json" not in now:
        return None
    for name in sorted(before):
        if before[name] != now.get(name):
            return f"{name} {'changed' if name in now else 'is gone'} under a manifest"
    return None


# ------------------------------------------------------------------------------------------------- retire


def may_retire(phase: str) -> Reason:
    """INV-30, for a retire: no checkpoint is being taken."""
    return f"a retire while the checkpoint was {phase}" if phase in ("preparing", "prepared", "committed") else None


def may_forget(phase: str) -> Reason:
    """INV-30, for a forget: nothing is open."""
    return f"a forget in phase {phase}" if phase != "idle" else None


def only_up_to(retired: Iterable[EpisodeId], touched: Iterable[EpisodeId]) -> Reason:
    """INV-31: what a retire touched are the attempts that it named, and earlier ones of the same rollouts."""
    highest: dict[str, int] = {}
    for episode in retired:
        highest[episode.rollout_id] = max(episode.attempt, highest.get(episode.rollout_id, -1))
    for episode in sorted(set(touched)):
        if episode.attempt > highest.get(episode.rollout_id, -1):
            named = highest.get(episode.rollout_id)
            return f"{episode} was touched by a retire of {'another rollout' if named is None else f'attempt {named}'}"
    return None


def marked(marks: Mapping[str, int], episodes: Iterable[EpisodeId]) -> Reason:
    """INV-32, INV-63: each of these attempts is refused."""
    for episode in episodes:
        if marks.get(episode.rollout_id, -1) < episode.attempt:
            return f"{episode} is not refused (its rollout's mark is {marks.get(episode.rollout_id)})"
    return None


def none_left(remaining: Iterable[object]) -> Reason:
    """INV-33: nothing of a retired attempt is still at work or waiting."""
    left = [str(each) for each in remaining]
    return f"work is left of {', '.join(left[:5])}" if left else None


# ------------------------------------------------------------------------------------------------- restore


def same_state(exported: Mapping[str, str], installed: Mapping[str, str]) -> Reason:
    """INV-60, INV-65: the same episodes with the same digests of their state."""
    for key in sorted({*exported, *installed}):
        if key not in installed:
            return f"{key} was in the checkpoint and is not installed"
        if key not in exported:
            return f"{key} is installed and was not in the checkpoint"
        if exported[key] != installed[key]:
            return f"the state of {key} is another one than the checkpoint holds"
    return None


def nothing_of(episodes: Iterable[EpisodeId], live: Iterable[EpisodeId]) -> Reason:
    """INV-60, after a failed restore: none of these attempts holds state."""
    left = sorted(set(live).intersection(episodes))
    return f"state of {left[0]} is left" if left else None


# ------------------------------------------------------------------------------------------------- at rest


def at_rest(phase: str, lease: float | None, counts: Mapping[str, int], live: Iterable[str]) -> Reason:
    """INV-5, for one server: idle, no lease, nothing waiting or at work, nothing held."""
    if phase != "idle" or lease is not None:
        return f"phase {phase}, {'a' if lease is not None else 'no'} lease"
    busy = [f"{count} {name}" for name, count in sorted(counts.items()) if count]
    held = sorted(live)
    if busy or held:
        return f"{', '.join(busy) or 'nothing counted'}; state held of {', '.join(held[:5]) or 'nobody'}"
    return None
