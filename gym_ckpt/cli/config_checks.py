"""Whether typed settings fit together: references between servers, urls, combinations. Raises `ConfigError` only."""

from __future__ import annotations

import re

from gym_ckpt.cli.config_files import check_files
from gym_ckpt.cli.config_types import SERVER_KINDS, suggestion
from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import FILES_PER_ROLLOUT, FILES_RESERVED, INSTANCE_MAX_BYTES
from gym_ckpt.settings import (
    AgentSettings,
    EnvironmentSettings,
    GymSettings,
    InferenceSettings,
    ModelSettings,
    ResourcesSettings,
    ServerSettings,
)
from gym_ckpt.words import counted

PORT_MAX = 65535
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_TOKEN = re.compile(r"[!-~]+(?: +[!-~]+)*", re.ASCII)
_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)"
_BACK_END = re.compile(rf"https?://{_HOST}(?::([0-9]{{1,5}}))?(?:/[A-Za-z0-9._~-]+)*", re.ASCII)
_URL = re.compile(rf"http://{_HOST}:([0-9]{{1,5}})", re.ASCII)


def check_whole(settings: GymSettings) -> None:
    """Raises `ConfigError` naming the first key that does not fit."""
    _names_and_urls(settings)
    if settings.control_token and not _TOKEN.fullmatch(settings.control_token):
        raise ConfigError("control_token: must be printable ASCII without spaces at its ends, as a header carries it")
    for name, server in settings.servers.items():
        _references(settings, name, server)
    _one_ledger(settings)
    _collect(settings)


def check_open_files(settings: GymSettings, allowed: float) -> None:
    """Whether a process that may have `allowed` files open can hold the calls of all rows in flight.

    One that cannot accept a connection answers no control call either, so that no checkpoint would be taken. Raises
    `ConfigError`.
    """
    if settings.collect is None:
        return
    rows = settings.collect.concurrency
    needed = rows * FILES_PER_ROLLOUT + FILES_RESERVED
    if needed > allowed:
        raise ConfigError(
            f"collect.concurrency: {counted(rows, 'row')} in flight may need {needed} open files in one process, and "
            f"{allowed:g} are allowed: raise the limit (`ulimit -Hn`), or lower it to "
            f"{max(1, int((allowed - FILES_RESERVED) // FILES_PER_ROLLOUT))}"
        )


def _names_and_urls(settings: GymSettings) -> None:
    if not settings.servers:
        raise ConfigError("servers: is missing; a gym has at least one server: [servers.NAME] with kind and url")
    taken: dict[str, str] = {}
    folded: dict[str, str] = {}
    for name, server in settings.servers.items():
        path = f"servers.{name}"
        if len(name) > INSTANCE_MAX_BYTES or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: a server's name is part of a path: letters, digits, '.', '_' and '-', starting with a letter "
                f"or digit, at most {INSTANCE_MAX_BYTES} characters"
            )
        if (other := folded.setdefault(name.casefold(), name)) != name:
            raise ConfigError(f"{path}: differs from servers.{other} in case only; their directories could be one")
        _check_url(f"{path}.url", server.url)
        if server.url in taken:
            raise ConfigError(f"{path}.url: {server.url} is the url of servers.{taken[server.url]} already")
        taken[server.url] = name


def _check_url(path: str, url: str) -> None:
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(f"{path}: must be http://host:port without a path, not {url!r}")
    _check_port(path, url, match.group(1))


def _check_port(path: str, url: str, port: str) -> None:
    if not 1 <= int(port) <= PORT_MAX:
        raise ConfigError(f"{path}: the port of {url!r} is out of range: 1 to {PORT_MAX}")


def _check_back_end(path: str, url: str, settings: GymSettings) -> None:
    """An inference server of anybody: `https` and a path before `/v1` are its own affair."""
    match = _BACK_END.fullmatch(url)
    if match is None or url.endswith("/v1"):
        raise ConfigError(f"{path}: must be http://host:port, or https, or with a path before /v1, not {url!r}")
    if match.group(1) is not None:
        _check_port(path, url, match.group(1))
    for name, server in settings.servers.items():
        if server.url == url and not isinstance(server, InferenceSettings):
            raise ConfigError(f"{path}: {url} is the url of servers.{name}, which is no inference server")


