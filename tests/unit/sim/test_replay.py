"""A failure's first screen, what it leaves behind, and how it comes back: whole, up to a point, in a debugger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from faults.bugs import BUGS
from faults.plan import dump
from gym_ckpt.cli.main import run
from gym_ckpt.errors import ConfigError
from gym_ckpt.wire import json
from gym_ckpt.words import counted
from sim import report
from sim.oracle import Violation
from sim.replay import of_file, recorded, refusal, replay, replay_until
from sim.report import last_rows, screen, write_artefact
from sim.run import Verdict, run_seed
from sim.stop import Until
from tests.unit.sim.planted import BUG, failure

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def failing() -> Verdict:
    return failure()


@pytest.fixture
def kept(failing: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its directory, in a folder that is the present one."""
    monkeypatch.chdir(tmp_path)
    return write_artefact(failing)


# ------------------------------------------------------------------------------------------------------ the screen


def test_the_first_screen_says_four_things_and_no_more(failing: Verdict) -> None:
    first = failing.violations[0]
    lines = screen(failing, "gym-ckpt sim replay X").splitlines()
    assert lines[0].startswith(f"{first.invariant} broken at {first.t:.3f} s by {first.node} (seed {failing.seed}")
    assert lines[1:3] == [f"  seen: {first.seen}", f"  must: {first.must}"]
    blocks = [block.splitlines() for block in "\n".join(lines).split("\n\n")]
    heads = ["replay", "plan, run twice and broken the same, event for event", "the last 20 events"]
    assert [block[0].split(":")[0] for block in blocks[1:]] == heads
    assert blocks[1] == ["replay: gym-ckpt sim replay X"]
    assert blocks[2][1:] == [f"  {line}" for line in failing.plan.words()]
    assert len(blocks[3]) == 1 + report.EVENTS_SHOWN
    violating = failing.rows[first.event_index - 1]
    assert violating.event in blocks[3][-1] and blocks[3][-1].split()[0] == f"{violating.t:.6f}"
    assert len(lines) < 50 and max(map(len, lines)) <= 160


def test_what_no_event_shows_ends_at_its_time(failing: Verdict) -> None:
    t = failing.rows[200].t
    rows = last_rows(failing, Violation("RUN-died", t, "agent", -1, "it died", "it lives"))
    assert len(rows) == report.EVENTS_SHOWN and rows[-1].t <= t < failing.rows[failing.rows.index(rows[-1]) + 1].t


def test_a_long_sight_is_cut(failing: Verdict) -> None:
    long = replace(failing, violations=(replace(failing.violations[0], seen="x" * 10_000),))
    assert len(screen(long, "")) < 6000


# ------------------------------------------------------------------------------------------------------ what is kept


def test_the_directory_holds_seed_plan_versions_trace_and_picture(kept: Path, failing: Verdict) -> None:
    assert sorted(each.name for each in kept.iterdir()) == [
        "failure.json",
        "plan.json",
        "timeline.html",
        "trace.jsonl",
    ]
    about = json.loads((kept / "failure.json").read_bytes())
    assert about["seed"] == failing.seed and about["versions"]["trio"] and "sim/run.py" in about["files"]
    assert (kept / "trace.jsonl").read_bytes().count(b"\n") == failing.events
    assert b"gym-ckpt sim replay" in (kept / "timeline.html").read_bytes()


def test_it_comes_back_event_for_event(kept: Path, failing: Verdict) -> None:
    record = recorded(kept.name)
    assert record.changed == () and refusal(record) is None
    again = replay(record)
    assert (again.hash, again.events, again.violations) == (failing.hash, failing.events, failing.violations)
    assert replay(of_file(failing.seed, kept / "plan.json")).ok  # the plan without the planted bug


def change(kept: Path, *path: str, to: object) -> None:
    """Pretend that the failure was kept when this was different."""
    about = json.loads((kept / "failure.json").read_bytes())
    at = about
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = to
    (kept / "failure.json").write_bytes(json.dumps(about))


