"""What the tasks of one collection run share, and the rules between them.

Two locks, always taken in this order:

  - `checkpoint_lock`: one checkpoint, retire or forget at a time (INV-93);
  - `dispatch_gate`: rows are being sent, or a checkpoint is open (INV-90).

It must not know what the tasks do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio

from gym_ckpt.controller.environment import Loss
from gym_ckpt.controller.interrupts import Interrupts, Wake
from gym_ckpt.controller.journal import DispatchLog
from gym_ckpt.controller.progress import Progress
from gym_ckpt.controller.rows import RowFiles
from gym_ckpt.core.collection import Collection
from gym_ckpt.core.forgotten import Ended
from gym_ckpt.limits import DISCOVERY_BUDGET_S, REASON_SAID_CHARS
from gym_ckpt.ports import Ports
from gym_ckpt.settings import CollectSettings
from gym_ckpt.types import EpisodeId
from gym_ckpt.words import counted


class Committed(Protocol):
    """What every participant exported, once the replies were checked against each other and the scope."""

    @property
    def episodes(self) -> Iterable[EpisodeId]:
        """Those that an environment owns, and so will be continued."""
        ...


class OpenCheckpoint(Protocol):
    """All participants are prepared. `restarts`: cannot be captured; `live`: held by some participant."""

    @property
    def restarts(self) -> frozenset[EpisodeId]: ...

    @property
    def live(self) -> frozenset[EpisodeId]: ...

    async def commit(self, checkpoint_dir: str, scope: Iterable[EpisodeId], *, stop: bool = False) -> Committed: ...

    def leave_closed(self) -> None: ...


class Coordination(Protocol):
    """What collection asks of `gym_ckpt.controller.coordination`. Failures are `GymCkptError`s."""

    @property
    def saved(self) -> Mapping[str, int]: ...

    def hurry(self, rest_s: float) -> None: ...

    def cut_off(self) -> str: ...

    async def discover(
        self, say: Callable[[str], object] | None = None, budget_s: float = DISCOVERY_BUDGET_S
    ) -> object: ...

    async def anybody(self, budget_s: float) -> bool: ...

    def prepared(
        self, checkpoint_id: str, budget_s: float, abandoned: Callable[[], bool], prepare_s: float | None
    ) -> AbstractAsyncContextManager[OpenCheckpoint]: ...

    async def restore(
        self, restore_id: str, checkpoint_dir: str, scope: Iterable[EpisodeId], budget_s: float
    ) -> frozenset[EpisodeId]: ...

    async def resume(self, checkpoint_id: str) -> None: ...

    async def retire(self, episodes: Iterable[EpisodeId]) -> None: ...

    async def forget(self, rollout_ids: Iterable[str], *, ended: Ended | None = None) -> None: ...


class Shared:
    """One run. `run`: its name, the same over restarts; `run_id`: of this process's run. `fatal`: why the run cannot go
    on, once that is known."""

    def __init__(
        self,
        settings: CollectSettings,
        ports: Ports,
        coordination: Coordination | None,
        *,
        run: str,
        run_id: str,
        collection: Collection,
        tasks: Mapping[str, bytes],
        rows: RowFiles,
        journal: DispatchLog | None,
        interrupts: Interrupts,
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.ports = ports
        self.coordination = coordination
        self.run = run
        self.run_id = run_id
        self.collection = collection
        self.tasks = tasks
        self.rows = rows
        self.journal = journal
        self.interrupts = interrupts
        self.progress = progress
        self.checkpoint_lock = anyio.Lock()
        self.dispatch_gate = anyio.Lock()
        self.dispatch_wake = Wake()
        self.housekeeping_wake = Wake()
        self.ended = anyio.Event()
        self.fatal: str | None = None
        self.left_closed = False
        """The run stops and its servers were left prepared: nothing but the end of the run may follow (INV-92)."""
        self.over = False
        """Every row had ended before this run began: no server was waited for, and none is now."""
        self.finished_before = 0
        """Rows that had ended, in the output or as a final failure, when this run began."""
        self.restored = 0
        """Rows that this run took from a checkpoint."""
        self.saved: Mapping[str, int] = {}
        """Work of theirs that is not repeated as long as their attempts are not lost."""
        self.lost: set[str] = set()
        """Rows of which this run has lost an attempt."""
        self.begun_again: set[str] = set()
        """Those of them whose next attempt has been sent."""
        self.restarted = 0
        """Rows that an earlier run had sent, and this one has, from input."""
        self.begun_before: set[str] = set()
        """Such rows that are still to be sent."""
        self.losses_in_a_row = 0
        self.unsaid_losses: list[tuple[EpisodeId, str, Loss]] = []
        """Attempts that no message has told of yet: lost, why, and how."""
        self.awaited: set[EpisodeId] = set()
        """Episodes whose replies a checkpoint waits for."""
        self.awaited_wake = Wake()

    def changed(self) -> None:
        """The collection changed: wake whoever may have something to do."""
        if self.collection.done:
            self.end()
        self.dispatch_wake.set()
        self.housekeeping_wake.set()
        self.progress.update(self.collection.counts(), self.collection.last_rested)

    def fail(self, reason: str) -> None:
        """The run cannot go on."""
        self.fatal = self.fatal or reason
        self.end()

    def end(self) -> None:
        """Nothing more is sent, and no other checkpoint begins."""
        self.interrupts.ending()
        self.ended.set()

    def sent(self, episode: EpisodeId) -> None:
        """The episode's `/run` is about to be sent."""
        if episode.rollout_id in self.lost:
            self.begun_again.add(episode.rollout_id)
        if episode.rollout_id in self.begun_before:
            self.begun_before.discard(episode.rollout_id)
            self.restarted += 1

    def lose(self, episode: EpisodeId) -> None:
        """The episode got no reply, and may have run somewhere."""
        self.lost.add(episode.rollout_id)
        self.begun_again.discard(episode.rollout_id)

    def failed(self, episode: EpisodeId, why: str, *, final: bool) -> None:
        """The attempt failed; `final`: and with it its row."""
        self.rows.failed(episode, why, final=final)
        then = "given up" if final else "it starts again"
        self.progress.message(f"{episode} failed, {then}: {why[:REASON_SAID_CHARS]}", event="collector.failure")

    def say_losses(self) -> None:
        """One line about all attempts that got no reply of their own since the last."""
        texts = []
        for how in Loss:
            losses = [(episode, why) for episode, why, kind in self.unsaid_losses if kind is how]
            if losses:
                episode, why = losses[0]
                texts.append(f"{how} {counted(len(losses), 'row')}, such as {episode} ({why[:REASON_SAID_CHARS]})")
        self.unsaid_losses.clear()
        if texts:
            wait = "; no other row is sent before that" if self.collection.unreached else ""
            then = f"retired everywhere, then started again{wait}"
            self.progress.message(f"{'; '.join(texts)}: {then}", event="collector.lost")

    def settled(self, episode: EpisodeId) -> None:
        """The episode's `/run` is over, one way or another."""
        if episode in self.awaited:
            self.awaited.discard(episode)
            self.awaited_wake.set()
