"""A gym with an author's own application: one plan format, one campaign, one oracle.

`examples.letters` is right; `tests.scenario.careless_letters` is what the campaign must find out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import sim.cli
from faults import catalogue as faults
from faults.apps import with_apps
from faults.catalogue import EVERYTHING, OnRow, Restart
from faults.draw import draw
from faults.plan import App, Plan, Setup, dump, load
from gym_ckpt.errors import ConfigError
from sim.campaign import campaign, explained
from sim.cluster import Cluster, Options
from sim.jobs import Figures, Job, Outcome
from sim.replay import recorded, refusal
from sim.report import failure_id, write_artefact
from sim.run import Verdict, run_seed
from sim.summary import Summary
from sim.twin import compared
from sim.workload import workload
from sim.world import World

CARELESS = "tests.scenario.careless_letters"
SAFE = "examples.safe:SafeInAWorld"
LETTERS = App("inventory", "examples.letters:build")
WHOLE = Restart("whole", 0.1)


def played(factory: str, *struck: faults.Fault, number: int = 1) -> Verdict:
    setup = Setup(workload=number, every_s=0.5, timeout_s=8.0, grace_s=6.0, apps=(App("inventory", factory),))
    return run_seed(1, "kept", plan=Plan(setup, chaos_s=8.0, requeue=WHOLE, faults=struck), keep_all_rows=True)


@pytest.mark.parametrize("seed", range(6))
def test_right_applications_survive_what_is_drawn(seed: int) -> None:
    apps = [LETTERS, App("verifier", f"{CARELESS}:judge")]
    verdict = run_seed(seed, plan=with_apps(draw(seed, "default"), apps[: 1 + seed % 2]), brief=True)
    assert verdict.ok, verdict.violations[0]


def test_it_is_at_work_is_checkpointed_and_goes_on() -> None:
    verdict = played(LETTERS.factory, faults.Crash((EVERYTHING,), OnRow("collector.published"), WHOLE))
    assert verdict.ok and verdict.faults == {"crash": 1}
    of_it = [row for row in verdict.rows if row.node == "inventory"]
    assert {"restore.installed", "commit.exported"} <= {row.event for row in of_it}
    asked = [row for row in of_it if row.event == "net.request"]
    assert asked and {row.fields["dst"] for row in asked} == {"worker"}, "it asks the model by httpx"


@pytest.mark.parametrize("factory", [LETTERS.factory, f"{CARELESS}:hasty"])
def test_the_same_seed_is_the_same_run_in_another_process(factory: str) -> None:
    """The second leaves generators of httpx dangling in streams."""
    for seed in (3, 4):
        verdict = run_seed(seed, plan=with_apps(draw(seed, "chaos"), [App("inventory", factory)]))
        assert compared(verdict).ok, verdict.violations
        assert run_seed(seed, plan=verdict.plan).hash == verdict.hash


def test_the_campaign_finds_what_an_export_forgets() -> None:
    apps = (App("inventory", f"{CARELESS}:forgetful"),)
    summary = campaign(range(60), "default", jobs=1, failures_max=1, explain=False, apps=apps)
    found = summary.figures.failed[0]
    assert found.violation is not None and found.violation.invariant == "INV-1"
    assert found.plan is not None and load(found.plan).setup.apps == apps
    assert not summary.owed, "an application comes by other points than the shipped server"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tuples", "cannot be exported: $.state: a tuple would come back as a list"),
        ("nothing", "object is not iterable"),
        ("lookup", "session"),
    ],
)
def test_the_campaign_finds_an_export_that_always_fails(name: str, why: str) -> None:
    """No checkpoint comes about, every row starts again from its input, and the output is right all the same."""
    apps = (App("inventory", f"{CARELESS}:{name}"),)
    summary = campaign(range(8), "default", jobs=1, failures_max=1, explain=False, apps=apps)
    assert not summary.ok
    found = summary.figures.failed[0].violation
    assert found is not None and found.invariant == "RUN-export" and found.node == "inventory" and why in found.seen
    assert "checkpoints: 0 published, " in summary.words()


@pytest.mark.parametrize(
    ("name", "invariant", "why"),
    [
        ("dropping", "INV-23", "was there when it was ready, and is not exported"),
        ("empty", "INV-23", "was there when it was ready, and is not exported"),
        ("uninstalled", "INV-60", "was installed, and nothing of it is there: its install did not keep it, or"),
    ],
)
def test_the_campaign_finds_sessions_that_are_lost(name: str, invariant: str, why: str) -> None:
    """Their rows fail after a restore and start over, and the output is right all the same."""
    apps = (App("inventory", f"{CARELESS}:{name}"),)
    summary = campaign(range(30), "default", jobs=1, failures_max=1, explain=False, apps=apps)
    found = summary.figures.failed[0].violation
    assert found is not None and (found.invariant, found.node) == (invariant, "inventory") and why in found.seen


def test_an_export_that_a_fault_makes_fail_is_no_mistake_of_the_application() -> None:
    struck = (faults.DiskError("inventory", "EIO", 1), faults.FailAtProbe("commit.exported", 1))
    for fault in struck:
        verdict = played(LETTERS.factory, fault)
        assert verdict.ok and verdict.hit == {fault} and verdict.checkpoints["failed"] > 0, verdict.violations
        assert verdict.checkpoints["published"] > 0


def test_a_campaign_without_any_checkpoint_is_no_success() -> None:
    figures = Figures(seeds=20)
    summary = Summary("default", None, figures, 1.0, 1, apps=(LETTERS,))
    said = []
    for more in ({"failed": 9}, {"failed": 1}, {"published": 1}):
        figures.checkpoints.update(more)
        said.append((summary.ok, "must have come by a published checkpoint" in summary.words()))
    assert said == [(True, False), (False, True), (True, False)]
    assert "checkpoints: 1 published, 10 failed" in summary.words()


def test_an_effect_that_is_repeated_is_found_and_named() -> None:
    lost = faults.Lose("inventory", "add_item", "after", 1, 1)
    careful, careless = played(LETTERS.factory, lost), played(f"{CARELESS}:repeating", lost)
    assert careful.ok and careful.faults == careless.faults == {"lose.after": 1}, "by whatever name the tool goes"
    assert {"INV-1", "INV-3"} <= {each.invariant for each in careless.violations}
    seen = next(each.seen for each in careless.violations if each.invariant == "INV-3")
    assert seen.startswith("the tool effects of")


def test_a_module_s_globals_go_with_the_process() -> None:
    """Two lives of a node are two processes, and what only a global knew is lost."""
    verdict = played(
        f"{CARELESS}:in_globals", faults.Crash((EVERYTHING,), OnRow("collector.published"), WHOLE), number=2
    )
    assert {"INV-1", "INV-3"} <= {each.invariant for each in verdict.violations}


def test_an_application_that_fails_undisturbed_is_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"fails with nothing that strikes it.*time.time was used .* the Clock port"):
        played(f"{CARELESS}:clocked")


def test_a_plan_names_its_applications() -> None:
    plan = with_apps(draw(3, "default"), [LETTERS])
    assert load(dump(plan)) == plan and dump(load(dump(plan))) == dump(plan)
    assert plan.words()[0].endswith(", inventory is examples.letters:build")
    for wrong, why in (
        (b'{"setup": {"apps": [{"server": "agent", "factory": "a:b"}]}}', "Invalid enum value 'agent'"),
        (dump(with_apps(plan, [LETTERS, LETTERS])), "names a server twice"),
    ):
        with pytest.raises(ConfigError, match=why):
            load(wrong)


def test_a_gym_stands_in_the_factory_s_place() -> None:
    verdict = played(SAFE, faults.Crash((EVERYTHING,), OnRow("collector.published"), WHOLE))
    assert verdict.ok and verdict.checkpoints["restored"] and verdict.faults == {"crash": 1}
    of_it = [row for row in verdict.rows if row.node == "inventory"]
    assert {row.fields["tool"] for row in of_it if row.event == "tool.effect"} == {"guess"}


def test_sessions_without_state_go_on_where_they_were() -> None:
    """A checkpoint without them left their agents with cookies that nobody knew: their rows failed and started over."""
    verdict = played(f"{CARELESS}:Echo", faults.Crash((EVERYTHING,), OnRow("collector.published"), WHOLE), number=2)
    assert verdict.ok and verdict.checkpoints["restored"]
    restored = {key for row in verdict.rows if row.event == "collector.restored" for key in row.fields["installed"]}
    ended = {row.fields["episode"]: row.fields["status"] for row in verdict.rows if row.event == "episode.over"}
    assert restored and {ended[key] for key in restored} == {"finished"}
    used = {row.fields["episode"] for row in verdict.rows if row.event == "tool.effect"}
    assert used & restored, "with tools that they still had to call"


def test_the_campaign_finds_what_a_gym_forgets() -> None:
    apps = (App("inventory", f"{CARELESS}:ForgetfulSafe"),)
    summary = campaign(range(60), "default", jobs=1, failures_max=1, explain=False, apps=apps)
    found = summary.figures.failed[0].violation
    assert found is not None and found.invariant == "INV-1"


def test_a_gym_that_wants_other_tasks_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError, match=r"KeyError: 'code'; a task of a world is .* a subclass of the gym has to"):
        played("examples.safe:SafeGym")


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("gym_ckpt.gyms:Gym", "it does not define seed, verify"),
        ("examples.letters", "it is not package.module:factory"),
        ("examples.nowhere:build", "it cannot be imported"),
        (".letters:build", "it is not package.module:factory"),
        ("examples.letters:nothing", "module examples.letters has no nothing"),
        ("examples.letters:answer", "it is not an async function"),
    ],
)
def test_a_factory_that_is_none_is_refused_before_anything_runs(factory: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Cluster(World(1), workload(1), Options(apps=(App("inventory", factory),)))
    refused = CliRunner().invoke(sim.cli.run, ["--seed", "7", "--app", f"inventory={factory}"])
    assert refused.exit_code == 2 and why in refused.output


@pytest.mark.parametrize("verb", ["run", "fuzz"])
def test_an_application_that_cannot_work_is_refused_in_one_line(verb: str) -> None:
    """Before any seed of a campaign runs: it is no failure of a seed, and least of all the simulator's."""
    seeds = ["--seed", "7"] if verb == "run" else ["--seeds", "0..50"]
    refused = CliRunner().invoke(getattr(sim.cli, verb), [*seeds, "--app", f"inventory={CARELESS}:clocked"])
    assert isinstance(refused.exception, ConfigError) and refused.output == ""
    assert "fails with nothing that strikes it" in str(refused.exception)


