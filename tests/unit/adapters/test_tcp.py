"""Connections that are silent for hours, between our client and our server: the kernel probes them from both ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.limits import TCP_PROBE_AFTER_S
from tests.unit.adapters.loopback import STARTED_S, Application, serving

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ESTABLISHED = "01"
RETRANSMITTING, KEEPALIVE_TIMER = "01", "02"


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's table of sockets")
async def test_a_call_without_an_answer_yet_is_probed_from_both_ends() -> None:
    app = Application()
    async with serving(app) as (url, _), HttpxClient() as client, anyio.create_task_group() as group:
        group.start_soon(client.request, "GET", f"{url}/hold")
        with anyio.fail_after(STARTED_S):
            await app.seen.wait()
            while len(found := timers(int(url.rpartition(":")[2]))) != 2 or RETRANSMITTING in {
                timer for timer, _ in found
            }:
                await anyio.sleep(0.01)  # what was sent is not acknowledged yet
        app.release.set()
    assert [timer for timer, _ in found] == [KEEPALIVE_TIMER] * 2, "the client's end and the server's"
    assert max(left_s for _, left_s in found) <= TCP_PROBE_AFTER_S


def timers(port: int) -> list[tuple[str, float]]:
    """Of both ends of the connections to a local port: which timer runs, and the seconds that it has left."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, timer, *_ = line.split()
        if state == ESTABLISHED and f"{port:04X}" in (local[-4:], remote[-4:]):
            kind, left = timer.split(":")
            found.append((kind, int(left, 16) / os.sysconf("SC_CLK_TCK")))
    return found
