"""The commands `gym-ckpt sim ...`: run one seed, fuzz many, replay a failure, look for planted bugs.

Exit status 1 when anything was found, 130 when Ctrl-C ended it before. Mounted by `gym_ckpt.cli.simulator`, by name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import click

from faults.apps import options_of, with_apps
from faults.bugs import BUGS, unplantable
from faults.draw import PROFILES, draw
from faults.plan import App
from gym_ckpt.cli.endings import INTERRUPTED
from gym_ckpt.cli.numbers import Real, Whole
from gym_ckpt.wire import json
from gym_ckpt.words import counted
from sim.campaign import DOUBLE, FAILURES_MAX, ProgressLine, campaign, show_failure, summary_line
from sim.history import HISTORY, History, kept, trouble_with
from sim.hunt import hunt, hunted
from sim.options import Application, BugName, Picture, Seeds
from sim.picture import html, perfetto
from sim.ray_crew import Cluster
from sim.reference import check_apps
from sim.replay import Recorded, newest, of_file, recorded, refusal, replay_until, short_of, stopped, where_stopped
from sim.replay import replay as play
from sim.report import as_json, place_of, screen
from sim.run import Verdict, run_seed
from sim.stop import Debugger, Until, UntilType
from sim.summary import checkpoints_said

FOUND = 1
SEED = Whole(0, such_as=7)
PROFILE = click.option(
    "--profile",
    type=click.Choice(tuple(PROFILES)),
    default="default",
    show_default=True,
    help="Which faults are drawn.",
)
JSON = click.option("--json", "as_json_", is_flag=True, help="Print one JSON object instead of text for people.")
JOBS = click.option("-j", "--jobs", type=Whole(1, such_as=2), help="Worker processes.  [default: one per core]")
HTML = click.option("--html", "html_", type=Picture(), help="Draw the run: one page.")
PERFETTO = click.option("--perfetto", "perfetto_", type=Picture(), help="The run as a trace for ui.perfetto.dev.")
APP = click.option(
    "--app",
    "apps",
    type=Application(),
    multiple=True,
    help="Run this server from an application or a Gym of yours (docs/simulator/your-own-server.md). Repeatable.",
)
PLANTED = "Plant one of the bugs of faults/bugs.py (`gym-ckpt sim bugs --list` names them)."


@click.command(short_help="Run one seed.")
@click.option("--seed", type=SEED, required=True, help="Everything about the run follows from it.")
@PROFILE
@click.option("--bug", type=BugName(), help=PLANTED)
@APP
@HTML
@PERFETTO
@JSON
def run(
    seed: int,
    profile: str,
    bug: str | None,
    apps: tuple[App, ...],
    html_: Path | None,
    perfetto_: Path | None,
    as_json_: bool,
) -> None:
    """Run one seed: a whole gym, the faults that the seed draws, and the judgement.

    \b
    Examples:
      gym-ckpt sim run --seed 7
      gym-ckpt sim run --seed 7 --profile chaos --json
      gym-ckpt sim run --seed 7 --html run.html
      gym-ckpt sim run --seed 9 --profile endurance --app inventory=examples.letters:build
    """
    plan = with_apps(draw(seed, profile), apps)
    verdict = run_seed(seed, profile, plan=plan, bug=bug, keep_all_rows=True)
    _draw(verdict, _run_command(verdict), html_, perfetto_)
    if as_json_:
        click.echo(json.dumps(as_json(verdict)).decode())
    else:
        click.echo(_told(verdict))
    _exit(verdict)


@click.command(short_help="Run many seeds and judge each.")
@click.option("--seeds", type=Seeds(), help="A..B: from A up to, and without, B.  [default: on from the last campaign]")
@click.option("--seconds", type=Real(such_as=90), help="Stop after so long.  [default without --seeds: 60]")
@click.option("--minutes", type=Real(such_as=30), help="The same in minutes.")
@click.option(
    "--double",
    type=Real(100, such_as=5),
    default=100 * DOUBLE,
    show_default=True,
    metavar="PERCENT",
    help="Runs to do twice, in another process under another PYTHONHASHSEED, and to compare.",
)
@JOBS
@click.option("--bug", type=BugName(), help=f"{PLANTED} Ends at the first seed that finds it.")
@APP
@click.option("--ray", "ray_", metavar="ADDRESS", help="Run on this Ray cluster (the extra `ray`): host:port, or auto.")
@PROFILE
@JSON
def fuzz(
    seeds: range | None,
    seconds: float | None,
    minutes: float | None,
    double: float,
    jobs: int | None,
    bug: str | None,
    apps: tuple[App, ...],
    ray_: str | None,
    profile: str,
    as_json_: bool,
) -> None:
    """Run many seeds over all cores. Failing plans of earlier campaigns come first, until the code passes them.

    Results are kept in .gym-ckpt/campaigns.sqlite; not those with a planted bug or an --app, which are of other code.
    One failure of each kind is shrunk and kept for `sim replay`; the first is shown. Without --seeds a campaign takes
    the seeds that this code has not been run with yet, from the lowest on.

    \b
    Examples:
      gym-ckpt sim fuzz --seeds 0..2000
      gym-ckpt sim fuzz --minutes 30 --profile chaos
      gym-ckpt sim fuzz --seeds 0..10000 --double 100
      gym-ckpt sim fuzz --bug mark-after-stop
      gym-ckpt sim fuzz --seeds 0..300 --app inventory=examples.letters:build
      gym-ckpt sim fuzz --minutes 30 --ray 10.0.0.1:6379
    """
    if minutes is not None:
        if seconds is not None:
            raise click.UsageError("give --seconds or --minutes, not both")
        seconds = 60 * minutes
    if ray_ is not None and jobs is not None:
        raise click.UsageError("-j is for this machine; a Ray cluster runs as many as it has CPUs")
    check_apps(apps)
    history, trouble = _history() if bug is None and not apps else (None, None)
    with history or nullcontext():
        wanted: Iterable[int] = seeds or ()
        if seeds is None:
            wanted, seconds = history.untried(profile) if history else count(), seconds or 60.0
        line = ProgressLine(len(seeds) if seeds is not None and seconds is None else None, seconds)
        summary = campaign(
            wanted,
            profile,
            seconds=seconds,
            jobs=jobs,
            progress=line,
            bug=bug,
            failures_max=FAILURES_MAX if bug is None else 1,
            double=double / 100,
            history=history,
            crew=None if ray_ is None else lambda until: Cluster(ray_, until),
            say=line.say,
            apps=apps,
        )
    line.end()
    for verdict in summary.explained[1:]:
        show_failure(verdict)
    shown = None if summary.first is None else show_failure(summary.first)  # kept last: `sim replay` takes it up
    if as_json_:
        click.echo(summary_line(summary).decode())
    else:
        if shown is not None:
            click.echo(shown + "\n")
        click.echo(summary.words())
    if trouble is not None:
        click.echo(trouble, err=True)
    if summary.interrupted and not summary.figures.failed:
        raise click.exceptions.Exit(INTERRUPTED)
    if not summary.ok:
        raise click.exceptions.Exit(FOUND)


@click.command(short_help="Which plans have failed, and since when they pass.")
@JSON
def failures(as_json_: bool) -> None:
    """List the plans that ever failed in this directory's campaigns, the newest first, with the commits that failed and
    that passed them. Those that nothing has passed yet come first in the next campaign.

    \b
    Example:
      gym-ckpt sim failures
    """
    found = kept()
    if as_json_:
        click.echo(json.dumps([asdict(each) for each in found]).decode())
        return
    for each in found:
        since = f"passes since {each.mended}" if each.mended is not None else "fails still"
        click.echo(f"{each.profile:<12}{each.seed:>10}  {each.invariant:<12}found at {each.found}, {since}")
    click.echo(
        f"failed so far: {counted(len(found), 'plan')}, still failing: {sum(each.mended is None for each in found)}"
    )


def _history() -> tuple[History | None, str | None]:
    """Where results are kept, or why they are not."""
    try:
        return History(), None
    except (sqlite3.Error, OSError) as error:
        return None, f"results are not kept: {trouble_with(HISTORY, error)}"


@click.command(short_help="Bring a kept failure back.")
@click.argument("failure", metavar="[ID]", required=False)
@click.option("--seed", type=SEED, help="Instead of an ID: this seed ...")
@click.option("--plan", type=click.Path(dir_okay=False, path_type=Path), help="... with the plan of this file.")
@click.option("--until", type=UntilType(), help="Stop after this event (1194), or at this virtual time (2.5s).")
@APP
@click.option("--pdb", "pdb_", is_flag=True, help="Stop in a debugger at the violating event (or at --until EVENT).")
@HTML
@PERFETTO
@JSON
def replay(
    failure: str | None,
    seed: int | None,
    plan: Path | None,
    until: Until | None,
    apps: tuple[App, ...],
    pdb_: bool,
    html_: Path | None,
    perfetto_: Path | None,
    as_json_: bool,
) -> None:
    """Run a failure that was kept in .gym-ckpt/failures again, event for event; without an ID the newest, which is the
    one that the last campaign has shown.

    When the code or the libraries have changed since, it says so first and names what changed; the same plan runs all
    the same, and may go another way.

    \b
    Examples:
      gym-ckpt sim replay
      gym-ckpt sim replay default-17
      gym-ckpt sim replay default-17 --until 2.5s
      gym-ckpt sim replay default-17 --pdb
      gym-ckpt sim replay --seed 17 --plan plan.json --html run.html
    """
    if pdb_ and (as_json_ or html_ is not None or perfetto_ is not None):
        raise click.UsageError("--pdb is for a person at the prompt: it draws nothing, and prints no JSON")
    if seed is None and plan is None:
        failure = failure or newest()
        record, command = recorded(failure), f"gym-ckpt sim replay {failure}"
    elif failure is None and seed is not None and plan is not None:
        record, command = of_file(seed, plan), f"gym-ckpt sim replay --seed {seed} --plan {plan}"
    else:
        raise click.UsageError("name a kept failure, or give both --seed and --plan")
    if apps:
        record, command = replace(record, plan=with_apps(record.plan, apps), hash=None), command + options_of(apps)
    if (why := refusal(record)) is not None:
        click.echo(why, err=True)
    if pdb_:
        _debug(record, until)
        return
    verdict = play(record) if until is None else replay_until(record, until)
    if until is None and record.hash not in (None, verdict.hash):
        click.echo("the run went another way than the one that was kept", err=True)
    where = "" if until is None else where_stopped(verdict, until)
    _draw(verdict, command, html_, perfetto_, where)
    if as_json_:
        click.echo(json.dumps(as_json(verdict)).decode())
    else:
        click.echo(_told(verdict, command) if until is None else stopped(verdict, until))
    if until is not None and (short := short_of(verdict, until)) is not None:
        raise click.ClickException(short)
    _exit(verdict)


def _debug(record: Recorded, until: Until | None) -> None:
    """Play it to know where, and again to stop there."""
    verdict = play(record)
    if until is not None:
        event = until.event if until.event is not None else until.count(verdict.rows, 1)
    elif verdict.violations:
        event = place_of(verdict, verdict.violations[0])
    else:
        raise click.ClickException("nothing breaks in this run, so there is nothing to stop at; name an --until")
    debugger = Debugger(event)
    play(record, debugger)
    if not debugger.entered:
        raise click.ClickException(f"the run has only {counted(verdict.events, 'event')}, so it never comes to {event}")
    if not debugger.quit:
        click.echo("the run is over")


@click.command(short_help="Does the campaign find the planted bugs?")
@click.option("--bug", "only", type=BugName(), multiple=True, help="Only this one; may be repeated.")
@click.option("--list", "list_", is_flag=True, help="Only name them, with the intent of each.")
@click.option("--seeds", type=Seeds(), default="0..2000", show_default=True, help="Where to look for each.")
@JOBS
@PROFILE
@JSON
def bugs(only: tuple[str, ...], list_: bool, seeds: range, jobs: int | None, profile: str, as_json_: bool) -> None:
    """Plant each bug of faults/bugs.py and run the ordinary campaign until it is found.

    A bug that nobody finds is a hole in the faults or in the oracle; exit status 1, as where one cannot be planted any
    more. Where another check sees it first, and that of the invariant which it breaks not at all, that is said too.

    \b
    Example:
      gym-ckpt sim bugs
      gym-ckpt sim bugs --list
    """
    names = only or tuple(BUGS)
    if list_:
        if as_json_:
            listed = [{"bug": name, "intent": BUGS[name].intent, "ground": BUGS[name].ground} for name in names]
            click.echo(json.dumps(listed).decode())
        else:
            click.echo("\n".join(f"{name:<34}{BUGS[name].intent}" for name in names))
        return
    rows: list[dict[str, object]] = []
    interrupted = False
    for name in names:
        if (why := unplantable(name)) is not None:
            raise click.ClickException(f"{name} cannot be planted: {why}")
        row = hunt(name, seeds, profile, jobs)
        interrupted = row is None
        if row is None:
            break
        rows.append(row)
        click.echo(hunted(row), err=as_json_)
    found = [row for row in rows if row["found"]]
    if as_json_:
        click.echo(json.dumps({"planted": len(rows), "found": len(found), "bugs": rows}).decode())
    else:
        click.echo(f"{len(found)} of {len(rows)} found{', interrupted' if interrupted else ''}")
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if len(found) < len(rows):
        raise click.exceptions.Exit(FOUND)


def _draw(verdict: Verdict, command: str, page: Path | None, trace: Path | None, stopped_at: str = "") -> None:
    """Write the pictures that were asked for, and say where they are. Raises `click.ClickException`."""
    if page is not None:
        _keep(page, html(verdict, command, stopped_at))
    if trace is not None:
        _keep(trace, perfetto(verdict))


def _keep(file: Path, drawn: bytes) -> None:
    try:
        file.write_bytes(drawn)
    except OSError as error:
        raise click.ClickException(f"{error.filename} cannot be written: {error.strerror}") from None
    click.echo(f"drawn: {file}", err=True)


def _run_command(verdict: Verdict) -> str:
    bug = f" --bug {verdict.bug}" if verdict.bug else ""
    own = options_of(verdict.plan.setup.apps)
    return f"gym-ckpt sim run --seed {verdict.seed} --profile {verdict.profile}{bug}{own}"


def _told(verdict: Verdict, command: str | None = None) -> str:
    if verdict.violations:
        return screen(verdict, command or _run_command(verdict))
    struck = ", ".join(f"{name} {count}" for name, count in verdict.faults.items()) or "none"
    calm = "" if verdict.faults else "no fault struck, and "
    events = counted(verdict.events, "event")
    lines = [f"seed {verdict.seed}: {calm}nothing broke in {events} and {verdict.virtual_s:g} virtual seconds"]
    lines += [f"  {line}" for line in verdict.plan.words()]
    lines += [checkpoints_said(verdict.checkpoints), f"faults that struck: {struck}"]
    if void := [fault for fault in verdict.plan.faults if fault not in verdict.hit]:
        lines += ["planned, and never struck:", *(f"  {fault.words()}" for fault in void)]
    lines.append(f"hash {verdict.hash}")
    return "\n".join(lines)


def _exit(verdict: Verdict) -> None:
    if not verdict.ok:
        raise click.exceptions.Exit(FOUND)
