"""What a factory is given, and what its application gets around it."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from examples.letters import Letters
from gym_ckpt import Serving
from gym_ckpt.errors import ConfigError
from gym_ckpt.ports import ASGIApp, Ports, Receive, Scope, Send
from gym_ckpt.runtime.applications import factory_of, made_by
from gym_ckpt.settings import CheckpointSettings, GymSettings, InferenceSettings, ResourcesSettings
from sim.world import run_world

WORKER = InferenceSettings(url="http://worker:80")


class Broken(Exception):
    """What a framework raises of a cut request."""


async def reading(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the episode; raises where the body does not come."""
    message = await receive()
    if message["type"] != "http.request" or scope["path"] == "/raises":
        raise Broken
    episode = str(scope.get("gym_ckpt.episode", "nobody"))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{scope['path']} {episode}".encode()})


async def ask(app: ASGIApp, path: str, *, cut: bool = False, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of a call; 0 where there was no answer."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"} if cut else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    return (sent[0]["status"], sent[1]["body"]) if sent else (0, b"")


def given(checkpoint: CheckpointSettings | None, use: Any, token: str | None = "secret") -> None:
    """Call `use` with a `Serving` and its application."""

    async def main(ports: Ports) -> None:
        own = ResourcesSettings(url="http://own:80", app="a:b")
        settings = GymSettings(servers={"own": own, "worker": WORKER}, checkpoint=checkpoint, control_token=token)
        async with AsyncExitStack() as at_end, anyio.create_task_group() as tasks:
            await use(Serving("own", settings, ports, tasks, at_end))

    async def script(world: Any) -> None:
        world.add_node("own", main, start=True)
        await world.sleep(10)

    run_world(1, script).check()


@pytest.mark.parametrize("checkpoint", [None, CheckpointSettings()])
def test_calls_are_tagged_and_health_is_there_with_checkpoints_and_without(
    checkpoint: CheckpointSettings | None,
) -> None:
    async def use(serving: Serving) -> None:
        app = serving.controlled(reading, Letters(serving.name, serving.ports))
        assert await ask(app, "/ng-rollout/row-a1/x") == (200, b"/x row-a1")
        assert await ask(app, "/x") == (200, b"/x nobody")
        assert await ask(app, "/health") == (200, b'{"status":"ok"}')
        status, body = await ask(app, "/ng-control/v1/checkpoint/status")
        assert (status, body[:12]) == ((401, b'{"error":{"c') if checkpoint else (200, b"/ng-control/"))

    given(checkpoint, use)


def test_an_error_is_one_only_where_the_request_was_whole() -> None:
    async def use(serving: Serving) -> None:
        app = serving.controlled(reading, Letters(serving.name, serving.ports))
        assert await ask(app, "/x", cut=True) == (0, b"")
        with pytest.raises(Broken):
            await ask(app, "/raises")

    given(None, use)


def test_the_participant_is_closed_at_the_end() -> None:
    closed: list[str] = []

    class Closing(Letters):
        def close(self) -> None:
            closed.append(self.instance)

    async def use(serving: Serving) -> None:
        serving.controlled(reading, Closing(serving.name, serving.ports))
        assert not closed

    given(None, use)
    assert closed == ["own"]


def test_what_is_missing_is_named() -> None:
    async def use(serving: Serving) -> None:
        assert serving.url("worker") == "http://worker:80"
        with pytest.raises(ConfigError, match="server 'own' wants 'judge', and the gym has own, worker"):
            serving.url("judge")
        with pytest.raises(ConfigError, match="there is no control token"):
            serving.controlled(reading, Letters(serving.name, serving.ports))

    given(CheckpointSettings(), use, token=None)


async def no_application(serving: Serving) -> None:
    """A factory whose author forgot to return."""


def test_a_factory_that_makes_no_application_is_refused() -> None:
    async def use(serving: Serving) -> None:
        with pytest.raises(ConfigError, match="it returned None, which is no ASGI application"):
            await made_by(f"{__name__}:no_application", serving)

    given(None, use)


def test_a_gym_is_named_by_the_key_that_serves_it() -> None:
    with pytest.raises(ConfigError, match=r"it is a Gym, .* say gym = 'examples.safe:SafeGym' in place of app"):
        factory_of("examples.safe:SafeGym")


def test_a_module_that_raises_when_it_is_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be imported \(ZeroDivisionError: division by zero\)"):
        factory_of("raising_on_import:build")
