"""The supervisor, over processes that are as small as Python allows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from time import monotonic, sleep

import anyio
import pytest

from gym_ckpt.adapters.host import free_ports, is_alive
from gym_ckpt.adapters.supervisor import Command, ServerDied, Supervisor
from gym_ckpt.errors import ConfigError

pytestmark = pytest.mark.e2e

SERVER = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
print("up", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
SLEEPER = "import time; print('asleep', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def python(code: str, *arguments: str, health_url: str | None = None) -> Command:
    return Command((sys.executable, "-c", code, *arguments), health_url)


@pytest.fixture
def anyio_backend() -> str:
    """Production's event loop; the simulator has no processes."""
    return "asyncio"


class Lines:
    """A log that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))


async def until_printed(log: Lines, name: str) -> None:
    with anyio.fail_after(20):
        while not any(each == name for each, _ in log.lines):
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_it_waits_for_readiness_and_leaves_no_process() -> None:
    (port,) = free_ports(1)
    log = Lines()
    async with Supervisor(log) as servers:
        pid = await servers.start("web", python(SERVER, str(port), health_url=f"http://127.0.0.1:{port}/health"))
        await servers.wait_ready()
        assert is_alive(pid)
    assert not is_alive(pid)
    assert log.lines == [("web", "up")]


@pytest.mark.anyio
async def test_a_server_that_ends_at_start_is_named_with_its_last_lines() -> None:
    async with Supervisor(Lines()) as servers:
        await servers.start("sleeper", python(SLEEPER))
        await servers.start(
            "broken", python("print('no port left'); raise SystemExit(3)", health_url="http://127.0.0.1:1/health")
        )
        with pytest.raises(ServerDied) as caught:
            await servers.wait_ready()
    assert "'broken' ended with status 3" in str(caught.value)


@pytest.mark.anyio
async def test_a_server_that_refuses_its_configuration_refuses_its_supervisors() -> None:
    async with Supervisor(Lines()) as servers:
        await servers.start("fussy", python("raise SystemExit(2)", health_url="http://127.0.0.1:1/health"))
        with pytest.raises(ConfigError, match="'fussy' ended with status 2"):
            await servers.wait_ready()


@pytest.mark.anyio
async def test_a_server_that_never_answers_is_named() -> None:
    log = Lines()
    async with Supervisor(log) as servers:
        await servers.start("mute", python(SLEEPER, health_url="http://127.0.0.1:1/health"))
        await until_printed(log, "mute")
        with pytest.raises(ServerDied, match=r"'mute' does not answer .* after 0.2 s; its last lines:\n  asleep"):
            await servers.wait_ready(ready_s=0.2)
        servers.signal("mute", signal.SIGKILL)


@pytest.mark.anyio
async def test_a_death_is_noticed_and_named() -> None:
    async with Supervisor(Lines()) as servers:
        pid = await servers.start("victim", python(SLEEPER))
        await servers.start("other", python(SLEEPER))
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(10), pytest.raises(ServerDied, match="'victim' was killed by SIGKILL"):
            await servers.watch()


@pytest.mark.anyio
async def test_one_that_ignores_sigterm_is_killed_after_its_drain() -> None:
    log = Lines()
    async with Supervisor(log) as servers:
        pid = await servers.start("deaf", python(STUBBORN))
        await until_printed(log, "deaf")
        await servers.stop(drain_s=0.1)
        assert not is_alive(pid)


@pytest.mark.anyio
async def test_kill_all_counts_what_it_killed() -> None:
    log = Lines()
    async with Supervisor(log) as servers:
        for name in ("a", "b", "c"):
            await servers.start(name, python(SLEEPER))
            await until_printed(log, name)
        assert await servers.kill_all() == 3
        assert await servers.kill_all() == 0


def test_servers_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    """No orphan keeps a port when the supervisor itself is killed."""
    child = "from gym_ckpt.adapters.host import die_with_parent; die_with_parent()\n" + SLEEPER
    (tmp_path / "parent.py").write_text(
        textwrap.dedent(f"""
        import sys, anyio
        from gym_ckpt.adapters.supervisor import Command, Supervisor
        async def main():
            async with Supervisor(lambda name, line: print(line, flush=True)) as servers:
                print(await servers.start("child", Command((sys.executable, "-c", {child!r}))), flush=True)
                await anyio.sleep(60)
        anyio.run(main)
    """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline().strip() == "asleep"
        parent.kill()
    deadline = monotonic() + 10
    while is_alive(pid) and monotonic() < deadline:
        sleep(0.02)
    assert not is_alive(pid)
