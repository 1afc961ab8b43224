"""Server-sent events: writing them, reading them however they were split, and telling keep-alives from answers.

Keeps INV-13: a response starts at its first non-empty chunk that is not a keep-alive. The worker that emits keep-alives
and the gate that must not count them share `KEEP_ALIVE` and `StartDetector`.

Pure: knows neither what an event means nor where chunks come from.
"""

from __future__ import annotations

from typing import Final

from gym_ckpt.limits import SSE_EVENT_MAX_BYTES

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment: shows that a connection lives and carries nothing."""
CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"
DONE: Final = "[DONE]"
"""Data of the event that ends an OpenAI stream."""

_BOM: Final = b"\xef\xbb\xbf"
_LF, _CR, _COLON = b"\n\r:"


def event(data: bytes) -> bytes:
    """One event with `data`, which must hold no line break (JSON as this package writes it has none)."""
    return b"data: " + data + b"\n\n"


DONE_EVENT: Final = event(DONE.encode())


class SseParser:
    """Takes a stream in chunks split at any byte and returns the data of each event as soon as it is complete.

    Comments and fields other than `data` are dropped, and so is an event that the stream's end cut off.
    """

    def __init__(self) -> None:
        self._pending = bytearray()  # the line that has begun; in place, it may come in very many chunks
        self._after_cr = False  # a line feed that comes next belongs to the line end before it
        self._first_line = True
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes, in order.

        Raises:
            ValueError: an event beyond `SSE_EVENT_MAX_BYTES`, or data that is not UTF-8. The stream is then unusable.
        """
        if self._after_cr and chunk:
            chunk = chunk[1:] if chunk[0] == _LF else chunk
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk[-1] == _CR
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._pending) + lines[0]
            self._pending.clear()
        self._pending += rest
        events = [data for line in lines if (data := self._line(line)) is not None]
        if self._size + len(self._pending) > SSE_EVENT_MAX_BYTES:
            raise ValueError(f"an event of more than {SSE_EVENT_MAX_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> str | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)
            if self._size > SSE_EVENT_MAX_BYTES:
                raise ValueError(f"an event of more than {SSE_EVENT_MAX_BYTES} bytes")
        return None

    def _dispatch(self) -> str | None:
        if not self._data:
            return None
        data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return data.decode("utf-8")


class StartDetector:
    """INV-13 over a response whose chunks may split a keep-alive anywhere.

    Lines that are empty, blank or a comment (`:` first) start nothing; the first byte of any other line does. A body
    that is not an event stream obeys the same rule, because JSON never begins with a colon.
    """

    def __init__(self) -> None:
        self._started = False
        self._in_comment = False
        self._in_blank = False  # only spaces so far in this line: a colon now is no comment

    def starts(self, chunk: bytes) -> bool:
        """Whether the response has started once `chunk` has arrived; stays true from then on."""
        if self._started or chunk == b"":
            return self._started
        for byte in chunk:
            if byte in b"\r\n":
                self._in_comment = self._in_blank = False
            elif self._in_comment:
                continue
            elif byte == _COLON and not self._in_blank:
                self._in_comment = True
            elif byte in b" \t":
                self._in_blank = True
            else:
                self._started = True
                break
        return self._started
