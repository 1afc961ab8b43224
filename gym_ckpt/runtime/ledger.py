"""The capture ledger as a server uses it: the jobs of `storage.ledger`, run again while another process holds a lock.

Once begun, a row's write is not cut short by a cancellation: neither the job nor the wait for its lock (INV-20); both
end within LEDGER_LOCK_BUDGET_S. The books of restored attempts are kept here, so that a delete that fails is tried by
the next commit (INV-44).

It must not know HTTP, phases or leases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

import anyio

from gym_ckpt.core.lineage import LedgerRow, Poison
from gym_ckpt.core.pending import PendingAttempts
from gym_ckpt.errors import Unavailable
from gym_ckpt.limits import LEDGER_LOCK_BUDGET_S, LEDGER_LOCK_RETRY_FIRST_S, LEDGER_LOCK_RETRY_MAX_S, LEDGER_PIECE
from gym_ckpt.ports import Job, Ports
from gym_ckpt.storage import ledger
from gym_ckpt.storage.ledger import Appended, Busy, Discarded, Exported, Lineage, Listed, Start, Swept, Unneeded
from gym_ckpt.types import EpisodeId

T = TypeVar("T")
Marked = Callable[[EpisodeId], bool]
Mine = Callable[[EpisodeId], bool]
"""Which rollouts' files a server looks after, where several share a ledger."""


def _all(_: EpisodeId) -> bool:
    return True


