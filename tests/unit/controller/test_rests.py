"""Rows rest between their attempts: for how long, and whom it concerns."""

from __future__ import annotations

import math

from gym_ckpt.core.collection import Collection, Row, RowState
from gym_ckpt.limits import LOST_ATTEMPTS_MAX, ROW_FAILED_GROWTH, ROW_REST_FIRST_S, ROW_REST_MAX_S
from gym_ckpt.types import EpisodeId


def collection(*rows: Row, max_attempts: int = 5) -> Collection:
    return Collection(rows, concurrency=1, max_attempts=max_attempts)


def test_a_row_that_fails_rests_longer_each_time_and_others_are_sent_meanwhile() -> None:
    it = collection(Row("a"), Row("b"))
    now, rests = 100.0, []
    for attempt in range(4):
        assert it.take() == [EpisodeId("a", attempt)]
        it.failed(EpisodeId("a", attempt), now)
        it.rested(now)
        assert it.counts().resting == 1
        if attempt == 0:
            assert it.take() == [EpisodeId("b")], "a row that rests holds up no other"
            it.finished(EpisodeId("b"))
        assert it.take() == [] and not it.done
        rests.append(it.next_rested - now)
        it.rested(it.next_rested - 0.001)
        assert it.take() == []
        now = it.next_rested
        it.rested(now)
    wanted = [ROW_REST_FIRST_S, ROW_REST_FIRST_S * ROW_FAILED_GROWTH, ROW_REST_MAX_S, ROW_REST_MAX_S]
    assert [round(each, 6) for each in rests] == wanted


def test_the_rest_of_a_lost_row_begins_with_its_loss_and_no_retire_prolongs_it() -> None:
    it = collection(Row("a"))
    assert it.take() == [EpisodeId("a")]
    it.lost(EpisodeId("a"), 100.0)
    assert it.next_rested == math.inf, "it is retired first"
    it.retired([EpisodeId("a")])
    it.rested(100.0)
    assert it.take() == []
    it.rested(100.0 + ROW_REST_FIRST_S)
    assert it.take() == [EpisodeId("a", 1)]


def test_what_an_earlier_run_lost_or_failed_is_sent_at_once() -> None:
    it = collection(Row("a", attempt=3, failures=3), Row("b", attempt=7, lost=7, state=RowState.RETIRING))
    it.retired([EpisodeId("b", 7)])
    assert it.take() == [EpisodeId("a", 3)]
    it.finished(EpisodeId("a", 3))
    assert it.take() == [EpisodeId("b", 8)]


def test_a_row_that_has_been_lost_very_often_rests_no_longer_than_others() -> None:
    it = collection(Row("a", lost=LOST_ATTEMPTS_MAX - 2))
    it.take()
    it.lost(EpisodeId("a"), 0.0)
    it.retired([EpisodeId("a")])
    assert it.next_rested == ROW_REST_MAX_S


def test_the_last_of_the_rows_that_rest_is_known_for_as_long_as_one_does() -> None:
    it = Collection([Row("a", failures=1), Row("b")], concurrency=2, max_attempts=5)
    assert it.last_rested == 0.0
    it.take()
    it.failed(EpisodeId("a"), 100.0)
    it.failed(EpisodeId("b"), 101.0)
    assert it.next_rested == 101.0 + ROW_REST_FIRST_S < it.last_rested == 100.0 + ROW_REST_FIRST_S * ROW_FAILED_GROWTH
    it.rested(it.next_rested)
    assert it.next_rested == it.last_rested
    it.rested(it.next_rested)
    assert it.last_rested == 0.0
