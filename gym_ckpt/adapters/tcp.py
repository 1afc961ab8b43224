"""Socket options with which a TCP connection notices that its peer's host is gone, or that somebody between has dropped
the connection for being idle.

A `/run` is silent for hours: without probes neither end would ever hear of either, and the row would hang for good.
There is no `TCP_USER_TIMEOUT`: it also ends a connection to a peer that lives and does not read, as a server does with
the bodies of calls that wait at closed admission (INV-14).
"""

from __future__ import annotations

import socket
from typing import Final

from gym_ckpt.limits import TCP_PROBE_AFTER_S, TCP_PROBE_EVERY_S, TCP_PROBES_UNANSWERED

Option = tuple[int, int, int]


def _options() -> tuple[Option, ...]:
    named = [("TCP_KEEPIDLE", TCP_PROBE_AFTER_S), ("TCP_KEEPALIVE", TCP_PROBE_AFTER_S)]  # Linux's name, and macOS's
    named += [("TCP_KEEPINTVL", TCP_PROBE_EVERY_S), ("TCP_KEEPCNT", TCP_PROBES_UNANSWERED)]
    known = [(getattr(socket, name), value) for name, value in named if hasattr(socket, name)]
    tcp = [(socket.IPPROTO_TCP, number, value) for number, value in known]
    return ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tcp)


PROBED: Final = _options()
"""For a client's socket, or for one that listens: what it accepts inherits them."""
