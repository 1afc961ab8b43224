"""The start-up code of one server, the same in both worlds: build what the settings name, serve it until cancelled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import anyio
import anyio.abc

from gym_ckpt.errors import ConfigError
from gym_ckpt.gyms import by_name
from gym_ckpt.inference.worker import EmbeddedWorker
from gym_ckpt.limits import OPEN_FILES_S, PEER_RETRY_MAX_S
from gym_ckpt.participants.agent import AgentParticipant
from gym_ckpt.participants.captured import LedgerBook
from gym_ckpt.participants.environment import EnvironmentParticipant
from gym_ckpt.participants.ledger_routes import ledger_routes
from gym_ckpt.participants.model import ModelParticipant
from gym_ckpt.participants.resources import ResourcesParticipant
from gym_ckpt.ports import ASGIApp, Ports
from gym_ckpt.runtime.applications import Serving, made_by
from gym_ckpt.runtime.asgi import Route, Router, episode_context
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.runtime.install import install
from gym_ckpt.settings import (
    AgentSettings,
    EnvironmentSettings,
    GymSettings,
    InferenceSettings,
    ModelSettings,
    ResourcesSettings,
)

Shipped = EnvironmentParticipant | AgentParticipant | ResourcesParticipant | ModelParticipant


async def run_server(settings: GymSettings, name: str, ports: Ports, *, ready: Callable[[], None]) -> None:
    """Serve the server `name` of a gym until cancelled; `ready` is called once it accepts connections.

    Raises:
        ConfigError: the address cannot be listened on, the gym or the application is unknown, checkpointing has no
            token, or an agent names a model server past the gate (INV-21).
    """
    async with AsyncExitStack() as at_end, Tasks() as tasks:
        try:
            app = await application(settings, name, ports, tasks, at_end)
            await ports.server.serve(app, settings.url(name), ready=ready)
        finally:
            tasks.cancel_scope.cancel()


async def application(
    settings: GymSettings, name: str, ports: Ports, tasks: anyio.abc.TaskGroup, at_end: AsyncExitStack
) -> ASGIApp:
    """The ASGI application of one server; its background work runs in `tasks`, and `at_end` gives up what it holds."""
    server = settings.servers[name]
    if isinstance(server, InferenceSettings):
        return EmbeddedWorker(
            ports,
            tokens_per_s=server.tokens_per_s,
            step_tokens=server.step_tokens,
            model_seed=server.seed,
            model_name=server.model_name,
        ).app
    if isinstance(server, ResourcesSettings) and server.app is not None:
        return await made_by(server.app, Serving(name, settings, ports, tasks, at_end))
    participant = _participant(settings, name, ports, tasks)
    at_end.callback(participant.close)
    await _opened(participant, name)
    app = Router(participant.routes())
    if settings.checkpoint is None:
        return episode_context(app)
    control = ControlPlane(participant, tasks, grace_s=settings.checkpoint.grace_s)
    return install(app, control, settings.control_token, _further_routes(participant, control))


async def _opened(participant: Shipped, name: str) -> None:
    """A disk that fails now and then is not a reason to die. Raises `ConfigError` when it does so for long."""
    give_up = anyio.current_time() + OPEN_FILES_S
    while True:
        try:
            await participant.open()
            return
        except OSError as error:
            if anyio.current_time() >= give_up:
                raise ConfigError(f"server {name!r}: its files cannot be opened: {error}") from None
            participant.ports.tracer.emit("server.files_unavailable", why=str(error))
        await anyio.sleep(PEER_RETRY_MAX_S / 4)


def _further_routes(participant: Shipped, control: ControlPlane) -> tuple[Route, ...]:
    if not isinstance(participant, ModelParticipant):
        return ()
    book = participant.book
    return (*participant.control_routes(), *(ledger_routes(book, control) if isinstance(book, LedgerBook) else ()))


def _participant(settings: GymSettings, name: str, ports: Ports, tasks: anyio.abc.TaskGroup) -> Shipped:
    match settings.servers[name]:
        case EnvironmentSettings() as server:
            return EnvironmentParticipant(
                name,
                ports,
                tasks,
                agent_url=settings.url(server.agent),
                resources_url=settings.url(server.resources),
                verifier_url=None if server.verifier is None else settings.url(server.verifier),
                episode_timeout_s=server.episode_timeout_s,
            )
        case AgentSettings() as server:
            settings.check_gated(name)
            return AgentParticipant(
                name,
                ports,
                tasks,
                model_urls=[settings.url(model) for model in server.models],
                token=settings.control_token,
                max_steps=server.max_steps,
                stream=server.stream,
                max_tokens=server.max_tokens,
            )
        case ResourcesSettings() as server:
            return ResourcesParticipant(name, ports, tasks, by_name(server.gym))
        case ModelSettings() as server:
            model = ModelParticipant(name, ports, settings.worker_urls(server))
            model.gated = settings.checkpoint is not None
            if server.ledger_dir is not None:
                model.capture(server.ledger_dir, server.token_dir, settings.models())
            return model
        case InferenceSettings():
            raise AssertionError(f"inference worker {name} is no participant")
