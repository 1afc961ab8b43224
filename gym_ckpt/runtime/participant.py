"""What every participant provides to its control plane: admission, a report, and export, check, install, free.

The control plane calls these and nothing else, in the order of `gym_ckpt.core.phases`; a participant never sees a
phase, a lease, a directory or a token.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gym_ckpt.errors import NotLossless
from gym_ckpt.ports import Ports
from gym_ckpt.runtime.admission import Admission
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import Report, report


@dataclass(frozen=True, slots=True)
class Record:
    """One episode's exported state: lossless JSON under the attempt that it was exported from or is installed for."""

    episode: EpisodeId
    state: Any


class Participant(ABC):
    """The part of one server that owns checkpointable state."""

    kind: ClassVar[Kind]

    def __init__(self, instance: str, ports: Ports) -> None:
        self.instance = instance
        self.ports = ports
        self.admission = Admission(ports.tracer)
        self.admission.on_forgotten = self._forgotten_late

    @property
    def shared(self) -> bool:
        """Whether a restore reads the records of all participants of this kind, and keeps those that it `owns`."""
        return False

    async def open(self) -> None:
        """Before the server serves. Raises `OSError` or a `GymCkptError`: the server does not start."""

    def close(self) -> None:
        """The server has ended: give up what another life of it would wait for."""

    def broken(self, error: Exception) -> bool:
        """Whether this is a broken belief of this package, which stops the process.

        An author's `assert` is an author's failure like any other: it fails what was being done.
        """
        return isinstance(error, AssertionError) and type(self).__module__.startswith("gym_ckpt.")

    def owns(self, episode: EpisodeId) -> bool:
        """Whether this participant writes the episode's record, where several share their state."""
        return True

    def report(self) -> Report:
        """Ready when no episode works past its boundary, and none keeps a prepare from settling."""
        book = self.admission.book
        settling = {episode.key for episode in self.unsettled()} if book.closed else set[str]()
        return report({*book.blockers(), *settling}, book.counts() | self.counts(), self.restarts())

    def unsettled(self) -> Iterable[EpisodeId]:
        """Episodes that `settle` is at work for: a prepare that misses its deadline has somebody to name."""
        return ()

    def counts(self) -> dict[str, int]:
        """The kind's own counts, by name."""
        return {}

    def restarts(self) -> set[str]:
        """Capture keys of live episodes that cannot be captured here."""
        return set()

    @abstractmethod
    def live(self) -> Iterable[EpisodeId]:
        """Episodes that hold state here."""

    async def settle(self) -> None:
        """Help running work to a boundary once admission has closed; cancelled when it opens again.

        Prepare is ready when this has returned and nothing works. Raises a `ProtocolError` to fail the prepare.
        """
        return

    @abstractmethod
    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        """Records of the episodes in scope, as they stand at their boundaries. Runs while nothing works.

        Of all that are `live` and no `restarts`: what is left out is lost in a crash, and starts over.

        `stop`: the controller will not resume; `committed` says when what is held outside the process may be freed.
        """

    @abstractmethod
    async def check(self, records: Sequence[Record]) -> None:
        """Raise `InvalidCheckpointState` unless every record can be installed; installs nothing."""

    @abstractmethod
    async def install(self, records: Sequence[Record]) -> None:
        """Make each record the state of its episode, which is the attempt that will continue (N+1)."""

    def saved(self, records: Sequence[Record]) -> dict[str, int]:
        """Work that these checked records make unnecessary: `model_calls`, `tokens`; only what this kind knows."""
        return {}

    async def restore(self, scope: Sequence[EpisodeId], records: Sequence[Record]) -> None:
        """`install`, for kinds that keep something of episodes without a record too.

        `scope`: all that are restored, as the attempts in the checkpoint.
        """
        await self.install(records)

    async def committed(self, scope: frozenset[EpisodeId], stop: bool) -> None:
        """A checkpoint of this scope is durable here. `stop`: nobody will resume, and what the exported state holds
        outside the process may be freed."""

    @abstractmethod
    def free(self, episodes: Iterable[EpisodeId]) -> None:
        """Drop the state of these attempts and of earlier ones of the same rollouts; their work has left."""

    async def release(self, episodes: Sequence[EpisodeId]) -> None:
        """After `free`, of retired attempts: drop what is kept outside this process. May be repeated.

        Raises `OSError` or `Unavailable` to have the call repeated.
        """

    async def release_forgotten(self, rollout_ids: Sequence[str], retired: Sequence[EpisodeId]) -> None:
        """Before `forget`: drop what is kept per rollout outside this process. As `release`.

        `retired`: the highest retired attempt of those rollouts that have one.
        """

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Drop what is kept per rollout (INV-39), but for work that goes on; the control plane drops the marks."""
        gone = set(self.admission.book.forget(rollout_ids))
        self.free([episode for episode in self.live() if episode.rollout_id in gone])

    def _forgotten_late(self, rollout_id: str) -> None:
        self.free([episode for episode in self.live() if episode.rollout_id == rollout_id])

    def staged(self, records: Sequence[Record]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]] | None:
        """Staging keys that these records refer to, all and by capture key; None for kinds that stage nothing."""
        return None


def digests(records: Iterable[Record]) -> dict[str, str]:
    """SHA-256 of each record's state, by capture key. For traces."""
    return {record.episode.key: hashlib.sha256(_canonical(record.state)).hexdigest() for record in records}


def _canonical(state: Any) -> bytes:
    try:
        return json.dumps(state, sort_keys=True)
    except NotLossless as error:  # its export fails, for this reason
        return str(error).encode()


def up_to(episodes: Iterable[EpisodeId], held: Iterable[EpisodeId]) -> list[EpisodeId]:
    """Those of `held` that are attempts in `episodes` or earlier ones of the same rollouts, sorted (INV-31)."""
    highest: dict[str, int] = {}
    for episode in episodes:
        highest[episode.rollout_id] = max(episode.attempt, highest.get(episode.rollout_id, -1))
    return sorted(each for each in held if each.attempt <= highest.get(each.rollout_id, -1))
