"""One checkpoint, in the order of `collection.md`.

Prepare; wait for replies on the wire; commit the rows without a reply; make output rows durable; write the collection,
then the pointer; prune; resume unless stopping (INV-91, INV-92). Whatever fails before the pointer publishes nothing
and resumes, and the previous checkpoint stays in force (INV-51). A pointer of which the disk does not say whether it
was written is looked at; then nothing is pruned, since a crash may still bring the old one back.

The caller holds both locks and has closed the collection. It must not know what asked for the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio

from gym_ckpt.controller.published import collection_of, participants_in
from gym_ckpt.controller.shared import Coordination, OpenCheckpoint, Shared
from gym_ckpt.errors import DirectoryGone, GymCkptError, InvalidRolloutId, NotReady
from gym_ckpt.limits import COLLECT_RETRY_FIRST_S, REPLY_ON_THE_WIRE_S, TIDY_AT_END_S
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import make_dirs, reason
from gym_ckpt.storage.pruning import prune
from gym_ckpt.storage.publication import latest, publish, sync_pointer
from gym_ckpt.types import EpisodeId, keys
from gym_ckpt.words import counted


@dataclass(frozen=True, slots=True)
class Taken:
    """A published checkpoint. `restarted`: in flight, but not captured, so that a crash starts them from input."""

    checkpoint_id: str
    continued: tuple[EpisodeId, ...]
    restarted: tuple[EpisodeId, ...]


@dataclass(slots=True)
class _Attempt:
    """One try. `published`: the checkpoint, once it is."""

    checkpoint_id: str
    directory: str
    began: float
    prepared_s: float = 0.0
    committed_s: float = 0.0
    published: list[Taken] = field(default_factory=list)


class Missed(Exception):
    """No checkpoint, and why. `blockers`: episodes that kept a participant from being ready."""

    def __init__(self, detail: str, blockers: Iterable[EpisodeId] = ()) -> None:
        super().__init__(detail)
        self.blockers = tuple(blockers)


class Taking:
    """How this run takes a checkpoint. `run`: fingerprint of input and output. `previous`: the checkpoint in force;
    `taken`: those published by this run, in order."""

    def __init__(
        self, shared: Shared, coordination: Coordination, run_dir: str, run: str, previous: str | None
    ) -> None:
        self._shared = shared
        self._coordination = coordination
        self._run_dir = run_dir
        self._run = run
        self._begun = 0
        self._failed: set[str] = set()
        """Ids whose publication failed: theirs may look like checkpoints whose pointer was lost."""
        self._unpruned: set[str] = set()
        """Why something could not be pruned, as far as it was said."""
        self.taken: list[Taken] = []
        self.previous = previous
        self.gone = False
        """The directory was removed, and every checkpoint with it."""

    async def take(self, budget_s: float, prepare_s: float) -> Taken:
        """Take one, in `budget_s` seconds, of which the prepare may use `prepare_s`.

        Raises:
            Missed: nothing was published, and the servers were resumed.
        """
        self._begun += 1
        checkpoint_id = f"{self._shared.run_id}-{self._begun}"
        attempt = _Attempt(checkpoint_id, layout.checkpoint_dir(self._run_dir, checkpoint_id), anyio.current_time())
        try:
            with anyio.move_on_after(budget_s):
                await self._opened(attempt, attempt.began + budget_s, prepare_s)
        except NotReady as error:
            raise Missed(str(error), _episodes(error.blockers)) from error
        except DirectoryGone as error:
            if layout.within(self._run_dir, error.directory):
                self.previous, self.gone = None, True
            raise Missed(str(error)) from error
        except (GymCkptError, OSError) as error:
            text = reason(error) if isinstance(error, OSError) else str(error)
            if not attempt.published:
                raise Missed(text) from error
            self._shared.progress.message(f"checkpoint {checkpoint_id} is published, but: {text}")
        if not attempt.published:
            limit_s = self._shared.settings.checkpoint_timeout_s
            raise Missed(f"it took longer than checkpoint_timeout_s, {limit_s:g} s, allows{self.no_answer()}")
        return attempt.published[0]

    def no_answer(self) -> str:
        """The end of a sentence about something that took too long: whose answer was waited for, if anybody's."""
        silent = self._coordination.cut_off()
        return f": no answer from {silent}" if silent else ""

    async def _opened(self, attempt: _Attempt, deadline: float, prepare_s: float) -> None:
        ports = self._shared.ports
        await ports.probe("collector.before_checkpoint")
        await ports.disk.run(lambda fs: make_dirs(fs, attempt.directory, self._run_dir))
        interrupts = self._shared.interrupts
        async with self._coordination.prepared(
            attempt.checkpoint_id,
            deadline - anyio.current_time(),
            abandoned=lambda: interrupts.cut_short,  # stop at once, nobody is left to resume for
            prepare_s=prepare_s,
        ) as prepared:
            attempt.prepared_s = anyio.current_time() - attempt.began
            await self._replies_on_the_wire(prepared, deadline)
            if interrupts.stopping and not self._shared.collection.unfinished_started:
                # Left closed, the servers could not be told to forget the rows that have just ended (INV-5).
                raise Missed("the last row in flight ended meanwhile")
            await self._commit(prepared, attempt)
            self._stay_closed_if_stopping(prepared)

    def _stay_closed_if_stopping(self, prepared: OpenCheckpoint) -> None:
        """A stop does not resume (INV-92)."""
        if self._shared.interrupts.stopping:
            prepared.leave_closed()
            self._shared.left_closed = True

    async def _replies_on_the_wire(self, prepared: OpenCheckpoint, deadline: float) -> None:
        """Wait for rows that no participant holds: they ended, and their replies are under way.

        Or their `/run` is, and has reached nobody yet; so the wait is short, and such a row stays in scope.
        """
        shared = self._shared
        held = prepared.live | prepared.restarts
        shared.awaited = {episode for episode in shared.collection.in_flight() if episode not in held}
        with anyio.move_on_after(min(REPLY_ON_THE_WIRE_S, (deadline - anyio.current_time()) / 4)):
            while shared.awaited:
                await shared.awaited_wake.wait()
        shared.awaited = set()

    async def _commit(self, prepared: OpenCheckpoint, attempt: _Attempt) -> None:
        shared, ports = self._shared, self._shared.ports
        scope = shared.collection.scope(prepared.restarts)
        in_flight = shared.collection.in_flight()
        ports.tracer.emit("collector.scope", scope=scope, restarts=prepared.restarts, stop=shared.interrupts.stopping)
        await ports.probe("collector.before_commit")
        asked = anyio.current_time()
        committed = await prepared.commit(attempt.directory, scope, stop=shared.interrupts.stopping)
        attempt.committed_s = anyio.current_time() - asked
        await ports.probe("collector.committed")
        continued = tuple(sorted(committed.episodes))
        stray = set(continued).difference(scope)
        if stray:
            raise Missed(f"participants exported {keys(stray)[0]}, which is not in scope")
        await shared.rows.sync()
        taken = Taken(attempt.checkpoint_id, continued, tuple(sorted({*in_flight, *scope}.difference(continued))))
        collection = collection_of(
            run_id=shared.run_id,
            run=self._run,
            created_at=ports.clock.wall(),
            continued=taken.continued,
            restarted=taken.restarted,
            participants=await ports.disk.run(participants_in(attempt.directory)),
        )
        await ports.probe("collector.before_publish")
        with anyio.CancelScope(shield=True):  # short, and never half told: whoever cancels learns of it
            certain = await self._publish(attempt.checkpoint_id, collection)
        self._published(taken, attempt, certain)
        self._stay_closed_if_stopping(prepared)
        await ports.probe("collector.published")
        if certain:
            await self._prune()

    def _published(self, taken: Taken, attempt: _Attempt, certain: bool) -> None:
        attempt.published.append(taken)
        self.taken.append(taken)
        self.previous = taken.checkpoint_id
        self._shared.ports.tracer.emit(
            "collector.published",
            checkpoint_id=taken.checkpoint_id,
            certain=certain,
            continued=keys(taken.continued),
            restarted=keys(taken.restarted),
            prepare_s=round(attempt.prepared_s, 6),
            commit_s=round(attempt.committed_s, 6),
        )
        over = f", {len(taken.restarted)} in flight that a crash would start over" if taken.restarted else ""
        times = f"prepared in {attempt.prepared_s:.2f} s, committed in {attempt.committed_s:.2f} s"
        self._shared.progress.message(
            f"checkpoint {taken.checkpoint_id} published, {counted(len(taken.continued), 'row')} in it{over} ({times})",
            event="collector.published",
        )

    async def _publish(self, checkpoint_id: str, collection: dict[str, Any]) -> bool:
        """Publish; True when that is durable for certain, False when only the pointer's present contents say so."""
        ports = self._shared.ports
        try:
            token = ports.entropy.token()
            await ports.disk.run(publish(self._run_dir, checkpoint_id, collection, token, self._failed))
        except OSError:
            if await ports.disk.run(latest(self._run_dir)) != checkpoint_id:
                self._failed.add(checkpoint_id)
                raise
            return False
        return True

    async def tidy(self) -> None:
        """At the end of a run: remove what failed checkpoints left, as far as that goes in `TIDY_AT_END_S` (INV-5), or
        less at a stop.

        The pointer in force is made durable first: an older one that came back would name what is gone (INV-48).
        """
        with self._shared.interrupts.bookkeeping(TIDY_AT_END_S):
            while True:
                try:
                    await self._shared.ports.disk.run(sync_pointer(self._run_dir))
                    if await self._prune():
                        return
                except OSError as error:
                    self._say_unpruned(f"leftovers of checkpoints could not be removed ({reason(error)})")
                await anyio.sleep(COLLECT_RETRY_FIRST_S)

    async def _prune(self) -> bool:
        """True when everything that may go is gone, or no other try can do better."""
        shared = self._shared
        try:
            keep = shared.settings.keep_checkpoints
            pruned = await shared.ports.disk.run(prune(self._run_dir, keep, failed=self._failed))
        except OSError as error:
            self._say_unpruned(f"older checkpoints could not be pruned ({reason(error)})")
            return False
        self._failed.difference_update(pruned.removed)
        for failed in pruned.failed:
            self._say_unpruned(f"could not be pruned: {failed}")
        return not (pruned.failed and pruned.again)

    def _say_unpruned(self, text: str) -> None:
        """Once: what fails is tried again and again."""
        if text not in self._unpruned:
            self._unpruned.add(text)
            self._shared.progress.message(text)


def _episodes(blockers: Iterable[str]) -> list[EpisodeId]:
    """Those blockers that are episodes: a participant may also name a worker or a call."""
    found = []
    for key in blockers:
        try:
            found.append(EpisodeId.from_key(key))
        except InvalidRolloutId:
            continue
    return found
