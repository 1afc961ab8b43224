"""Load a gym's configuration: a TOML or YAML file, or a plain mapping, into `GymSettings`.

Everything that can be wrong is refused here, at start, with the key's path and what is allowed; nothing later guesses.
Fails closed: checkpointing without a control token is an error, not an open control plane.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gym_ckpt.adapters.host import environment_variable
from gym_ckpt.cli.config_checks import check_whole
from gym_ckpt.cli.config_types import typed_settings
from gym_ckpt.errors import ConfigError
from gym_ckpt.settings import GymSettings, ModelSettings, ServerSettings

PATH_KEYS = ("input", "output", "checkpoint_dir")
"""Keys of `collect` that name files; relative ones, as a model server's, are relative to its folder."""
MASKED = "********"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where its values come from. `source`: the file, or `mapping`."""

    settings: GymSettings
    given: Mapping[str, Any]
    source: str


def load(config: str | Path | Mapping[str, Any]) -> Loaded:
    """Read and check a configuration.

    Raises:
        ConfigError: one line with the key's path, what is wrong and what is allowed.
    """
    if isinstance(config, Mapping):
        return load_mapping(config, folder=Path.cwd(), source="mapping")
    path = Path(config)
    return load_mapping(read_file(path), folder=path.resolve().parent, source=str(config))


def load_mapping(given: Mapping[str, Any], *, folder: Path, source: str) -> Loaded:
    """Check a plain mapping; relative paths in it are relative to `folder`. Raises `ConfigError`."""
    settings = typed_settings(given)
    settings = with_token(with_paths(settings, folder))
    check_whole(settings)
    return Loaded(settings, given, source)


def read_file(path: Path) -> Mapping[str, Any]:
    """The mapping that a file holds, by its suffix. Raises `ConfigError`."""
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        near = difflib.get_close_matches(suffix, (".toml", ".yaml", ".yml"), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"{path}: a configuration ends in .toml, .yaml or .yml{hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return _parse_toml(path, text) if suffix == ".toml" else _parse_yaml(path, text)


def _parse_toml(path: Path, text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _parse_yaml(path: Path, text: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(f"{path}: YAML needs the extra 'yaml': pip install 'gym-ckpt[yaml]', or write TOML") from None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold a mapping at the top, not {type(value).__name__}")
    return value


def with_paths(settings: GymSettings, folder: Path) -> GymSettings:
    """The settings with every path absolute."""
    servers = {name: _placed(server, folder) for name, server in settings.servers.items()}
    settings = msgspec.structs.replace(settings, servers=servers)
    if settings.collect is None:
        return settings
    changed = {}
    for key in PATH_KEYS:
        value = getattr(settings.collect, key)
        if value is not None:
            changed[key] = str(folder / value)
    return msgspec.structs.replace(settings, collect=msgspec.structs.replace(settings.collect, **changed))


def _placed(server: ServerSettings, folder: Path) -> ServerSettings:
    if not isinstance(server, ModelSettings) or server.ledger_dir is None:
        return server
    ledger_dir = str(folder / server.ledger_dir)
    token_dir = None if server.token_dir is None else str(folder / server.token_dir)
    return msgspec.structs.replace(server, ledger_dir=ledger_dir, token_dir=token_dir)


def with_token(settings: GymSettings) -> GymSettings:
    """The settings with the token of `control_token_env`, when that is where it stands. Raises `ConfigError`."""
    if settings.control_token is not None and settings.control_token_env is not None:
        raise ConfigError("control_token_env: stands beside control_token; give one of the two")
    if settings.control_token is None and settings.control_token_env is not None:
        token = environment_variable(settings.control_token_env)
        if not token:
            raise ConfigError(
                f"control_token_env: the environment variable {settings.control_token_env!r} is not set or empty"
            )
        settings = msgspec.structs.replace(settings, control_token=token)
    if settings.checkpoint is not None and not settings.control_token:
        raise ConfigError(
            "control_token: is missing, and [checkpoint] needs it: every control route asks for it; "
            "set control_token, or control_token_env to the name of an environment variable that holds it"
        )
    return settings


@dataclass(frozen=True, slots=True)
class Effective:
    """One value of the effective configuration. `source`: `file`, `default` or `environment NAME`."""

    path: str
    value: Any
    source: str


def effective(loaded: Loaded) -> list[Effective]:
    """Every value in effect, in the order of the types, with its source; the token masked."""
    rows: list[Effective] = []
    _walk(msgspec.to_builtins(loaded.settings), loaded.given, "", rows)
    given_as = "mapping" if loaded.source == "mapping" else "file"
    out = []
    for row in rows:
        source = given_as if row.source == "given" else row.source
        value = row.value
        if row.path == "control_token" and value is not None:
            value = MASKED
            if loaded.settings.control_token_env is not None:
                source = f"environment {loaded.settings.control_token_env}"
        out.append(Effective(row.path, value, source))
    return out


def _walk(value: Any, given: Any, path: str, rows: list[Effective]) -> None:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            known = isinstance(given, Mapping) and key in given
            where = f"{path}.{key}" if path else str(key)
            if isinstance(below, dict) and below:
                _walk(below, given[key] if known else None, where, rows)
            else:
                rows.append(Effective(where, below, "given" if known else "default"))
