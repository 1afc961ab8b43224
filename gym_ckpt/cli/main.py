"""The command `gym-ckpt`: verbs, options, help, and how errors leave the process.

Exit status: 0 only when what was asked for happened, 1 when it did not, 2 for a usage or configuration error. An error
is one line on stderr that says what and how to mend it; the traceback only with `--debug`. Everything heavy is imported
inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from gym_ckpt.adapters.streams import keep_standard_streams, let_go_of_streams
from gym_ckpt.cli.endings import DID_NOT_HAPPEN, USAGE_ERROR, Said, ending_of
from gym_ckpt.cli.numbers import Whole
from gym_ckpt.cli.simulator import SimulatorGroup
from gym_ckpt.cli.tell import tell

CONFIG = click.argument("config", type=click.Path(dir_okay=False))
DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text for people.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="gym-ckpt", message="%(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error. Works after the verb, too.")
def cli(debug: bool) -> None:
    """Keep reinforcement-learning rollouts alive through crashes and preemptions, exactly once.

    \b
    Start here:
      gym-ckpt demo                    kill everything in the middle, continue, compare
      gym-ckpt serve gym.toml          run the servers of a configuration
      gym-ckpt collect gym.toml        collect rollouts with checkpoints
    """


@cli.command(short_help="Kill a whole gym in the middle, continue, compare.")
@click.option(
    "--rollouts", type=Whole(4, 10_000, such_as=100), default=24, show_default=True, help="How many to collect."
)
@JSON
@click.option(
    "--keep",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Keep configuration, outputs, checkpoints and logs in DIR (new or empty) and say where.",
)
def demo(rollouts: int, as_json: bool, keep: str | None) -> None:
    """Kill a whole gym in the middle of its rollouts, continue, and compare.

    Starts a real gym on loopback, one process per server, and collects rollouts; takes a checkpoint while most of them
    are in flight; SIGKILLs every process, the collector included; restarts and restores; and compares every row with an
    undisturbed run of the same input. Exit status 1, with the reason, when anything differs.

    \b
    Examples:
      gym-ckpt demo
      gym-ckpt demo --rollouts 100 --keep /tmp/demo
      gym-ckpt demo --json | jq .ok
    """
    from gym_ckpt.cli.demo import run_demo

    if not run_demo(rollouts, as_json=as_json, keep=keep):
        raise click.exceptions.Exit(DID_NOT_HAPPEN)


@cli.command()
@CONFIG
@click.option("--server", metavar="NAME", help="Run this one server in this process instead of all under a supervisor.")
@click.option(
    "--ignore-sigterm",
    is_flag=True,
    help="Outlive a SIGTERM that goes to every process of a job; Ctrl-C and SIGKILL end it, at once.",
)
def serve(config: str, server: str | None, ignore_sigterm: bool) -> None:
    """Run the servers of CONFIG, one process each, until SIGTERM.

    Waits until every server answers its health route and names the one that does not. SIGTERM (or Ctrl-C) drains all
    servers and exits 0. When a server dies, the others are stopped and the exit status is 1. With --ignore-sigterm the
    servers are there for the collector's last checkpoint when a batch system signals everything (examples/slurm).

    \b
    Examples:
      gym-ckpt serve gym.toml
      gym-ckpt serve gym.toml --server policy
    """
    from gym_ckpt.cli.serve import serve_all, serve_one

    if server is None:
        serve_all(config, ignore_sigterm=ignore_sigterm)
    else:
        serve_one(config, server, ignore_sigterm=ignore_sigterm)


@cli.command(short_help="Collect rollouts, with checkpoints.")
@CONFIG
@click.option(
    "--resume/--no-resume",
    default=None,
    help="Override collect.resume_from_cache: continue the latest checkpoint, or start over.",
)
@JSON
def collect(config: str, resume: bool | None, as_json: bool) -> None:
    """Collect rollouts as the [collect] table of CONFIG says; the servers must be running.

    SIGUSR1 takes a checkpoint and goes on; SIGTERM takes one and stops with status 0; a second SIGTERM stops at once.

    \b
    Examples:
      gym-ckpt collect gym.toml
      gym-ckpt collect gym.toml --resume --json
    """
    from gym_ckpt.cli.collect import run_collect

    status = run_collect(config, resume=resume, as_json=as_json)
    if status:
        raise click.exceptions.Exit(status)


@cli.command(short_help="Ask a running collector for a checkpoint.")
@DIRECTORY
def checkpoint(directory: str) -> None:
    """Ask the collector that owns DIR for a checkpoint now; it goes on afterwards.

    DIR is the collector's checkpoint_dir. Returns once the signal is sent; `gym-ckpt inspect DIR` shows when the
    checkpoint is published.

    \b
    Example:
      gym-ckpt checkpoint runs/eval
    """
    from gym_ckpt.cli.signals import signal_collector

    click.echo(signal_collector(directory, "SIGUSR1"))


@cli.command(short_help="Ask a running collector for a checkpoint and to stop.")
@DIRECTORY
def stop(directory: str) -> None:
    """Ask the collector that owns DIR for a checkpoint, and to stop after it.

    \b
    Example:
      gym-ckpt stop runs/eval
    """
    from gym_ckpt.cli.signals import signal_collector

    click.echo(signal_collector(directory, "SIGTERM"))


@cli.group()
def config() -> None:
    """Look at a configuration."""


@config.command("show")
@CONFIG
@JSON
def config_show(config: str, as_json: bool) -> None:
    """Check CONFIG and print every value in effect with where it comes from; the token is masked.

    \b
    Example:
      gym-ckpt config show gym.toml
    """
    from gym_ckpt.cli.show import show_config

    click.echo(show_config(config, as_json=as_json))


@cli.command(short_help="Show what a checkpoint directory holds.")
@DIRECTORY
@click.option(
    "--verify", is_flag=True, help="Read every byte against its digest; exit status 1 when anything is wrong."
)
@click.option(
    "--episode",
    metavar="ID",
    help="Show one episode, with its staged keys: a rollout id, or a capture key such as row-7-a1.",
)
@click.option(
    "--tokens",
    metavar="TOKEN_DIR",
    help="With --verify: read the staged tokens that the checkpoints need, too, in a policy-model server's token_dir.",
)
@click.option(
    "--staged-keys",
    is_flag=True,
    help="List the staged keys of all checkpoints, one a line; with --json, as `sweep` of the ledger takes them.",
)
@JSON
def inspect(
    directory: str, verify: bool, episode: str | None, tokens: str | None, staged_keys: bool, as_json: bool
) -> None:
    """Show what the run directory DIR (the collector's checkpoint_dir) holds and which checkpoint is published.

    \b
    Examples:
      gym-ckpt inspect runs/eval --verify
      gym-ckpt inspect runs/eval --verify --tokens runs/ledger/tokens
      gym-ckpt inspect runs/eval --episode row-7 --json
      gym-ckpt inspect runs/eval --staged-keys --json
    """
    from gym_ckpt.cli.inspect import inspect_directory
    from gym_ckpt.cli.staged_keys import list_staged_keys

    if staged_keys:
        if verify or tokens is not None or episode is not None:
            raise click.UsageError("--staged-keys: stands alone, or with --json")
        click.echo(list_staged_keys(directory, as_json=as_json))
        return
    text, sound = inspect_directory(directory, verify=verify, episode=episode, as_json=as_json, tokens=tokens)
    click.echo(text)
    if not sound:
        raise click.exceptions.Exit(DID_NOT_HAPPEN)


@cli.group(cls=SimulatorGroup, short_help="Run a whole gym in the deterministic simulator.")
def sim() -> None:
    """Run a whole gym in the deterministic simulator (from a source checkout).

    \b
    Examples:
      gym-ckpt sim run --seed 7
      gym-ckpt sim fuzz --seeds 0..2000 --profile default
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. `--debug` is taken wherever it stands."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    if words[:1] == ["collect"]:  # its imports take seconds on a busy machine: a signal waits until it listens
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    keep_standard_streams()
    status = run(words, debug="--debug" in given)
    for late in (*SIGNALS, signal.SIGINT):  # all is said: one that comes now would only change the status
        signal.signal(late, signal.SIG_IGN)
    let_go_of_streams()
    sys.exit(status)


def run(words: Sequence[str], *, debug: bool = False) -> int:
    """The exit status of a command line; errors are printed as one line, or raised with `debug`."""
    try:
        result = cli.main(list(words), prog_name="gym-ckpt", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except Said as said:
        if debug and said.__cause__ is not None:
            raise said.__cause__ from None
        return said.status
    except click.UsageError as error:
        if error.format_message().startswith("Usage: "):  # no verb: click raises the help
            click.echo(error.format_message(), err=True)
            return USAGE_ERROR
        hint = f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""
        _complain(f"{error.format_message()}{hint}")
        return USAGE_ERROR
    except (click.Abort, KeyboardInterrupt) as error:
        return _failed(error, False)
    except Exception as error:
        return _failed(error, debug)


def _failed(error: BaseException, debug: bool) -> int:
    if debug:
        raise error
    status, line = ending_of(error)
    _complain(line)
    return status


def _complain(text: str) -> None:
    tell(f"gym-ckpt: {text}", err=True)