def test_a_failure_without_the_application_says_so() -> None:
    verdict = played(f"{CARELESS}:forgetful", faults.Crash((EVERYTHING,), OnRow("collector.published"), WHOLE))
    failed = Outcome(Job(1, "kept"), 1.0, violation=verdict.violations[0])
    told = []
    for plan in (verdict.plan, with_apps(verdict.plan, ())):
        shown = (replace(verdict, plan=plan),)
        summary = Summary("kept", None, Figures(failed=[failed]), 1.0, 1, shown, apps=verdict.plan.setup.apps)
        told.append("careless_letters:forgetful plays no part, INV-1 is broken without it, too" in summary.words())
    assert told == [False, True]


def test_on_the_command_line() -> None:
    own = ["--app", f"inventory={LETTERS.factory}", "--json"]
    ran = CliRunner().invoke(sim.cli.run, ["--seed", "7", *own])
    assert ran.exit_code == 0
    assert json.loads(ran.output)["hash"] == run_seed(7, plan=with_apps(draw(7, "default"), [LETTERS])).hash
    assert CliRunner().invoke(sim.cli.run, ["--seed", "7", "--app", "agent=a:b"]).exit_code == 2
    swept = CliRunner().invoke(sim.cli.fuzz, ["--seeds", "0..2", "-j", "1", "--double", "0", *own])
    assert swept.exit_code == 0 and json.loads(swept.output)["seeds"] == 2
    assert json.loads(swept.output)["campaign"] is None, "what an author's code does is no history of ours"


def test_a_kept_failure_comes_back_with_its_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = faults.Lose("inventory", "add_item", "after", 1, 1)
    verdict = explained(1, "kept", plan=dump(played(f"{CARELESS}:repeating", lost).plan))
    assert failure_id(verdict) == "kept-1-inventory" and verdict.confirmed
    place = write_artefact(verdict, tmp_path)
    record = recorded(str(place))
    assert refusal(record) is None and record.hash == verdict.hash
    assert run_seed(record.seed, record.profile, plan=record.plan).hash == verdict.hash
    mended = CliRunner().invoke(sim.cli.replay, [str(place), "--app", f"inventory={LETTERS.factory}"])
    assert mended.exit_code == 0, mended.output
    about = json.loads((place / "failure.json").read_bytes())
    about["versions"][f"{CARELESS}:repeating"] = "another"
    (place / "failure.json").write_text(json.dumps(about))
    assert f"{CARELESS}:repeating is" in (refusal(recorded(str(place))) or "")
