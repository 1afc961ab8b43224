"""Which headers the client of production sends: h11 refuses the others, and so does the simulated client."""

from __future__ import annotations

import re

from gym_ckpt.errors import PeerLost
from gym_ckpt.ports import Headers

_VALUE = re.compile(r"(?:[^\0\s](?:[^\0\s]|[ \t](?=[ \t]*[^\0\s]))*)?", re.ASCII)


def check_headers(headers: Headers) -> None:
    """Raises `PeerLost`, as `adapters.http_client` does."""
    for name, value in headers:
        if not _VALUE.fullmatch(value):
            raise PeerLost(f"Illegal header value {value!r} of {name}")
