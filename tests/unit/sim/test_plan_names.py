"""A plan that names what is not there is refused: a misspelt fault would never strike, and its run would pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import sim.cli
from faults import catalogue as faults
from faults.catalogue import At, OnPhase, OnRow, Restart
from faults.draw import PROFILES, draw
from faults.names import check_names
from faults.plan import App, Plan, Setup, dump, load
from gym_ckpt.errors import ConfigError
from sim.run import run_seed

MISSPELT: tuple[tuple[faults.Fault, str], ...] = (
    (faults.SlowDisk("agnet", 1.0, 1), "no node 'agnet'; did you mean 'agent'"),
    (faults.SlowDisk("agent", 1.0, 1, step="records.wirte"), "step 'records.wirte'; did you mean 'records.write'"),
    (faults.CrashAtProbe("collector.publish"), "point 'collector.publish'; did you mean 'collector.published'"),
    (faults.Crash(("nobody",), At(1.0)), "no node 'nobody'; there are, for one, .*agent"),
    (faults.Crash(("agent",), OnRow("gate.startd")), "no event 'gate.startd'; did you mean 'gate.started'"),
    (faults.Crash(("agent",), OnPhase("comitted")), "no phase 'comitted'; did you mean 'committed'"),
    (faults.Crash(("agent",), OnPhase("prepared", node="polcy")), "no node 'polcy'; did you mean 'policy'"),
    (faults.CrashHost("gpus", At(1.0)), "no host 'gpus'; did you mean 'gpu'"),
    (faults.Lose("policy", "completion", "before"), "no route 'completion'; did you mean 'completions'"),
    (faults.Partition("policy", "wroker", 0.0, 1.0), "no node 'wroker'; did you mean 'worker'"),
)  # fmt: skip


@pytest.mark.parametrize(("fault", "why"), MISSPELT, ids=[why.split(";")[0] for _, why in MISSPELT])
def test_a_misspelt_name_is_refused_with_the_near_one(fault: faults.Fault, why: str, tmp_path: Path) -> None:
    plan = Plan(chaos_s=2.0, faults=(faults.Pause("agent", At(0.5), 0.1), fault))
    with pytest.raises(ConfigError, match=rf"faults\[1\].*{why}"):
        load(dump(plan))
    with pytest.raises(ConfigError, match=why):
        run_seed(1, plan=plan)
    file = tmp_path / "plan.json"
    file.write_bytes(dump(plan))
    refused = CliRunner().invoke(sim.cli.replay, ["--seed", "1", "--plan", str(file)])
    assert refused.exit_code != 0 and not isinstance(refused.exception, AssertionError)
    assert "faults[1]" in refused.output + str(refused.exception)


def test_what_python_does_not_check_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="Invalid enum value 'wole'"):
        run_seed(1, plan=Plan(requeue=Restart("wole")))  # type: ignore[arg-type]


AGENT = b'{"fault": "crash", "nodes": ["agent"], '
BY_HAND: tuple[tuple[bytes, str], ...] = (
    (b'{"fault": "crahs"}', '.fault`; did you mean "crash"? there are "crash", "crash_host"'),
    (b'{"nodes": ["agent"]}', 'missing required field `fault` - at `$.faults[0]`; it is one of "crash"'),
    (AGENT + b'"silent": true}', 'field `when` - at `$.faults[0]`; it is {"when": "at", "t_s": …} or {"when": "event"'),
    (AGENT + b'"when": 0.4}', '`$.faults[0].when`; it is {"when": "at", "t_s": …} or'),
    (AGENT + b'"when": {"t_s": 0.4}}', '`when` - at `$.faults[0].when`; it is one of "at", "event", "row", "phase"'),
    (AGENT + b'"when": {"when": "rows"}}', 'did you mean "row"? there are "at", "event", "row", "phase"'),
    (AGENT + b'"when": {"when": "at"}}', 'field `t_s` - at `$.faults[0].when`; it is a number, 0 to 86,400'),
    (AGENT + b'"wen": {"when": "at"}}', '`wen` - at `$.faults[0]`; did you mean "when"? there are "nodes", "when"'),
    (b'{"fault": "crash", "nodes": [], "when": {"when": "at", "t_s": 1}}', "length >= 1 - at `$.faults[0].nodes`"),
    (b'{"fault": "crash_at_step", "node": "agent", "k": 1, "side": "sideways"}', 'there are "after", "before"'),
    (b'{"fault": "overload", "when": {"when": "at", "t_s": 1}, "for_s": 1, "status": 404}', "there are 429, 503, 529"),
)  # fmt: skip


@pytest.mark.parametrize(("fault", "why"), BY_HAND)
def test_what_is_wrong_in_a_plan_written_by_hand_is_named_with_what_there_is(fault: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        load(b'{"faults": [' + fault + b"]}")


def test_a_plan_that_is_no_object_or_misspells_a_key_is_told_the_keys() -> None:
    for data, why in (
        (b"[]", 'it is {"setup": {"workload": 0, "every_s": null'),
        (b'{"fault": []}', 'did you mean "faults"? there are "setup", "chaos_s"'),
        (b'{"setup": {"evry_s": 1}}', 'did you mean "every_s"? there are "workload"'),
        (b'{"schedule": {"schedule": "one"}}', 'there are "hold_back", "one_by_one", "priorities"'),
        (b'{"faults": {}}', "Expected `array`, got `object` - at `$.faults`"),
        (b"{", "not a fault plan"),
    ):
        with pytest.raises(ConfigError, match=re.escape(why)):
            load(data)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_whatever_is_drawn_is_known(profile: str) -> None:
    for seed in range(400):
        check_names(draw(seed, profile))


def test_an_application_s_tools_and_events_are_its_author_s() -> None:
    struck = (faults.Lose("inventory", "write", "after"), faults.Crash(("inventory",), OnRow("letters.written")))
    own = Setup(apps=(App("inventory", "examples.letters:build"),))
    check_names(Plan(own, faults=struck))
    with pytest.raises(ConfigError, match="no route 'write'"):
        check_names(Plan(faults=struck))


def test_a_run_says_what_never_struck(tmp_path: Path) -> None:
    never = faults.Pause("agent", OnRow("lease.expired", 99), 0.1)
    said = []
    for struck in ((never,), (faults.Pause("agent", At(0.2), 0.1), never)):
        file = tmp_path / "plan.json"
        file.write_bytes(dump(Plan(chaos_s=2.0, faults=struck)))
        ran = CliRunner().invoke(sim.cli.replay, ["--seed", "1", "--plan", str(file)])
        assert ran.exit_code == 0 and f"planned, and never struck:\n  {never.words()}\nhash" in ran.output
        said.append(ran.output.splitlines()[0])
    assert "no fault struck, and nothing broke" in said[0] and ": nothing broke" in said[1]