class CaptureLedger:
    """One server's access to the shared ledger in `directory`. `marked`: attempts that this server has retired.

    Every method may raise `OSError`, and `Unavailable` when other processes held locks for too long.
    """

    def __init__(self, ports: Ports, directory: str, marked: Marked) -> None:
        self._ports = ports
        self._directory = directory
        self._marked = marked
        self.pending = PendingAttempts()
        self._begun: dict[str, int] = {}
        """By rollout: the attempt that this server knows to count as started."""

    async def open(self) -> None:
        """Make the directory and its locks; before anything else."""
        await self._ports.disk.run(ledger.open_ledger(self._directory))

    async def append(self, episode: EpisodeId, row: LedgerRow, keep: Job[None] | None = None) -> Appended:
        """Write a row, durably, after `keep`. Raises as `storage.ledger.append_row`: the caller poisons the call."""
        job = ledger.append_row(self._directory, episode, row, lambda: self._marked(episode), keep)
        return await self._unlocked(job, shield=True)

    async def poison(self, episode: EpisodeId, poison: Poison, *, afresh: bool = False) -> Appended:
        """Make the rollout unusable for training, durably. `afresh`: an earlier try has failed."""
        job = ledger.append_poison(self._directory, episode, poison, lambda: self._marked(episode), afresh=afresh)
        return await self._unlocked(job, shield=True)

    async def read(self, episode: EpisodeId) -> Lineage:
        """Rows and poison. Raises `InvalidCheckpointState` for damage."""
        return await self._ports.disk.run(ledger.read_lineage(self._directory, episode))

    async def start(self, episode: EpisodeId) -> Start:
        """Before a restored attempt's call can write or be held (INV-43). Free but for an attempt's first call here.

        A server that came up after the restore knows of none, and others may hold the attempt for pending still: any
        attempt but the first may be a restored one.
        """
        if episode.attempt == 0 or self._begun.get(episode.rollout_id) == episode.attempt:
            return Start.AGAIN
        made = await self._unlocked(ledger.start(self._directory, episode, lambda: self._marked(episode)))
        if made is not Start.RETIRED:
            self.pending.settled([episode])
            self._begun[episode.rollout_id] = episode.attempt
        return made

    async def discard_out_of_scope(self, scope: Collection[EpisodeId], mine: Mine = _all) -> Discarded:
        """At a commit: delete restored attempts out of scope that nobody has started (INV-42).

        Never waits for a lock, and never fails: what could not be deleted stays pending.
        """
        left_out = self.pending.out_of_scope(frozenset(scope))
        job = ledger.discard_unstarted(self._directory, [episode for episode in left_out if mine(episode)])
        done = await self._ports.disk.run(job)
        self.pending.settled([*done.deleted, *done.started])
        return done

    async def export(self, scope: Collection[EpisodeId]) -> list[Exported]:
        """Rows of the episodes in scope; `state()` of each goes into the checkpoint."""
        return await self._ports.disk.run(ledger.export(self._directory, scope))

    async def restore(self, scope: Iterable[EpisodeId], records: Sequence[Exported], mine: Mine = _all) -> None:
        """Clear, import under N+1, retire 0..N. `scope` and `records` name attempts N.

        `mine`: whose files this server is to touch; it may get the first call of any.
        """
        wanted = list(scope)
        restored = [episode.next() for episode in wanted]
        job = ledger.begin_restore(self._directory, [episode for episode in wanted if mine(episode)], records)
        work = await self._ports.disk.run(job)

        async def step() -> bool:
            await self._ports.disk.run(ledger.continue_restore(work))
            return not work.episodes

        await self._until(step)
        self.pending.restored(restored)
        self._gone(restored)

    async def retire(self, episodes: Iterable[EpisodeId]) -> None:
        """Fence and remove each attempt and all earlier ones, durably."""
        done = list(episodes)
        await self._all(done, lambda left: ledger.retire(self._directory, left))
        self.pending.drop(done)
        self._gone(done)

    async def forget(self, episodes: Iterable[EpisodeId]) -> None:
        """Remove all that there is of each attempt and all earlier ones, fences included."""
        done = list(episodes)
        await self._all(done, lambda left: ledger.forget(self._directory, left))
        self.pending.drop(done)
        self._gone(done)

    def drop(self, rollout_ids: Iterable[str]) -> None:
        """Forgotten, whoever looks after their files: nothing of these rollouts is kept in memory (INV-39)."""
        for rollout_id in rollout_ids:
            self._begun.pop(rollout_id, None)
            self.pending.forget([rollout_id])

    async def delete(self, episodes: Iterable[EpisodeId]) -> None:
        """Remove rows, poison and markers of exactly these attempts."""
        done = list(episodes)
        await self._all(done, lambda left: ledger.delete(self._directory, left))
        self.pending.settled(done)
        self._gone(done)

    def _gone(self, episodes: Iterable[EpisodeId]) -> None:
        """Their markers are, and those of earlier attempts (INV-39)."""
        for episode in episodes:
            if self._begun.get(episode.rollout_id, episode.attempt + 1) <= episode.attempt:
                del self._begun[episode.rollout_id]

    async def fenced(self) -> dict[str, int]:
        """The highest fenced attempt of each rollout that has one."""
        return await self._ports.disk.run(ledger.fenced(self._directory))

    async def manifest(
        self, episodes: Iterable[EpisodeId] | None = None, after: EpisodeId | None = None
    ) -> tuple[list[Listed], bool]:
        """What there is, of these capture keys or of all, after one; and whether there is more of it."""
        return await self._ports.disk.run(ledger.manifest(self._directory, episodes, after))

    async def unneeded(self, token_dir: str, keep: Collection[str]) -> Unneeded:
        """Staged calls that neither a row nor `keep` names. Raises as `storage.ledger.unneeded`."""
        return await self._ports.disk.run(ledger.unneeded(self._directory, token_dir, keep))

    async def sweep(self, token_dir: str, keys: Sequence[str]) -> Swept:
        """Remove those of these staged calls that nothing names still. Raises as `storage.ledger.sweep`."""
        return await self._ports.disk.run(ledger.sweep(self._directory, token_dir, keys))

    async def _all(self, episodes: list[EpisodeId], job: Callable[[list[EpisodeId]], Job[list[EpisodeId]]]) -> None:
        """Piece by piece: between two of them a deadline can cut it off."""
        for begin in range(0, len(episodes), LEDGER_PIECE):
            await self._all_of(episodes[begin : begin + LEDGER_PIECE], job)

    async def _all_of(self, left: list[EpisodeId], job: Callable[[list[EpisodeId]], Job[list[EpisodeId]]]) -> None:
        async def step() -> bool:
            nonlocal left
            left = await self._ports.disk.run(job(left))
            return not left

        await self._until(step)

    async def _unlocked(self, job: Job[T | Busy], *, shield: bool = False) -> T:
        made: list[T] = []

        async def step() -> bool:
            result = await self._ports.disk.run(job)
            if isinstance(result, Busy):
                return False
            made.append(result)
            return True

        with anyio.CancelScope(shield=shield):
            await self._until(step)
        return made[0]

    async def _until(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Repeat `step` until it is done. Raises `Unavailable` when its locks were held for too long."""
        pause = LEDGER_LOCK_RETRY_FIRST_S
        give_up = anyio.current_time() + LEDGER_LOCK_BUDGET_S
        while not await step():
            if anyio.current_time() >= give_up:
                raise Unavailable(f"{self._directory}: locks were held by other processes for {LEDGER_LOCK_BUDGET_S} s")
            await anyio.sleep(self._ports.entropy.uniform(pause / 2, pause))
            pause = min(pause * 2, LEDGER_LOCK_RETRY_MAX_S)
