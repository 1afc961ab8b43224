"""`gym-ckpt serve`: all servers of a configuration under a supervisor, or one of them in this process."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import anyio

from gym_ckpt.adapters.host import die_with_parent, log_to_stderr, open_files_allowed, pid_file, shield_from_interrupt
from gym_ckpt.adapters.supervisor import ServerDied, Supervisor, server_command
from gym_ckpt.cli.config import load
from gym_ckpt.cli.config_checks import check_open_files
from gym_ckpt.cli.config_types import suggestion
from gym_ckpt.cli.tell import tell
from gym_ckpt.errors import ConfigError
from gym_ckpt.limits import SIGNALLED_TOGETHER_S
from gym_ckpt.runtime.groups import Tasks
from gym_ckpt.settings import GymSettings
from gym_ckpt.storage import layout
from gym_ckpt.words import counted

IGNORE_SIGTERM = ("--ignore-sigterm",)


def serve_all(config: str, *, ignore_sigterm: bool = False) -> None:
    """Run every server of `config` until SIGTERM or SIGINT. Raises `ConfigError`, `ServerDied`."""
    settings = load(config).settings
    check_open_files(settings, open_files_allowed())
    run_dir = settings.collect.checkpoint_dir if settings.collect is not None else None
    with pid_file(Path(layout.serve_pid(run_dir))) if run_dir is not None else nullcontext():
        anyio.run(_supervise, str(Path(config).resolve()), settings, ignore_sigterm)


async def _supervise(config: str, settings: GymSettings, ignore_sigterm: bool) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with Supervisor(_log) as servers, Tasks() as tasks:
            tasks.start_soon(_run_servers, servers, config, settings, ignore_sigterm)
            async for number in signals:
                if ignore_sigterm:
                    if number == signal.SIGTERM:
                        tell("SIGTERM: ignored, as --ignore-sigterm says", err=True)
                        continue
                    await servers.kill_all()
                tell(f"{number.name}: draining {counted(len(settings.servers), 'server')}", err=True)
                tasks.cancel_scope.cancel()
                break
            await servers.stop()


async def _run_servers(servers: Supervisor, config: str, settings: GymSettings, ignore_sigterm: bool) -> None:
    for name, server in settings.servers.items():
        command = server_command(config, name, server.url)
        await servers.start(name, replace(command, argv=(*command.argv, *IGNORE_SIGTERM[:ignore_sigterm])))
    await servers.wait_ready()
    for name, server in settings.servers.items():
        tell(f"{name}: ready at {server.url}", err=True)
    try:
        await servers.watch()
    except ServerDied:
        # A batch system signals every process of a step: then this one is about to be told, too, and all is well.
        await anyio.sleep(SIGNALLED_TOGETHER_S)
        raise


def _log(name: str, line: str) -> None:
    tell(f"[{name}] {line}", err=True)


def serve_one(config: str, name: str, *, ignore_sigterm: bool = False) -> None:
    """Run the server `name` of `config` in this process until SIGTERM. Raises `ConfigError`."""
    supervised = die_with_parent()
    if supervised:
        shield_from_interrupt()
    settings = load(config).settings
    if name not in settings.servers:
        raise ConfigError(f"--server: {config} has no server {name!r}; {suggestion(name, settings.servers)}")
    check_open_files(settings, open_files_allowed())
    log_to_stderr()
    anyio.run(_serve_until_told, settings, name, supervised, ignore_sigterm)


async def _serve_until_told(settings: GymSettings, name: str, supervised: bool, ignore_sigterm: bool) -> None:
    # Here and not above: the supervisor needs neither a server nor a protocol.
    from gym_ckpt.adapters.system import production_ports
    from gym_ckpt.runtime.serve import run_server

    async with production_ports() as ports, ports.signals.listen() as signals, Tasks() as tasks:

        def ready() -> None:
            if not supervised:  # or its supervisor says so, once all are
                tell(f"{name}: ready at {settings.url(name)}", err=True)

        async def serve() -> None:
            await run_server(settings, name, ports, ready=ready)
            raise AssertionError(f"server {name} returned without being told to")

        tasks.start_soon(serve)
        async for number in signals:
            if number == "SIGTERM" and not ignore_sigterm:
                tasks.cancel_scope.cancel()  # which drains: see `ports.HttpServer`
                return
