"""Restored attempts that nobody has called: two servers that share a ledger, two attempts, two commits, one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from operator import methodcaller
from typing import Any

import pytest

from gym_ckpt.core.pending import PendingAttempts
from gym_ckpt.types import EpisodeId
from tests.explore.explorer import Broken, after, explore

ONE, TWO = EpisodeId("r", 1), EpisodeId("s", 1)
BOTH = (ONE, TWO)
SCOPES = tuple(frozenset(each) for size in range(3) for each in combinations(BOTH, size))
COMMITS = 2


@dataclass
class Ledger:
    """What two servers share, and what each believes. Commits and calls take its lock, so each is one move."""

    servers: list[PendingAttempts] = field(default_factory=lambda: [PendingAttempts(), PendingAttempts()])
    lineages: set[EpisodeId] = field(default_factory=lambda: set(BOTH))
    started: set[EpisodeId] = field(default_factory=set)
    retired: set[EpisodeId] = field(default_factory=set)
    in_scope: set[EpisodeId] = field(default_factory=lambda: set(BOTH))
    """Of the last commit of any server: nobody may lose these."""
    undeleted: set[EpisodeId] = field(default_factory=set)
    """Out of scope, and could not be deleted."""
    commits: list[int] = field(default_factory=lambda: [0, 0])
    faults: int = 0

    def __post_init__(self) -> None:
        for server in self.servers:
            server.restored(BOTH)

    def call(self, at: int, episode: EpisodeId) -> None:
        assert episode in self.lineages, f"{episode} is called, and its lineage is gone (INV-43)"
        self.started.add(episode)
        self.undeleted.discard(episode)
        self.servers[at].settled([episode])

    def commit(self, at: int, scope: frozenset[EpisodeId], fails: bool) -> None:
        self.commits[at] += 1
        self.faults += fails
        server = self.servers[at]
        left_out = server.out_of_scope(scope)
        assert not scope.intersection(left_out), "an attempt in scope is deleted (INV-42)"
        self.in_scope = set(scope)
        deleted, started = [], []
        for episode in left_out:
            if episode in self.started:
                started.append(episode)
            elif fails:
                self.undeleted.add(episode)
            else:
                self.lineages.discard(episode)
                self.undeleted.discard(episode)
                deleted.append(episode)
        server.settled([*deleted, *started])

    def retire(self, episode: EpisodeId) -> None:
        self.retired.add(episode)
        self.lineages.discard(episode)
        self.undeleted.discard(episode)
        for server in self.servers:
            server.drop([episode])


def moves(ledger: Ledger) -> Iterator[tuple[str, Ledger]]:
    todo: list[tuple[str, Callable[[Ledger], object]]] = []
    for at in (0, 1):
        for episode in BOTH:
            # Who is called: in the last scope or still whole, and neither retired nor deleted.
            if episode in ledger.in_scope and episode not in ledger.retired and episode in ledger.lineages:
                todo.append((f"call {episode} on {at}", methodcaller("call", at, episode)))
        if ledger.commits[at] < COMMITS:
            for scope in _scopes(ledger):
                for fails in (False, True)[: 2 - ledger.faults]:
                    label = f"commit {sorted(map(str, scope))} on {at}{', no delete works' if fails else ''}"
                    todo.append((label, methodcaller("commit", at, scope, fails)))
    for episode in BOTH:
        if episode not in ledger.retired:
            todo.append((f"retire {episode}", methodcaller("retire", episode)))
    for label, move in todo:
        yield label, after(ledger, move)


def _scopes(ledger: Ledger) -> Iterable[frozenset[EpisodeId]]:
    """What left a scope does not come back; what has started stays in it while it runs."""
    for scope in SCOPES:
        if scope <= ledger.in_scope - ledger.retired:
            yield scope


def check(ledger: Ledger) -> None:
    for episode in ledger.started - ledger.retired:
        assert episode in ledger.lineages, f"{episode} has started, and its lineage is deleted (INV-43)"
    for episode in ledger.in_scope - ledger.retired:
        assert episode in ledger.lineages, f"{episode} is in scope, and its lineage is gone (INV-42)"
    for episode in ledger.undeleted:
        assert any(episode in server for server in ledger.servers), f"{episode} is never tried again (INV-44)"
    for server in ledger.servers:
        assert all(episode not in server for episode in ledger.retired), "kept of a retired attempt (INV-39)"


def test_two_servers_and_two_restored_attempts() -> None:
    found = explore(Ledger(), moves, check)
    print(found.words("pending attempts"))
    assert found.states > 300


@pytest.mark.parametrize(
    ("name", "instead", "says"),
    [
        ("out_of_scope", lambda self, scope: sorted(EpisodeId(*each) for each in self._attempts.items()), "INV-42"),
        ("drop", lambda *_: None, "INV-39"),
    ],
)
def test_a_mistake_in_it_is_found(name: str, instead: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingAttempts, name, instead)
    with pytest.raises(Broken, match=says):
        explore(Ledger(), moves, check)


def test_a_delete_that_failed_and_is_settled_all_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(self: PendingAttempts, _: Iterable[EpisodeId]) -> None:
        self._attempts.clear()

    monkeypatch.setattr(PendingAttempts, "settled", settled)
    with pytest.raises(Broken, match="INV-44"):
        explore(Ledger(), moves, check)
