"""Event streams however they are split, and INV-13's rule on their chunks."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gym_ckpt.limits import SSE_EVENT_MAX_BYTES
from gym_ckpt.wire.sse import DONE_EVENT, KEEP_ALIVE, SseParser, StartDetector, event

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
EVENTS = st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=5)
NOISE = st.sampled_from(["", ": keep-alive", ":", "id: 7", "retry: 10", "event: x", "database: no", "data"])


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces, some of them empty; the cuts fall anywhere."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip(places, places[1:], strict=False)]


@given(EVENTS, LINE_ENDS, st.booleans(), st.lists(st.integers(0, 10**6), max_size=30))
def test_events_come_back_however_the_stream_is_split(
    events: list[list[str]], line_end: str, bom: bool, cuts: list[int]
) -> None:
    text = "\ufeff" if bom else f": comment{line_end}"  # a comment behind it would hide that it is taken off
    for lines in events:
        text += "".join(f"data: {line}{line_end}" for line in lines) + "id: 1" + line_end + line_end
    parser = SseParser()
    seen = [data for piece in split(text.encode(), cuts) for data in parser.feed(piece)]
    assert seen == ["\n".join(lines) for lines in events]


@given(st.lists(st.tuples(NOISE, LINE_ENDS), max_size=20), st.lists(st.integers(0, 10**6), max_size=30))
def test_any_split_gives_what_the_whole_gives(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(line + end for line, end in lines).encode()
    parser = SseParser()
    pieces = [data for piece in split(stream, cuts) for data in parser.feed(piece)]
    assert pieces == SseParser().feed(stream)


def test_an_event_is_returned_by_the_chunk_that_ends_it() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == ["a"]
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == ["b"]
    assert parser.feed(KEEP_ALIVE + event(b"{}") + DONE_EVENT) == ["{}", "[DONE]"]


@pytest.mark.parametrize("stream", [b"data: \xff\n\n", b"data: \xc3\n\n"])
def test_data_that_is_not_utf8_is_refused(stream: bytes) -> None:
    with pytest.raises(ValueError, match="utf-8"):
        SseParser().feed(stream)


@pytest.mark.parametrize("unit", [b"x" * 2**20, b"data: " + b"x" * 2**20 + b"\n"])
def test_an_event_without_end_is_refused(unit: bytes) -> None:
    parser = SseParser()
    with pytest.raises(ValueError, match="more than"):
        for _ in range(SSE_EVENT_MAX_BYTES // 2**20 + 1):
            parser.feed(unit)


ALPHABET = st.lists(st.sampled_from([b":", b" ", b"\t", b"\r", b"\n", b"d", b"{", b"\xc3", KEEP_ALIVE]), max_size=14)


def starts_by_definition(data: bytes) -> bool:
    """Whether some line is neither blank nor a comment."""
    return any(line.strip(b" \t") and not line.startswith(b":") for line in re.split(rb"[\r\n]", data))


@given(ALPHABET, st.lists(st.integers(0, 100), max_size=6))
@example([b": keep-al", b"ive\n\n"], [3])
@example([b" :"], [1])
def test_inv13_is_the_same_for_every_split(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    detector = StartDetector()
    seen = b""
    for piece in split(data, cuts):
        seen += piece
        assert detector.starts(piece) == starts_by_definition(seen)


def test_inv13_examples() -> None:
    for nothing in (b"", b"\n\n", KEEP_ALIVE, KEEP_ALIVE * 2, b": any comment\r\n\r\n"):
        assert not StartDetector().starts(nothing)
    for start in (event(b"{}"), KEEP_ALIVE + event(b"x"), b'{"id": 1}', b"  {"):
        assert StartDetector().starts(start)


def test_a_long_event_costs_time_in_proportion_to_its_length() -> None:
    """Sixteen thousand chunks: copied for each, what came before would be sixty gigabytes."""
    parser, piece = SseParser(), b"x" * 512
    began = time.process_time()
    parser.feed(b"data: ")
    for _ in range(16_000):
        assert parser.feed(piece) == []
    assert parser.feed(b"\n\n") == [(piece * 16_000).decode()]
    assert time.process_time() - began < 5.0
