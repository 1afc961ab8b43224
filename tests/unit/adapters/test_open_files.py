"""A client keeps no connection for later where the files that it takes are needed now."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from gym_ckpt.adapters.http_client import HttpxClient, ScalingTransport
from gym_ckpt.errors import PeerUnreachable
from tests.unit.adapters.loopback import Application, burst, serving
from tests.unit.adapters.test_http_client import on_asyncio

pytestmark = pytest.mark.anyio


@on_asyncio
async def test_connections_kept_for_one_peer_make_room_for_those_in_use_by_another() -> None:
    """As a burst of rollouts is seeded by the tools, and then sent to the agent."""
    app, other = Application(), Application()
    transport = ScalingTransport(open_max=5)
    async with serving(app) as (url, _), serving(other) as (url_of_other, _), HttpxClient(transport) as client:
        await burst(client, app, url, 4)
        assert transport.idle_count == 4
        await burst(client, other, url_of_other, 3)
        assert (transport.opened, transport.idle_count) == (7, 5)
        await burst(client, other, url_of_other, 9)  # those in use are not bounded, and none is kept beyond the bound
        assert transport.idle_count == 5
        with pytest.raises(PeerUnreachable):
            await client.request("GET", "http://127.0.0.1:9/refused")
        assert transport.idle_count == 4, "a call that fails gives its place back"
        await burst(client, other, url_of_other, 1)
        assert transport.idle_count <= 5


FEW = 600
SCRIPT = """
import asyncio, resource
from contextlib import AsyncExitStack
resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))
from gym_ckpt.adapters.system import production_ports
from tests.unit.adapters.loopback import Application, burst, serving

async def main():
    apps = [Application() for _ in range(4)]
    async with production_ports() as ports, AsyncExitStack() as servers:
        for app in apps:
            url, _ = await servers.enter_async_context(serving(app))
            calls = [asyncio.create_task(ports.http.request("GET", url + "/hold")) for _ in range(90)]
            while app.in_flight < len(calls):
                await asyncio.sleep(0.001)
            app.release.set()
            await asyncio.gather(*calls)
    print("done")

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files as Linux does")
def test_a_process_with_few_files_goes_from_peer_to_peer() -> None:
    """Both ends of every connection are in this process: 4 x 90 of them would be 720 files, and 600 are allowed."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > FEW
    ended = subprocess.run(
        [sys.executable, "-c", f"FEW = {FEW}\n{SCRIPT}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr[-2000:]
