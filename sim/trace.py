"""The trace: every event of a run in order, and one hash over all of them.

Determinism is proved by this hash. A row costs an append; rows are hashed in batches, as the interpreter writes its own
constants.
Values must be plain data: an address in a row would make the hash useless, so it is an error.

Must not know what the events mean. Listeners (the oracle) are called synchronously, with every row.
"""

from __future__ import annotations

import hashlib
import marshal
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

_BATCH_ROWS = 256
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_ADDRESS_BYTES = re.compile(_ADDRESS.pattern.encode())
_NO_REFERENCES = 2
"""The version of `marshal` whose bytes say what the values are, and not which of them are one object."""
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_row = tuple.__new__
"""Makes a row in half the time that its own constructor takes."""


class Row(NamedTuple):
    """One event. `t` is virtual seconds; `node` is empty for the world itself."""

    t: float
    node: str
    event: str
    fields: Mapping[str, Any]

    def text(self) -> str:
        """For people, and to compare."""
        return repr(tuple(self))


Listener = Callable[[Row], None]


class Trace:
    """The rows of one run; keeps the last `tail` of them, or all."""

    def __init__(self, *, tail: int = 200, keep_all: bool = False) -> None:
        self.events = 0
        self.rows: deque[Row] | list[Row] = [] if keep_all else deque(maxlen=tail)
        self.fault: Callable[[Exception], None] | None = None
        """Told what a listener raised: the code that emitted the row must not be able to swallow it."""
        self._pending: list[Row] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._listeners: list[tuple[Listener, frozenset[str] | None]] = []
        self._by_event: dict[str, tuple[Listener, ...]] = {}
        self._closed = False

    def subscribe(self, listener: Listener, events: Iterable[str] | None = None) -> None:
        """Call `listener` with every row of these events, or of any, from now on, after those who subscribed earlier.

        What it raises stops the run, even out of a node's own code.
        """
        self._listeners.append((listener, None if events is None else frozenset(events)))
        self._by_event.clear()

    def _who_listens(self, event: str) -> tuple[Listener, ...]:
        found = tuple(listener for listener, events in self._listeners if events is None or event in events)
        self._by_event[event] = found
        return found

    def emit(self, t: float, node: str, event: str, fields: dict[str, Any]) -> None:
        """Append a row. After `close` nothing is recorded any more."""
        if self._closed:
            return
        if not _PLAIN.issuperset(map(type, fields.values())):
            for key, value in fields.items():
                fields[key] = _plain(value)
        row = _row(Row, (t, node, event, fields))
        self.events += 1
        self.rows.append(row)
        self._pending.append(row)
        if len(self._pending) >= _BATCH_ROWS:
            self._flush()
        listeners = self._by_event.get(event)
        for listener in self._who_listens(event) if listeners is None else listeners:
            try:
                listener(row)
            except Exception as exc:
                if self.fault is None:
                    raise
                self.fault(exc)

    def close(self) -> None:
        """The run is over: what still unwinds leaves no row."""
        self._closed = True

    def hexdigest(self) -> str:
        """Hash of everything recorded so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows, self._pending = self._pending, []
        data = marshal.dumps(list(map(tuple, rows)), _NO_REFERENCES)  # several times faster than to print them
        if b"0x" in data and (found := _ADDRESS_BYTES.search(data)) is not None:
            address = found.group().decode()
            row = next(row for row in rows if address in repr(row))
            raise AssertionError(f"a trace row holds an address, so its hash means nothing: {row!r:.300}")
        self._hash.update(data)


def describe(error: BaseException) -> str:
    """An exception as text that is the same in every process."""
    return _ADDRESS.sub("0x", f"{type(error).__name__}: {error}")[:500]


def _plain(value: Any) -> Any:
    """A frozen copy of plain data: what is changed later must not change the row."""
    if type(value) in _PLAIN:
        return value
    if callable(value):  # too dear to compute where nobody traces
        return _plain(value())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    return _ADDRESS.sub("0x", str(value))
