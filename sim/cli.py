"""The commands `gym-ckpt sim ...`: run one seed, fuzz many, replay a failure, look for planted bugs.

Exit status 1 when anything was found. Mounted by `gym_ckpt.cli.simulator`, by name.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from faults.bugs import BUGS
from faults.draw import PROFILES
from gym_ckpt.wire import json
from sim.campaign import ProgressLine, Summary, campaign, replay_command, show_failure, summary_line
from sim.replay import recorded, replay_file
from sim.replay import replay as replay_recorded
from sim.report import as_json, screen
from sim.run import Verdict, run_seed

FOUND = 1
WITHOUT_END = 1 << 40
PROFILE = click.option(
    "--profile",
    type=click.Choice(tuple(PROFILES)),
    default="default",
    show_default=True,
    help="Which faults are drawn.",
)
JSON = click.option("--json", "as_json_", is_flag=True, help="Print one JSON object instead of text for people.")
JOBS = click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes.  [default: one per core]")


class Seeds(click.ParamType[range]):
    """`A..B`: from A up to, and without, B."""

    name = "A..B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Raises `click.BadParameter`."""
        if isinstance(value, range):
            return value
        first, dots, last = str(value).partition("..")
        if not (dots and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
            self.fail(f"{value!r} is no range of seeds such as 0..2000", param, ctx)
        return range(int(first), int(last))


@click.command(short_help="Run one seed.")
@click.option("--seed", type=click.IntRange(0), required=True, help="Everything about the run follows from it.")
@PROFILE
@click.option("--bug", type=click.Choice(tuple(BUGS)), help="Plant one of the bugs of faults/bugs.py.")
@JSON
def run(seed: int, profile: str, bug: str | None, as_json_: bool) -> None:
    """Run one seed: a whole gym, the faults that the seed draws, and the judgement.

    \b
    Examples:
      gym-ckpt sim run --seed 7
      gym-ckpt sim run --seed 7 --profile chaos --json
    """
    verdict = run_seed(seed, profile, bug=bug, keep_all_rows=True)
    if as_json_:
        click.echo(json.dumps(as_json(verdict)).decode())
    else:
        click.echo(_told(verdict))
    _exit(verdict)


@click.command(short_help="Run many seeds and judge each.")
@click.option("--seeds", type=Seeds(), help="A..B: from A up to, and without, B.  [default: 0.. for --seconds 60]")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so many seconds.")
@JOBS
@PROFILE
@JSON
def fuzz(seeds: range | None, seconds: float | None, jobs: int | None, profile: str, as_json_: bool) -> None:
    """Run many seeds over all cores. The first failure is shrunk, shown, and kept for `sim replay`.

    \b
    Examples:
      gym-ckpt sim fuzz --seeds 0..2000
      gym-ckpt sim fuzz --seconds 600 --profile chaos
    """
    if seeds is None:
        seeds, seconds = range(WITHOUT_END), seconds or 60.0
    line = ProgressLine(len(seeds) if seconds is None else None)
    summary = campaign(seeds, profile, seconds=seconds, jobs=jobs, progress=line)
    line.end()
    shown = None if summary.first is None else show_failure(summary.first)
    if as_json_:
        click.echo(summary_line(summary).decode())
    else:
        if shown is not None:
            click.echo(shown + "\n")
        click.echo(summary.words())
    if not summary.ok:
        raise click.exceptions.Exit(FOUND)


@click.command(short_help="Bring a kept failure back.")
@click.argument("failure", metavar="[ID]", required=False)
@click.option("--seed", type=click.IntRange(0), help="Instead of an ID: this seed ...")
@click.option("--plan", type=click.Path(dir_okay=False, path_type=Path), help="... with the plan of this file.")
@JSON
def replay(failure: str | None, seed: int | None, plan: Path | None, as_json_: bool) -> None:
    """Run a failure that was kept in .gym-ckpt/failures again, event for event.

    When the code has changed since, it says so first: the same plan may then go another way.

    \b
    Examples:
      gym-ckpt sim replay default-17
      gym-ckpt sim replay --seed 17 --plan plan.json
    """
    if (failure is None) == (seed is None and plan is None) or (seed is None) != (plan is None):
        raise click.UsageError("name a kept failure, or give both --seed and --plan")
    if failure is not None:
        record = recorded(failure)
        for change in record.changed:
            click.echo(f"{change}: this may not be the same run", err=True)
        verdict = replay_recorded(record)
        if verdict.hash != record.hash:
            click.echo("the run went another way than the one that was kept", err=True)
    else:
        assert seed is not None and plan is not None
        verdict = replay_file(seed, plan)
    click.echo(json.dumps(as_json(verdict)).decode() if as_json_ else _told(verdict, failure))
    _exit(verdict)


@click.command(short_help="Does the campaign find the planted bugs?")
@click.option("--bug", "only", type=click.Choice(tuple(BUGS)), multiple=True, help="Only this one; may be repeated.")
@click.option("--seeds", type=Seeds(), default="0..2000", show_default=True, help="Where to look for each.")
@JOBS
@PROFILE
@JSON
def bugs(only: tuple[str, ...], seeds: range, jobs: int | None, profile: str, as_json_: bool) -> None:
    """Plant each bug of faults/bugs.py and run the ordinary campaign until it is found.

    A bug that nobody finds is a hole in the faults or in the oracle; exit status 1.

    \b
    Example:
      gym-ckpt sim bugs
    """
    rows: list[dict[str, object]] = []
    for name in only or BUGS:
        began = time.perf_counter()
        summary = campaign(seeds, profile, jobs=jobs, bug=name, failures_max=1, explain=False)
        rows.append(_hunt(name, summary, time.perf_counter() - began))
        if not as_json_:
            click.echo(_hunted(rows[-1]))
    found = [row for row in rows if row["found"]]
    if as_json_:
        click.echo(json.dumps({"planted": len(rows), "found": len(found), "bugs": rows}).decode())
    else:
        click.echo(f"{len(found)} of {len(rows)} found")
    if len(found) < len(rows):
        raise click.exceptions.Exit(FOUND)


def _hunt(name: str, summary: Summary, seconds: float) -> dict[str, object]:
    failed = summary.figures.failed
    return {
        "bug": name,
        "intent": BUGS[name].intent,
        "ground": BUGS[name].ground,
        "found": bool(failed),
        "seed": failed[0].seed if failed else None,
        "seeds": summary.figures.seeds,
        "seconds": round(seconds, 2),
        "invariant": failed[0].violation.invariant if failed else None,
    }


def _hunted(row: dict[str, object]) -> str:
    how = f"seed {row['seed']}, by {row['invariant']}" if row["found"] else f"NOT FOUND in {row['seeds']} seeds"
    return f"{row['bug']:<34}{how:<40}{row['seconds']:>8} s"


def _told(verdict: Verdict, failure: str | None = None) -> str:
    if verdict.violations:
        again = f"--profile {verdict.profile}{f' --bug {verdict.bug}' if verdict.bug else ''}"
        command = f"gym-ckpt sim run --seed {verdict.seed} {again}"
        return screen(verdict, command if failure is None else replay_command(verdict))
    struck = ", ".join(f"{name} {count}" for name, count in verdict.faults.items()) or "none"
    lines = [f"seed {verdict.seed}: nothing broke in {verdict.events} events and {verdict.virtual_s:g} virtual seconds"]
    lines += [f"  {line}" for line in verdict.plan.words()]
    lines += [f"faults that struck: {struck}", f"hash {verdict.hash}"]
    return "\n".join(lines)


def _exit(verdict: Verdict) -> None:
    if not verdict.ok:
        raise click.exceptions.Exit(FOUND)
