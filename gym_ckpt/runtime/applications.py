"""An author's own application as a server of a gym: what its factory is given, and how a configuration names one.

The factory is an async function, `package.module:factory`, that makes the application of one process. Whatever the
process keeps is made in there: a module's globals would be shared by every server that one interpreter plays.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio.abc

from gym_ckpt.errors import ConfigError
from gym_ckpt.gyms import Gym
from gym_ckpt.ports import ASGIApp, Ports, Receive, Scope, Send
from gym_ckpt.runtime.asgi import Router, episode_context
from gym_ckpt.runtime.control import ControlPlane
from gym_ckpt.runtime.install import HEALTH, admitting, install
from gym_ckpt.runtime.participant import Participant
from gym_ckpt.settings import GymSettings


@dataclass(frozen=True, slots=True)
class Serving:
    """What a factory is given. `name`: of its server in `settings`. `tasks`: for work of its own, cancelled at the end.

    `at_end`: closes what is opened for the length of the process, such as an `httpx.AsyncClient`.
    """

    name: str
    settings: GymSettings
    ports: Ports
    tasks: anyio.abc.TaskGroup
    at_end: AsyncExitStack

    def url(self, server: str) -> str:
        """Where a server of the gym listens. Raises `ConfigError`."""
        if server not in self.settings.servers:
            known = ", ".join(self.settings.servers)
            raise ConfigError(f"server {self.name!r} wants {server!r}, and the gym has {known}")
        return self.settings.url(server)

    def controlled(self, app: ASGIApp, participant: Participant) -> ASGIApp:
        """`app` as a server that can be checkpointed: control routes, health, its calls tagged and admitted.

        Each tagged call is one piece of work (`admitting`). Where the gym has no `[checkpoint]`, calls are only tagged.

        Raises:
            ConfigError: checkpointing is on without a control token.
        """
        self.at_end.callback(participant.close)
        app = _of_whole_requests(app)
        checkpoint = self.settings.checkpoint
        if checkpoint is None:
            return _healthy(episode_context(app))
        control = ControlPlane(participant, self.tasks, grace_s=checkpoint.grace_s)
        return _healthy(install(admitting(app, participant), control, self.settings.control_token))


Factory = Callable[[Serving], Awaitable[ASGIApp]]


def factory_of(name: str) -> Factory:
    """The factory with this name, `package.module:factory`.

    Raises:
        ConfigError: saying what is wrong with it.
    """
    found = _found(name)
    if _is_gym(found):
        raise _refusal(name, f"it is a Gym, which the shipped server serves: say gym = {name!r} in place of app")
    if not inspect.iscoroutinefunction(found):
        raise _refusal(name, "it is not an async function that takes a gym_ckpt.Serving and returns the application")
    factory: Factory = found
    return factory


def names_gym(name: str) -> bool:
    """Whether a class of gyms has this name. Raises `ConfigError` where nothing has."""
    return _is_gym(_found(name))


def _is_gym(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, Gym)


def _found(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute) or module.startswith("."):
        raise _refusal(name, "it is not package.module:factory")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # whatever an author's module does when it is imported
        raise _refusal(name, f"it cannot be imported ({type(error).__name__}: {error})") from error
    if found is None:
        raise _refusal(name, f"module {module} has no {attribute}")
    return found


async def made_by(name: str, serving: Serving) -> ASGIApp:
    """The application that this factory makes. Raises `ConfigError` as `factory_of`, and when it makes none."""
    app = await factory_of(name)(serving)
    if not callable(app):
        raise _refusal(name, f"it returned {app!r:.80}, which is no ASGI application")
    return app


def _refusal(name: str, why: str) -> ConfigError:
    return ConfigError(f"application {name!r}: {why}")


def _of_whole_requests(app: ASGIApp) -> ASGIApp:
    """`app`, whose error is none where the caller went before its request was whole: nobody has asked for anything.

    Frameworks raise then what nobody handles, such as Starlette's `ClientDisconnect`.
    """

    async def undisturbed(scope: Scope, receive: Receive, send: Send) -> None:
        whole = cut = False

        async def watched() -> MutableMapping[str, Any]:
            nonlocal whole, cut
            message = await receive()
            if message["type"] == "http.request":
                whole = not message.get("more_body", False)
            else:
                cut = not whole
            return message

        try:
            await app(scope, watched, send)
        except Exception:
            if not cut:
                raise

    return undisturbed


def _healthy(app: ASGIApp) -> ASGIApp:
    """`app`, and the route by which a supervisor sees that it serves."""
    health = Router((HEALTH,))

    async def with_health(scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and (scope["method"], scope["path"]) == (HEALTH.method, HEALTH.path)
        await (health if asked else app)(scope, receive, send)

    return with_health
