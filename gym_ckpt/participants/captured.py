"""The books of delivered calls where tokens are captured: rows in the ledger that all model servers of a gym share.

An answer's tokens are staged before it asks to begin; its row is written between that leave and the first chunk, not
cut short by a cancellation, and the call stays in the gate's books until then (INV-16, 20). What cannot be written
poisons the call and is not sent; what cannot be staged is sent and poisons the rollout (INV-19).

Rows are read from the ledger, whoever wrote them. So that each is in a checkpoint once, rollouts are shared out among
the gym's model servers by their ids: of a rollout one server exports, restores, retires and forgets the files, while
any may append. A restore reads the records of all of them, so that their number may change in between.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint

from gym_ckpt.core.admission import stale
from gym_ckpt.core.lineage import Poison, Reason, RowConflict, row_of
from gym_ckpt.core.spread import spread
from gym_ckpt.errors import CallIdTaken, InvalidCheckpointState, NotLossless, Unavailable
from gym_ckpt.limits import POISON_DETAIL_MAX_CHARS
from gym_ckpt.participants.calls import CallBook, Entry, Row
from gym_ckpt.participants.capture import Asking, NotCaptured, capture, read_tokens
from gym_ckpt.ports import Ports, TokenStore
from gym_ckpt.runtime.ledger import CaptureLedger, Marked
from gym_ckpt.runtime.participant import Record, up_to
from gym_ckpt.storage.ledger import Appended, Exported, Start, Swept, Unneeded
from gym_ckpt.storage.tokens import FileTokenStore
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire.digests import InvalidStaging

T = TypeVar("T")


class LedgerBook(CallBook):
    """One server's side of the shared ledger.

    Args:
        marked: whether this server has retired an attempt.
        peers: names of all model servers of the gym, the same and in the same order on each.
        checkpointed: whether anybody can take a checkpoint; otherwise nobody ever forgets a rollout, asks for its calls
            or restores one, and nothing is kept of it in memory (INV-39).
    """

    captures = True
    shared = True

    def __init__(
        self,
        instance: str,
        ports: Ports,
        ledger_dir: str,
        token_dir: str,
        peers: Sequence[str],
        marked: Marked,
        *,
        checkpointed: bool = True,
    ) -> None:
        assert instance in peers, f"{instance} is one of {peers}"
        self._instance = instance
        self._ports = ports
        self._peers = tuple(peers)
        self.ledger = CaptureLedger(ports, ledger_dir, marked)
        self._checkpointed = checkpointed
        self._store = FileTokenStore(ports.disk, ports.entropy, token_dir, instance)
        self._token_dir = token_dir
        self.tokens: TokenStore = self._store
        self._started: dict[EpisodeId, dict[str, None]] = {}
        """Calls whose answer has started; of restored attempts also those before, which nobody asks for again."""
        self._owed: dict[EpisodeId, list[Poison]] = {}
        """Poison that could not be written either."""
        self._fenced: dict[str, int] = {}
        """By rollout: the highest attempt that an earlier life of this server has fenced."""

    async def open(self) -> None:
        await self.ledger.open()
        await self._store.open()
        self._fenced = {name: at for name, at in (await self.ledger.fenced()).items() if self._owns(name)}

    def close(self) -> None:
        self._store.close()

    async def unneeded(self, keep: Collection[str]) -> Unneeded:
        """Staged calls that neither a row nor `keep` names. Raises as `storage.ledger.unneeded`."""
        return await self.ledger.unneeded(self._token_dir, keep)

    async def sweep(self, keys: Sequence[str]) -> Swept:
        """Remove those of these staged calls that nothing names still. Raises as `storage.ledger.sweep`."""
        return await self.ledger.sweep(self._token_dir, keys)

    def owns(self, episode: EpisodeId) -> bool:
        return self._owns(episode.rollout_id)

    def _owns(self, rollout_id: str) -> bool:
        return self._peers[spread(f"ledger {rollout_id}", len(self._peers))] == self._instance

    def live(self) -> Iterable[EpisodeId]:
        return self._started

    def delivered(self) -> int:
        return sum(len(calls) for calls in self._started.values())

    def has(self, episode: EpisodeId, call_id: str) -> bool:
        return call_id in self._started.get(episode, ())

    # One call.

    async def admit(self, episode: EpisodeId) -> None:
        if self._checkpointed and await self.ledger.start(episode) is Start.RETIRED:
            raise stale(episode)

    async def stage(self, episode: EpisodeId, row: Row, at: float, asking: Asking, answer: bytes, how: str) -> Entry:
        call_id = row.model_call_id
        try:
            tokens = await in_turns(read_tokens(answer, streamed=how.startswith("text/event-stream")))
            lineage = await self.ledger.read(episode)
            if any(each.model_call_id == call_id for each in lineage.rows):
                raise self._copy(episode, call_id)
            found = capture(episode, call_id, at, asking, tokens, lineage.rows)
            with anyio.CancelScope(shield=True):  # who stages it knows of it
                staged = await self.tokens.stage(found.call)
        except (NotCaptured, InvalidStaging, NotLossless, InvalidCheckpointState, Unavailable, OSError) as error:
            self._ports.tracer.emit("gate.not_captured", episode=episode.key, call=call_id, why=str(error))
            return Entry(episode, row, poison=(_poison(call_id, Reason.CAPTURE_FAILED, error),))
        why = found.link.why
        poison = () if why is None else (Poison(call_id, why),)
        return Entry(episode, row, row_of(found.call, staged.key, staged.key, found.context), poison, staged)

    async def unstage(self, entry: Entry) -> None:
        if entry.staged is not None:
            try:
                await self.tokens.drop(entry.staged)
            except (OSError, Unavailable) as error:  # this server's next life removes it
                self._ports.tracer.emit("gate.not_dropped", episode=entry.episode.key, why=str(error))

    async def book(self, entry: Entry) -> None:
        if self.has(entry.episode, entry.call_id):
            raise self._copy(entry.episode, entry.call_id)
        if self._checkpointed:
            self._started.setdefault(entry.episode, {})[entry.call_id] = None
        self._ports.tracer.emit("gate.started", episode=entry.episode.key, call=entry.call_id)
        with anyio.CancelScope(shield=True):
            try:
                appended = await self._write(entry)
            except RowConflict as error:
                self._withdrawn(entry, str(error), failed=False)
                raise CallIdTaken(f"{error}: make it under another id") from None
            except (OSError, Unavailable, NotLossless, InvalidCheckpointState) as error:
                self._withdrawn(entry, str(error))
                self._owed.setdefault(entry.episode, []).append(_poison(entry.call_id, Reason.ROW_WRITE_FAILED, error))
                await self._try_to_pay(entry.episode)
                raise Unavailable(f"the row of call {entry.call_id} could not be written: {error}") from None
        if appended in (Appended.FENCED, Appended.MARKED):
            self._withdrawn(entry, appended, failed=False)
            raise stale(entry.episode)
        if appended is Appended.POISONED:
            self._withdrawn(entry, appended)
            raise CallIdTaken(f"call {entry.call_id} was refused for good: make it under another id")
        self._ports.tracer.emit("gate.row", episode=entry.episode.key, call=entry.call_id)

    def _copy(self, episode: EpisodeId, call_id: str) -> CallIdTaken:
        """A call that was delivered comes again. Said before anything of it is tried: what fails of it is no reason to
        poison a row that stands, and that the conversation goes on from."""
        self._ports.tracer.emit("gate.refused", episode=episode.key, why=f"call {call_id} was delivered already")
        return CallIdTaken(f"call {call_id} of {episode.key} has a row already: make it under another id")

    async def _write(self, entry: Entry) -> Appended:
        """Poison first: a row that stands without it would pass for sound."""
        appended = Appended.WRITTEN
        await self._pay(entry.episode)
        for poison in entry.poison:
            appended = await self.ledger.poison(entry.episode, poison)
        if entry.captured is None:
            return appended
        assert entry.staged is not None, "a row names staged tokens"
        appended = await self.ledger.append(entry.episode, entry.captured, self.tokens.keep(entry.staged))
        for other in list(self._owed)[:1]:
            await self._try_to_pay(other)  # the disk works again, and that rollout may never call again
        return appended

    def _withdrawn(self, entry: Entry, why: str, *, failed: bool = True) -> None:
        """The answer is not sent after all; `failed`: because its row could not be written."""
        calls = self._started.get(entry.episode, {})
        calls.pop(entry.call_id, None)
        if not calls:
            self._started.pop(entry.episode, None)
        self._ports.tracer.emit("gate.withdrawn", episode=entry.episode.key, call=entry.call_id, why=why, failed=failed)

    # Poison that is owed.

    async def _pay(self, episode: EpisodeId) -> None:
        """Several may pay at once, and a release may drop all meanwhile: only what is seen after a wait counts."""
        while owed := self._owed.get(episode):
            poison = owed[0]
            await self.ledger.poison(episode, poison, afresh=True)
            if owed and owed[0] is poison:
                del owed[0]
            if not owed and self._owed.get(episode) is owed:
                del self._owed[episode]

    async def _try_to_pay(self, episode: EpisodeId) -> None:
        try:
            await self._pay(episode)
        except (OSError, Unavailable) as error:
            self._ports.tracer.emit("gate.poison_failed", episode=episode.key, why=str(error))

    async def settle(self) -> None:
        try:
            for episode in sorted(self._owed):
                await self._pay(episode)
        except OSError as error:
            raise Unavailable(f"the poison of a call whose row failed cannot be written: {error}") from None

    def unsettled(self) -> Iterable[EpisodeId]:
        return self._owed

    # Checkpoints.

    async def export(self, scope: frozenset[EpisodeId]) -> Sequence[Record]:
        if self._owed:
            # Another server exports what this one should have hidden.
            raise Unavailable(f"the poison of a failed row of {min(self._owed)} is not written yet")
        found = await self.ledger.export([episode for episode in scope if self.owns(episode)])
        return [Record(each.episode, each.state()) for each in found]

    async def committed(self, scope: frozenset[EpisodeId]) -> None:
        try:
            done = await self.ledger.discard_out_of_scope(scope, self.owns)
        except OSError as error:
            self._ports.tracer.emit("ledger.discard_failed", why=str(error))
            return
        if done.deleted or done.started or done.failed or done.busy:
            self._ports.tracer.emit(
                "ledger.discarded",
                deleted=[each.key for each in done.deleted],
                started=[each.key for each in done.started],
                failed=[each.key for each in (*done.failed, *done.busy)],
            )

    def staging_keys(self, record: Record) -> tuple[str, ...]:
        return Exported.parse(record.episode, record.state).staging_keys

    def check(self, record: Record) -> None:
        Exported.parse(record.episode, record.state)

    async def restore(self, scope: Sequence[EpisodeId], records: Sequence[Record]) -> None:
        before = {episode.next(): episode for episode in scope}
        exported = [Exported.parse(before[record.episode], record.state) for record in records]
        await self.ledger.restore(scope, exported, self.owns)
        for episode in scope:
            self._fenced.pop(episode.rollout_id, None)  # the fences that stand now are those of the marks
        for each in exported:
            self._started[each.episode.next()] = dict.fromkeys(row.model_call_id for row in each.rows)

    # The end of an attempt.

    def free(self, episodes: Iterable[EpisodeId]) -> None:
        for episode in up_to(episodes, self._started):
            del self._started[episode]

    async def release(self, episodes: Sequence[EpisodeId]) -> None:
        for owed in up_to(episodes, self._owed):
            del self._owed[owed]
        await self.ledger.retire([episode for episode in episodes if self.owns(episode)])
        self.ledger.pending.drop(episodes)

    async def forget(self, rollout_ids: Sequence[str], retired: Sequence[EpisodeId]) -> None:
        gone = set(rollout_ids)
        highest = {episode.rollout_id: episode.attempt for episode in retired if self.owns(episode)}
        for rollout_id in gone & self._fenced.keys():
            highest[rollout_id] = max(self._fenced[rollout_id], highest.get(rollout_id, -1))
        await self.ledger.forget([EpisodeId(name, attempt) for name, attempt in sorted(highest.items())])
        for rollout_id in gone:
            self._fenced.pop(rollout_id, None)
        for episode in [episode for episode in self._owed if episode.rollout_id in gone]:
            await self._pay(episode)
        self.ledger.drop(gone)

    def drop(self, rollout_id: str) -> None:
        self.ledger.drop([rollout_id])
        for episode in [each for each in self._owed if each.rollout_id == rollout_id]:
            del self._owed[episode]


async def in_turns(steps: Generator[None, None, T]) -> T:
    """What `steps` returns; other calls have their turns between two of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        await checkpoint()


def _poison(call_id: str, reason: Reason, error: Any) -> Poison:
    """Whatever is quoted in the error, its text can be written as a line."""
    text = str(error)[:POISON_DETAIL_MAX_CHARS].encode(errors="backslashreplace").decode()
    return Poison(call_id, reason, text[:POISON_DETAIL_MAX_CHARS])
