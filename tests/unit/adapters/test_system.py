"""Signals, tracing, entropy, and the whole of `production_ports`."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
from pathlib import Path

import anyio
import pytest

import gym_ckpt.ports
from gym_ckpt.adapters.system import NOTABLE, LogTracer, ProcessSignals, SystemEntropy, production_ports
from tests.unit.adapters.loopback import STARTED_S, Application, free_port


@pytest.mark.anyio
async def test_signals_arrive_by_name_and_in_order() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with anyio.fail_after(STARTED_S):
        async with ProcessSignals().listen() as names:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            received = [await anext(names), await anext(names)]
            os.kill(os.getpid(), signal.SIGUSR1)
            received.append(await anext(names))
    assert received == ["SIGUSR1", "SIGTERM", "SIGUSR1"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_events_are_logged_at_their_level_and_never_raise(caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    tracer = LogTracer(notable=["lease-expired"])
    with caplog.at_level(logging.DEBUG, "gym_ckpt"):
        tracer.emit("lease-expired", checkpoint_id="c1", after_s=2.5)
        tracer.emit("mark", episode=object)
        tracer.emit("hostile", value=Hostile())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", 'lease-expired {"checkpoint_id": "c1", "after_s": 2.5}'),
        ("DEBUG", 'mark {"episode": "<class \'object\'>"}'),
        ("DEBUG", "hostile (fields cannot be shown)"),
    ]


def test_every_notable_event_is_one_that_the_implementation_emits() -> None:
    sources = [
        path.read_text() for path in Path(gym_ckpt.ports.__file__).parent.rglob("*.py") if path.name != "system.py"
    ]
    assert {name for name in NOTABLE if not any(f'"{name}"' in text for text in sources)} == set()


def test_events_that_nobody_listens_to_are_not_formatted(caplog: pytest.LogCaptureFixture) -> None:
    class Counting:
        shown = 0

        def __repr__(self) -> str:
            Counting.shown += 1
            return "shown"

    with caplog.at_level(logging.WARNING, "gym_ckpt"):
        LogTracer().emit("mark", value=Counting())
    assert (Counting.shown, caplog.records) == (0, [])


def test_tokens_are_hexadecimal_and_fresh() -> None:
    entropy = SystemEntropy()
    tokens = {entropy.token(4) for _ in range(50)}
    assert len(tokens) == 50
    assert all(re.fullmatch("[0-9a-f]{8}", token) for token in tokens)
    assert all(2.0 <= entropy.uniform(2.0, 2.5) < 2.5 for _ in range(100))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_production_ports_serve_and_call() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with production_ports() as ports, anyio.create_task_group() as group:
        listening = anyio.Event()

        async def serve() -> None:
            await ports.server.serve(Application(), url, ready=listening.set)

        group.start_soon(serve)
        with anyio.fail_after(STARTED_S):
            await listening.wait()
        assert (await ports.http.request("GET", f"{url}/data")).body == b"/data"
        assert (await ports.control.request("GET", f"{url}/control")).body == b"/control"
        await ports.probe("anywhere")
        assert ports.pid == os.getpid()
        assert ports.clock.wall() > 1_700_000_000
        group.cancel_scope.cancel()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