def test_changed_code_is_named_and_the_plan_runs_all_the_same(
    kept: Path, failing: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    change(kept, "versions", "sources", to="other")
    change(kept, "files", "gym_ckpt/limits.py", to="other")
    change(kept, "versions", "trio", to="0.1")
    assert run(["sim", "replay", kept.name]) == 1
    printed = capsys.readouterr()
    assert "this cannot be the run that was kept" in printed.err
    assert "gym_ckpt/limits.py has changed" in printed.err and "and was 0.1" in printed.err
    assert printed.out.startswith(f"{failing.violations[0].invariant} broken at")


def test_many_changed_files_are_counted(kept: Path) -> None:
    change(kept, "versions", "sources", to="other")
    change(kept, "files", to={"gone.py": "1"})
    (changed,) = recorded(kept.name).changed
    assert re.fullmatch(r"changed since: \d+ source files", changed), changed


def test_a_run_that_goes_another_way_is_told(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(kept, "hash", to="0" * 32)
    assert run(["sim", "replay", kept.name]) == 1
    assert "the run went another way" in capsys.readouterr().err


def test_what_is_not_kept_is_refused_with_what_is(kept: Path) -> None:
    with pytest.raises(ConfigError, match=f"no kept failure 'nobody'.*kept: {kept.name}"):
        recorded("nobody")


# ------------------------------------------------------------------------------------------------------ stopping


def test_until_an_event(kept: Path, failing: Verdict) -> None:
    stopped = replay_until(recorded(kept.name), Until(event=120))
    assert stopped.rows == failing.rows[:120] and stopped.violations == ()
    place = failing.violations[0].event_index
    assert replay_until(recorded(kept.name), Until(event=place)).violations[0] == failing.violations[0]


def test_until_a_time(kept: Path, failing: Verdict) -> None:
    t = failing.rows[150].t
    stopped = replay_until(recorded(kept.name), Until(t=t))
    assert stopped.rows == tuple(row for row in failing.rows if row.t <= t)


def test_until_on_the_command_line(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "replay", kept.name, "--until", "120"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("stopped after event 120: 120 events") and len(printed.splitlines()) == 23
    assert run(["sim", "replay", kept.name, "--until", "soon"]) == 2
    assert "neither the number of an event (1194) nor a time (2.5s)" in capsys.readouterr().err
    assert run(["sim", "replay", kept.name, "--until", "0"]) == 2
    assert "events are counted from 1; the moment at which a run begins is 0s" in capsys.readouterr().err
    assert run(["sim", "replay", kept.name, "--until", "0s"]) == 0
    assert capsys.readouterr().out.startswith("stopped after 0 s: ")


@pytest.mark.parametrize("until", ["120", "0.5s"])
def test_the_picture_of_a_stopped_run_does_not_say_that_nothing_breaks(kept: Path, tmp_path: Path, until: str) -> None:
    file = tmp_path / "stopped.html"
    assert run(["sim", "replay", kept.name, "--until", until, "--html", str(file)]) == 0
    words = "event 120" if until == "120" else "0.5 s"
    assert f'"stopped":"stopped after {words}"' in file.read_text(encoding="utf-8")
    assert '"stopped":""' in (kept / "timeline.html").read_text(encoding="utf-8")


def test_until_beyond_the_end_is_not_said_to_stop_there(
    kept: Path, failing: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    for until in (str(failing.events + 1), "90000s"):
        assert run(["sim", "replay", kept.name, "--until", until]) == 1
        printed = capsys.readouterr()
        assert printed.out.startswith("the run is over: ")
        assert f"the run has only {counted(failing.events, 'event')}, and is over before" in printed.err
    assert run(["sim", "replay", kept.name, "--until", str(failing.events)]) == 1, "it has failed by then"
    assert "has only" not in capsys.readouterr().err


@pytest.mark.parametrize("also", [("--json",), ("--html", "x.html"), ("--perfetto", "x.json")])
def test_a_debugger_neither_draws_nor_prints_json(
    also: tuple[str, ...], kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sim", "replay", kept.name, "--pdb", *also]) == 2
    assert "--pdb is for a person at the prompt" in capsys.readouterr().err


def test_pictures_on_the_command_line(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, trace = tmp_path / "run.html", tmp_path / "run.json"
    assert run(["sim", "replay", kept.name, "--html", str(page), "--perfetto", str(trace)]) == 1
    assert page.read_bytes().startswith(b"<!doctype html>") and json.loads(trace.read_bytes())["traceEvents"]
    assert capsys.readouterr().err.endswith(f"drawn: {page}\ndrawn: {trace}\n")
    absent = tmp_path / "no" / "run.html"
    monkeypatch.setattr("sim.cli.run_seed", lambda *_, **__: pytest.fail("it is said before the run"))
    assert run(["sim", "run", "--seed", "3", "--html", str(absent)]) == 2
    assert f"there is no directory {absent.parent}" in capsys.readouterr().err


def test_pdb_stops_in_the_code_that_did_it(kept: Path, failing: Verdict) -> None:
    program = f"import sys; from gym_ckpt.cli.main import run; sys.exit(run(['sim', 'replay', {kept.name!r}, '--pdb']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="p 6 * 7\nc\n",
        cwd=kept.parents[2],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    place = failing.violations[0].event_index
    assert f"event {place} at" in done.stdout, done.stderr
    assert f"{ROOT}/gym_ckpt/" in done.stdout and "(Pdb) 42" in done.stdout
    assert done.stdout.rstrip().endswith("the run is over") and done.returncode == 0


def test_pdb_needs_something_to_stop_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(dump(run_seed(2).plan))
    assert run(["sim", "replay", "--seed", "2", "--plan", str(plan), "--pdb"]) != 0
    assert "nothing breaks in this run" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ planted bugs


def test_a_campaign_with_a_planted_bug_keeps_its_failure_and_no_history(
    failing: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads how to deal with a failed seed has one to deal with."""
    monkeypatch.chdir(tmp_path)
    seeds = f"{failing.seed}..{failing.seed + 1}"
    assert run(["sim", "fuzz", "--bug", BUG, "--seeds", seeds, "-j", "1", "--double", "0"]) == 1
    name = f"default-{failing.seed}-{BUG}"
    assert f"replay: gym-ckpt sim replay {name}" in capsys.readouterr().out
    assert not (tmp_path / ".gym-ckpt" / "campaigns.sqlite").exists()
    assert run(["sim", "replay", name]) == 1
    assert f"bug {BUG})" in capsys.readouterr().out


def test_planted_bugs_are_listed_and_a_near_name_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "bugs", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BUGS)
    assert run(["sim", "bugs", "--list", "--json", "--bug", BUG]) == 0
    assert json.loads(capsys.readouterr().out.encode()) == [
        {"bug": BUG, "intent": BUGS[BUG].intent, "ground": BUGS[BUG].ground},
    ]
    assert run(["sim", "run", "--seed", "1", "--bug", "mark-after-stpo"]) == 2
    complaint = capsys.readouterr().err
    assert f"did you mean {BUG!r}?" in complaint and len(complaint) < 300
