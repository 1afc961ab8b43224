"""The collection machine against a small model of servers and files, through any number of crashes.

The model knows what is true: which attempts run on servers, what each file holds for certain. The machine and
`plan_restart` see only what a collector sees. Held after every step: a row is written once (INV-2); an attempt is sent
only while no other attempt of its rollout can still run (INV-38); attempts only grow, except that a checkpoint may be
restored again on fresh servers (INV-65); scope is what INV-91 says; and at the end no row is lost (INV-5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gym_ckpt.core.collection import Collection, Row, RowState, Verdict
from gym_ckpt.core.collection_restart import DispatchHistory, FailureHistory, plan_restart
from gym_ckpt.types import EpisodeId

ROLLOUTS = tuple(f"r{n}" for n in range(4))
MAX_ATTEMPTS = 3
index = st.integers(0, 10**6)
rarely = st.integers(0, 4).map(lambda drawn: drawn == 4)


@dataclass
class Checkpoint:
    continued: tuple[EpisodeId, ...]
    valid: bool = True


class Collecting(RuleBasedStateMachine):
    """Rules read the model, and drive the machine as the shell would."""

    @initialize(concurrency=st.integers(1, 4))
    def begin(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.collection = Collection(map(Row, ROLLOUTS), concurrency=concurrency, max_attempts=MAX_ATTEMPTS)
        # What is true.
        self.running: set[EpisodeId] = set()
        self.sent: dict[str, list[EpisodeId]] = {name: [] for name in ROLLOUTS}
        self.fresh = True
        self.marks: dict[str, int] = {}
        self.installed: set[EpisodeId] = set()
        # Files: durable part first, then what a crash may take.
        self.log: list[tuple[EpisodeId, bool]] = []
        self.output: list[EpisodeId] = []
        self.output_durable = 0
        self.failures: list[tuple[EpisodeId, bool]] = []
        self.failures_durable = 0
        self.checkpoints: list[Checkpoint] = []
        # What this run of the collector waits for: calls whose reply has not come.
        self.calls: list[EpisodeId] = []
        self.given_up: set[EpisodeId] = set()
        self.open = False

    def pick(self, number: int) -> EpisodeId:
        return self.calls[number % len(self.calls)]

    def can(self, episode: EpisodeId) -> bool:
        """May the server still be working on it, as far as the collector's call goes?"""
        return episode in self.running

    # ------------------------------------------------------------------------------------------ a run

    @precondition(lambda self: not self.open and self.collection.dispatchable)
    @rule(unlogged=rarely, durable_anyway=st.booleans())
    def dispatch(self, unlogged: bool, durable_anyway: bool) -> None:
        taken = self.collection.take()
        if unlogged:
            # The append failed; some of it may be there after a crash all the same.
            if durable_anyway:
                self.log += [(episode, False) for episode in taken]
            self.collection.give_back(taken)
            return
        self.log += [(episode, False) for episode in taken]
        for episode in taken:
            self.send(episode)

    def send(self, episode: EpisodeId) -> None:
        others = [other for other in self.running if other.rollout_id == episode.rollout_id]
        assert not others, f"{episode} is sent while {others} may still run"
        assert all(row.rollout_id != episode.rollout_id for row in self.output), f"{episode} is sent, and has a row"
        assert episode.attempt > self.marks.get(episode.rollout_id, -1), f"{episode} is sent and was retired"
        before = self.sent[episode.rollout_id]
        again = episode in self.installed
        assert all(earlier < episode for earlier in before) or again, f"{episode} after {before}"
        assert not again or max(before, default=episode) <= episode, f"{episode} restored after {before}"
        self.sent[episode.rollout_id].append(episode)
        self.installed.discard(episode)
        self.running.add(episode)
        self.fresh = False
        self.calls.append(episode)

    @precondition(lambda self: self.calls)
    @rule(number=index)
    def finish(self, number: int) -> None:
        episode = self.pick(number)
        if not self.can(episode):
            return
        self.calls.remove(episode)
        self.running.discard(episode)
        if self.collection.finished(episode) is Verdict.FINAL:
            self.output.append(episode)

    @precondition(lambda self: self.calls)
    @rule(number=index)
    def fail(self, number: int) -> None:
        episode = self.pick(number)
        self.calls.remove(episode)
        self.running.discard(episode)
        verdict = self.collection.failed(episode, 0.0)
        self.collection.rested(math.inf)
        if verdict is not Verdict.IGNORED:
            self.failures.append((episode, verdict is Verdict.FINAL))

    @precondition(lambda self: self.calls)
    @rule(number=index)
    def lose(self, number: int) -> None:
        """The reply is lost; whether the episode runs on, the collector cannot know: it does."""
        episode = self.pick(number)
        self.calls.remove(episode)
        self.collection.lost(episode, 0.0)

    @precondition(lambda self: self.calls)
    @rule(number=index)
    def refuse(self, number: int) -> None:
        """The call reached nobody."""
        episode = self.pick(number)
        self.calls.remove(episode)
        self.running.discard(episode)
        if self.collection.lost(episode, 0.0, unreached=True) is Verdict.AGAIN:
            assert self.collection.dispatchable == 0, "nor would another one"

    @precondition(lambda self: self.calls and not self.open)
    @rule(number=index)
    def block(self, number: int) -> None:
        """It kept a checkpoint from being ready; its call is still out, and may even be answered."""
        self.given_up.add(self.pick(number))
        self.collection.lost(self.pick(number), 0.0)

    @precondition(lambda self: not self.open and self.collection.to_retire)
    @rule(limit=st.integers(1, 3), unreached=rarely)
    def retire(self, limit: int, unreached: bool) -> None:
        batch = self.collection.retire_batch(limit)
        for episode in batch:
            gone = {other for other in self.running if other.rollout_id == episode.rollout_id and other <= episode}
            self.running -= gone
            self.marks[episode.rollout_id] = episode.attempt
        if not unreached:
            assert self.collection.retired(batch) == []
            self.collection.rested(math.inf)

    @precondition(lambda self: not self.open)
    @rule()
    def prepare(self) -> None:
        self.collection.open_checkpoint()
        self.open = True
        assert self.collection.dispatchable == 0, "no row starts while a checkpoint is open (INV-90)"

    @precondition(lambda self: not self.open and self.collection.unfinished_started)
    @rule(restarts=st.just(set()) | st.sets(st.sampled_from(ROLLOUTS)))
    def checkpoint(self, restarts: set[str]) -> None:
        """Both halves at once, so that most runs have something to restore."""
        self.prepare()
        self.commit(restarts, True)

    @precondition(lambda self: self.open)
    @rule(restarts=st.sets(st.sampled_from(ROLLOUTS)), published=st.booleans())
    def commit(self, restarts: set[str], published: bool) -> None:
        without_reply = (set(self.calls) - self.given_up) | self.installed
        left_out = {episode for episode in without_reply if episode.rollout_id in restarts}
        expected = without_reply - left_out
        scope = self.collection.scope(left_out)
        assert scope == tuple(sorted(expected)), "in flight, and restored but not sent, minus restarts (INV-91)"
        if published:
            self.output_durable = len(self.output)
            self.failures_durable = len(self.failures)
            held = tuple(episode for episode in scope if episode in self.running or episode in self.installed)
            self.checkpoints.append(Checkpoint(held))
        self.collection.close_checkpoint()
        self.open = False

    # ------------------------------------------------------------------------------------------ crashes

    @precondition(lambda self: self.calls)
    @rule(
        servers_survive=rarely,
        rows_kept=st.integers(0, 4),
        failures_kept=st.integers(0, 4),
        damaged=rarely,
        restore_unlogged=rarely,
        broken=rarely,
    )
    def crash_and_restart(
        self,
        servers_survive: bool,
        rows_kept: int,
        failures_kept: int,
        damaged: bool,
        restore_unlogged: bool,
        broken: bool,
    ) -> None:
        self.output = self.output[: self.output_durable + rows_kept]
        self.output_durable = len(self.output)
        self.failures = self.failures[: self.failures_durable + failures_kept]
        self.failures_durable = len(self.failures)
        self.calls, self.given_up, self.open = [], set(), False
        if not servers_survive:
            self.running, self.installed, self.fresh, self.marks = set(), set(), True, {}
        if damaged and self.checkpoints:
            self.checkpoints.pop()
        self.restart(restore_unlogged, broken)

    def restart(self, restore_unlogged: bool, broken: bool) -> None:
        history = DispatchHistory()
        for episode, restored in self.log:
            history.add(episode, restored=restored)
        failed: dict[str, FailureHistory] = {}
        for episode, final in self.failures:
            failed.setdefault(episode.rollout_id, FailureHistory()).add(episode.attempt, final)
        checkpointed = self.checkpoints[-1].continued if self.checkpoints else ()
        plan = plan_restart(
            ROLLOUTS,
            finished={episode.rollout_id: episode.attempt for episode in self.output},
            failures=failed,
            log=history,
            checkpointed=checkpointed,
        )
        self.check_continued(plan.to_restore, checkpointed, failed)
        self.collection = Collection(plan.rows, concurrency=self.concurrency, max_attempts=MAX_ATTEMPTS)
        wanted = [episode.next() for episode in plan.to_restore]
        if broken or not self.fresh:
            self.collection.restore_failed(wanted)
            # Coordination retired N+1, and so everything before it, on its way out.
            names = {episode.rollout_id: episode for episode in wanted}
            self.running = {e for e in self.running if e.rollout_id not in names or e > names[e.rollout_id]}
            self.marks.update({episode.rollout_id: episode.attempt for episode in wanted})
            self.installed = set()
        else:
            self.installed = set(wanted)
            self.fresh = not wanted
            if not restore_unlogged:
                self.log += [(episode, True) for episode in wanted]

    def check_continued(
        self,
        to_restore: tuple[EpisodeId, ...],
        checkpointed: tuple[EpisodeId, ...],
        failed: dict[str, FailureHistory],
    ) -> None:
        """Said another way than the machine says it: everything in the checkpoint that nothing newer happened to."""
        expected = set()
        for held in checkpointed:
            name = held.rollout_id
            if any(row.rollout_id == name for row in self.output):
                continue
            if name in failed and (failed[name].final or failed[name].last >= held.attempt):
                continue
            later = [episode for episode, _ in self.log if episode.rollout_id == name and episode > held]
            if all(episode == held.next() and (episode, True) in self.log for episode in later):
                expected.add(held)
        assert set(to_restore) == expected

    # ------------------------------------------------------------------------------------------ always

    @invariant()
    def one_row_each(self) -> None:
        names = [episode.rollout_id for episode in self.output]
        assert len(names) == len(set(names)), "a rollout has two rows (INV-2)"

    @invariant()
    def books_balance(self) -> None:
        counts = self.collection.counts()
        held = [row.state for row in self.collection.rows()]
        assert counts.rows == len(ROLLOUTS)
        assert (counts.waiting, counts.in_flight, counts.retiring, counts.restored) == tuple(
            held.count(state) for state in (RowState.WAITING, RowState.IN_FLIGHT, RowState.RETIRING, RowState.RESTORED)
        )
        assert counts.in_flight <= self.concurrency

    def teardown(self) -> None:
        """Faults stop: every row ends (INV-5), and nothing has to be retired or forgotten for ever."""
        if self.open:
            self.collection.close_checkpoint()
            self.open = False
        for _ in range(20 * len(ROLLOUTS)):
            self.dispatch(False, False)
            for episode in list(self.calls):
                if self.can(episode):
                    self.finish(self.calls.index(episode))
                else:
                    self.calls.remove(episode)
            self.retire(4, False)
        assert self.collection.done, [(row.rollout_id, row.state) for row in self.collection.rows()]
        ended = {episode.rollout_id for episode in self.output} | {e.rollout_id for e, final in self.failures if final}
        assert ended == set(ROLLOUTS), f"rows lost: {set(ROLLOUTS) - ended}"
        self.collection.forgotten(self.collection.forget_batch(len(ROLLOUTS)))
        assert not self.collection.to_forget and not self.collection.to_retire


TestCollecting = Collecting.TestCase
TestCollecting.settings = settings(max_examples=300, stateful_step_count=40)
