"""The explorer itself: it finds what is broken by a shortest way, states that nothing leads out of, and every state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.explore.explorer import Broken, explore


def up_and_down(most: int) -> object:
    def moves(state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        for which, name in enumerate("ab"):
            for step in (1, -1):
                after = list(state)
                after[which] += step
                if 0 <= after[which] <= most:
                    yield f"{name}{step:+d}", (after[0], after[1])

    return moves


def test_every_state_is_seen_once() -> None:
    moves = up_and_down(9)
    found = explore((0, 0), moves, lambda _: None)  # type: ignore[arg-type]
    assert found.states == 100 and found.depth == 18


def test_what_breaks_is_shown_by_a_shortest_way() -> None:
    def check(state: tuple[int, int]) -> None:
        assert state != (2, 1), "two and one"

    with pytest.raises(Broken, match="two and one") as caught:
        explore((0, 0), up_and_down(5), check)  # type: ignore[arg-type]
    assert sorted(caught.value.path) == ["a+1", "a+1", "b+1"]


def test_a_state_that_nothing_leads_out_of_is_broken() -> None:
    graph = {0: [1, 2], 1: [3], 2: [2], 3: []}

    def moves(state: int) -> Iterator[tuple[str, int]]:
        for there in graph[state]:
            yield f"to {there}", there

    with pytest.raises(Broken, match="nothing leads from here") as caught:
        explore(0, moves, lambda _: None, goal=lambda state: state == 3)
    assert caught.value.path == ["to 2"]
    graph[2] = [3]
    assert explore(0, moves, lambda _: None, goal=lambda state: state == 3).states == 4
