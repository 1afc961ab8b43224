"""The books of a policy-model server's delivered calls: in memory, where tokens are not captured.

A call is booked when its answer starts, which is once the gate has let it begin and before its first chunk is sent
(INV-16). Undelivered calls are not booked, so they are in no checkpoint (INV-17).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gym_ckpt.core.lineage import LedgerRow, Poison
from gym_ckpt.errors import InvalidCheckpointState
from gym_ckpt.participants.capture import Asking
from gym_ckpt.ports import Ports, Staged
from gym_ckpt.runtime.participant import Record, up_to
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.messages import plain


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call whose answer started; never its tokens (INV-52)."""

    model_call_id: str


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Entry:
    """A call that is about to be delivered.

    `captured`, `poison`: what the ledger is to say of it. `staged`: its tokens, which no row names yet.
    """

    episode: EpisodeId
    row: Row
    captured: LedgerRow | None = None
    poison: tuple[Poison, ...] = ()
    staged: Staged | None = None

    @property
    def call_id(self) -> str:
        return self.row.model_call_id


class CallBook(ABC):
    """Which calls were delivered, and what a checkpoint says of them."""

    captures = False
    """Whether answers are staged, whole, before they are booked."""
    shared = False
    """Whether the servers of a gym keep one book, of which each writes its share into checkpoints."""

    async def open(self) -> None:
        """Before the server serves. Raises `OSError`, `Unavailable`."""

    def close(self) -> None:
        """The server has ended."""

    def owns(self, episode: EpisodeId) -> bool:
        """Whether this server writes the episode's records into checkpoints."""
        return True

    @abstractmethod
    def live(self) -> Iterable[EpisodeId]:
        """Episodes with calls that this server has delivered or restored."""

    @abstractmethod
    def delivered(self) -> int:
        """How many calls that are."""

    @abstractmethod
    def has(self, episode: EpisodeId, call_id: str) -> bool:
        """Whether the call's answer has started here."""

    async def admit(self, episode: EpisodeId) -> None:
        """A call is admitted: before it can be booked or held. Raises `StaleAttempt`, `Unavailable`, `OSError`."""

    async def stage(self, episode: EpisodeId, row: Row, at: float, asking: Asking, answer: bytes, how: str) -> Entry:
        """Keep the tokens of a whole answer. `at`: of its admission, seconds since the epoch; `how`: content type."""
        return Entry(episode, row)

    async def unstage(self, entry: Entry) -> None:
        """The call leaves without having been booked: its tokens are nobody's."""

    @abstractmethod
    async def book(self, entry: Entry) -> None:
        """The call's answer starts.

        Raises `StaleAttempt`, `CallIdTaken` or `Unavailable` when it must not be sent after all.
        """

    async def settle(self) -> None:
        """Admission has closed. Raises `Unavailable` to fail the checkpoint."""

    def unsettled(self) -> Iterable[EpisodeId]:
        """Episodes that `settle` has still to do something for."""
        return ()

    @abstractmethod
    async def export(self, scope: frozenset[EpisodeId]) -> Sequence[Record]: ...

    async def committed(self, scope: frozenset[EpisodeId]) -> None:
        """A checkpoint of this scope is durable here."""

    def staging_keys(self, record: Record) -> tuple[str, ...]:
        """Every staged key that a record refers to (INV-46)."""
        return ()

    @abstractmethod
    def check(self, record: Record) -> None:
        """Raises `InvalidCheckpointState` unless the record can be restored."""

    @abstractmethod
    async def restore(self, scope: Sequence[EpisodeId], records: Sequence[Record]) -> None:
        """Book what a checkpoint says. `scope`: the attempts in the checkpoint; `records`: of the attempts after them.

        Raises `OSError`, `Unavailable`: something may be booked; `free` and `release` undo it.
        """

    @abstractmethod
    def free(self, episodes: Iterable[EpisodeId]) -> None:
        """Drop what is kept in memory of these attempts and earlier ones."""

    async def release(self, episodes: Sequence[EpisodeId]) -> None:
        """... and what is kept elsewhere; they are retired. May be repeated. Raises `OSError`, `Unavailable`."""

    def drop(self, rollout_id: str) -> None:
        """The last work of a forgotten rollout has left: nothing of it is kept in memory."""

    async def forget(self, rollout_ids: Sequence[str], retired: Sequence[EpisodeId]) -> None:
        """Drop what is kept elsewhere beside the calls themselves. `retired`: the highest marked attempt of those that
        have one. May be repeated. Raises `OSError`, `Unavailable`."""


class MemoryBook(CallBook):
    """One server's calls in its memory; records hold call ids."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._rows: dict[EpisodeId, list[Row]] = {}

    def live(self) -> Iterable[EpisodeId]:
        return self._rows

    def delivered(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def has(self, episode: EpisodeId, call_id: str) -> bool:
        return any(row.model_call_id == call_id for row in self._rows.get(episode, ()))

    async def book(self, entry: Entry) -> None:
        if not self.has(entry.episode, entry.call_id):  # a copy has the same row, which stands
            self._rows.setdefault(entry.episode, []).append(entry.row)
        self._ports.tracer.emit("gate.started", episode=entry.episode.key, call=entry.call_id)

    async def export(self, scope: frozenset[EpisodeId]) -> Sequence[Record]:
        held = [(episode, self._rows[episode]) for episode in sorted(scope) if episode in self._rows]
        return [Record(episode, plain(_Rows(rows))) for episode, rows in held]

    def check(self, record: Record) -> None:
        _rows_in(record)

    async def restore(self, scope: Sequence[EpisodeId], records: Sequence[Record]) -> None:
        for record in records:
            self._rows[record.episode] = _rows_in(record)

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self._rows):
            del self._rows[episode]


def _rows_in(record: Record) -> list[Row]:
    state: Any = record.state
    try:
        return msgspec.convert(state, _Rows).rows
    except msgspec.ValidationError as error:
        raise InvalidCheckpointState(f"model rows of {record.episode.key}: {error}") from None