def _references(settings: GymSettings, name: str, server: ServerSettings) -> None:
    path = f"servers.{name}"
    match server:
        case EnvironmentSettings():
            _refers(settings, f"{path}.agent", server.agent, AgentSettings)
            _refers(settings, f"{path}.resources", server.resources, ResourcesSettings)
            if server.verifier is not None:
                _refers(settings, f"{path}.verifier", server.verifier, ResourcesSettings)
                _stateless(settings, f"{path}.verifier", server.verifier)
        case AgentSettings():
            _models(settings, name, server)
        case ModelSettings():
            for index, worker in enumerate(server.workers):
                where = f"{path}.workers[{index}]"
                if "://" in worker:
                    _check_back_end(where, worker, settings)
                else:
                    _refers(settings, where, worker, InferenceSettings)
            if len(set(settings.worker_urls(server))) < len(server.workers):
                raise ConfigError(f"{path}.workers: names a worker twice")
            if server.token_dir is not None and server.ledger_dir is None:
                raise ConfigError(f"{path}.token_dir: needs {path}.ledger_dir: without a ledger nothing is captured")
            if server.token_dir is not None and server.token_dir == server.ledger_dir:
                raise ConfigError(f"{path}.token_dir: is {path}.ledger_dir, too, and each keeps locks: name another")
        case ResourcesSettings():
            _known_gym(f"{path}.gym", server.gym)
            _own_application(f"{path}.app", server)
        case InferenceSettings():
            pass


def _models(settings: GymSettings, name: str, agent: AgentSettings) -> None:
    settings.check_gated(name)
    for index, model in enumerate(agent.models):
        path = f"servers.{name}.model" + ("" if isinstance(agent.model, str) else f"[{index}]")
        _refers(settings, path, model, ModelSettings)
    if len(set(agent.models)) < len(agent.models):
        raise ConfigError(f"servers.{name}.model: names a server twice")


def _one_ledger(settings: GymSettings) -> None:
    """All model servers of a gym share one ledger and one token store, or none captures."""
    first: tuple[str, ModelSettings] | None = None
    for name, server in settings.servers.items():
        if not isinstance(server, ModelSettings):
            continue
        if first is None:
            first = name, server
        for key in ("ledger_dir", "token_dir"):
            ours, theirs = getattr(server, key), getattr(first[1], key)
            if ours != theirs:
                raise ConfigError(
                    f"servers.{name}.{key}: is {ours!r} and that of servers.{first[0]} is {theirs!r}: the model "
                    "servers of a gym share one, or none has it"
                )


def _stateless(settings: GymSettings, path: str, name: str) -> None:
    """A verifier gets no session. Of somebody else's gym only its server knows."""
    from gym_ckpt.gyms import SHIPPED, StateMode

    server = settings.servers[name]
    assert isinstance(server, ResourcesSettings), "it was looked up as one"
    if server.app is None and server.gym in SHIPPED and SHIPPED[server.gym].state_mode is not StateMode.STATELESS:
        raise ConfigError(f"{path}: the gym {server.gym} of {name!r} verifies sessions; a verifier has none")


def _known_gym(path: str, gym: str) -> None:
    """Somebody else's gym (`package.module:Class`) is imported by the server that runs it, not by every command."""
    from gym_ckpt.gyms import SHIPPED

    if gym not in SHIPPED and ":" not in gym:
        raise ConfigError(f"{path}: there is no gym {gym!r}; {suggestion(gym, SHIPPED)}, or package.module:Class")


def _own_application(path: str, server: ResourcesSettings) -> None:
    """As with a gym: only its form is looked at here."""
    if server.app is not None and not all(server.app.partition(":")):
        raise ConfigError(f"{path}: must be package.module:factory, not {server.app!r}")


def _refers(settings: GymSettings, path: str, name: str, kind: type[ServerSettings]) -> None:
    found = settings.servers.get(name)
    wanted = next(word for word, cls in SERVER_KINDS.items() if cls is kind)
    if isinstance(found, kind):
        return
    fitting = [each for each, server in settings.servers.items() if isinstance(server, kind)]
    if found is None:
        raise ConfigError(f"{path}: there is no server {name!r}; {suggestion(name, fitting)}")
    actual = next(word for word, cls in SERVER_KINDS.items() if isinstance(found, cls))
    raise ConfigError(
        f"{path}: {name!r} is of kind {actual}, and this must be of kind {wanted}; {suggestion(name, fitting)}"
    )


def _collect(settings: GymSettings) -> None:
    collect = settings.collect
    if collect is None:
        return
    _refers(settings, "collect.environment", collect.environment, EnvironmentSettings)
    collect.check_together()
    if collect.checkpoint_dir is not None and settings.checkpoint is None:
        raise ConfigError(
            "collect.checkpoint_dir: needs a [checkpoint] table (it may be empty): without one no server can checkpoint"
        )
    check_files(collect)
