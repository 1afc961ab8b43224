"""Configuration: what is refused, in which words, and what is in effect."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from gym_ckpt.adapters.system import production_ports
from gym_ckpt.cli.config import effective, load
from gym_ckpt.cli.config_checks import check_open_files
from gym_ckpt.errors import ConfigError
from gym_ckpt.runtime.serve import run_server
from gym_ckpt.settings import EnvironmentSettings, GymSettings, ModelSettings, ResourcesSettings

GYM: dict[str, Any] = {
    "name": "unit",
    "control_token": "secret",
    "servers": {
        "environment": {"kind": "environment", "url": "http://127.0.0.1:9001", "agent": "agent", "resources": "tools"},
        "agent": {"kind": "agent", "url": "http://127.0.0.1:9002", "model": "policy"},
        "tools": {"kind": "resources", "url": "http://127.0.0.1:9003"},
        "policy": {"kind": "model", "url": "http://127.0.0.1:9004", "workers": ["worker"]},
        "worker": {"kind": "inference", "url": "http://127.0.0.1:9005"},
    },
    "checkpoint": {},
}

COLLECT = {"environment": "environment", "input": "in.jsonl", "output": "out.jsonl"}

TOML = """
name = "unit"
control_token = "secret"
[servers.worker]
kind = "inference"
url = "http://127.0.0.1:9005"
tokens_per_s = 100
"""


def changed(path: str, value: Any) -> dict[str, Any]:
    """The gym with one key set (or removed, for `...`)."""
    gym = deepcopy(GYM)
    *tables, key = path.split(".")
    table = gym
    for name in tables:
        table = table.setdefault(name, {})
    if value is ...:
        del table[key]
    else:
        table[key] = value
    return gym


def test_a_whole_gym_is_typed() -> None:
    settings = load(GYM).settings
    environment = settings.servers["environment"]
    assert isinstance(environment, EnvironmentSettings) and environment.agent == "agent"
    policy = settings.servers["policy"]
    assert isinstance(policy, ModelSettings)
    assert settings.worker_urls(policy) == ("http://127.0.0.1:9005",)
    assert list(settings.participants()) == ["environment", "agent", "tools", "policy"]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("servers.agent.max_step", 3, "servers.agent.max_step: unknown key; did you mean 'max_steps'?"),
        ("colect", {}, "colect: unknown key; did you mean 'collect'?"),
        ("checkpoint.frequency", 1, "checkpoint.frequency: unknown key; allowed: grace_s"),
        ("servers.agent.max_steps", "3", "servers.agent.max_steps: expected a whole number, got text"),
        ("servers.agent.max_steps", 0, "servers.agent.max_steps: expected a whole number >= 1"),
        ("servers.agent.model", ..., "servers.agent.model: is missing"),
        ("servers.agent.kind", "agnet", "servers.agent.kind: there is no kind 'agnet'; did you mean 'agent'?"),
        ("servers.agent.kind", ..., "servers.agent.kind: is missing; one of environment"),
        ("servers.agent", 7, "servers.agent: must be a table, not int"),
        ("servers.agent.model", "polcy", "servers.agent.model: there is no server 'polcy'; did you mean 'policy'?"),
        ("servers.agent.model", "tools", "'tools' is of kind resources, and this must be of kind model"),
        ("servers.policy.workers", [], "servers.policy.workers: expected a list of length >= 1"),
        ("servers.policy.workers", ["worker", "worker"], "servers.policy.workers: names a worker twice"),
        ("servers.policy.workers", ["ftp://x"], "servers.policy.workers[0]: must be http://host:port"),
        ("servers.policy.workers", [4], "servers.policy.workers[0]: expected text, got a whole number"),
        ("servers.tools.gym", "invntory", "servers.tools.gym: there is no gym 'invntory'; did you mean 'inventory'?"),
        ("servers.tools.app", "letters", "servers.tools.app: must be package.module:factory, not 'letters'"),
        ("servers.tools.url", "http://127.0.0.1:9002", "is the url of servers.agent already"),
        ("servers.tools.url", "https://h:1", "servers.tools.url: must be http://host:port without a path"),
        ("servers.tools.url", "http://h:1/", "servers.tools.url: must be http://host:port without a path"),
        (
            "servers.tools.url",
            "http://h:99999",
            "servers.tools.url: the port of 'http://h:99999' is out of range: 1 to",
        ),
        ("servers.a b", {"kind": "inference", "url": "http://h:1"}, "servers.a b: a server's name is part of a path"),
        (f"servers.{'a' * 101}", {"kind": "inference", "url": "http://h:1"}, "or digit, at most 100 characters"),
        ("servers.worker.tokens_per_s", float("nan"), "servers.worker.tokens_per_s: must be a finite number"),
        ("control_token", ..., "control_token: is missing, and [checkpoint] needs it"),
        ("control_token", "", "control_token: is missing, and [checkpoint] needs it"),
        ("control_token_env", "X", "control_token_env: stands beside control_token"),
        ("control_token", "caf\xe9", "control_token: must be printable ASCII"),
        ("control_token", "a\nb", "control_token: must be printable ASCII"),
        ("control_token", " ", "control_token: must be printable ASCII"),
        ("checkpoint.grace_s", 1e12, "checkpoint.grace_s: expected"),
        ("servers.policy.workers", ["http://127.0.0.1:9004"], "is the url of servers.policy, which is no inference"),
        (
            "servers.policy.workers",
            ["https://h/base/v1"],
            "workers[0]: must be http://host:port, or https",
        ),
        ("servers.environment.verifier", "tools", "the gym inventory of 'tools' verifies sessions"),
        (
            "servers.Agent",
            {"kind": "inference", "url": "http://h:1"},
            "servers.Agent: differs from servers.agent",
        ),
        ("servers", {}, "servers: is missing"),
        ("servers.environment.agent", "tools", "'tools' is of kind resources, and this must be of kind agent"),
        ("servers.environment.resources", "agent", "'agent' is of kind agent, and this must be of kind resources"),
        ("servers.environment.verifier", "jugde", "servers.environment.verifier: there is no server 'jugde'"),
        ("servers.agent.model", ["policy", "policy"], "servers.agent.model: names a server twice"),
        ("servers.policy.workers", ["http://h:99999"], "workers[0]: the port of 'http://h:99999' is out of range"),
        ("servers.policy.token_dir", "/tokens", "servers.policy.token_dir: needs servers.policy.ledger_dir"),
        (
            "servers.policy2",
            GYM["servers"]["policy"] | {"url": "http://h:1", "ledger_dir": "/ledger"},
            "servers.policy2.ledger_dir: is '/ledger' and that of servers.policy is None: the model servers of a gym",
        ),
        ("collect", COLLECT | {"environment": "agent"}, "collect.environment: 'agent' is of kind agent"),
        ("collect", COLLECT | {"checkpoint_every_s": 5}, "needs collect.checkpoint_dir"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(changed(path, value))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"output": "run"}, "collect.output: is collect.checkpoint_dir, too"),
        ({"output": "below/../in.jsonl"}, "collect.output: is collect.input, too"),
        ({"keep_checkpoints": 257}, "collect.keep_checkpoints: expected a whole number <= 256"),
        ({"one_sigterm_s": 60.5}, "collect.one_sigterm_s: expected a number <= 60.0"),
        ({"output": "below"}, "below is a directory: give the name of a file in it"),
        ({"output": "in.jsonl/deep/out.jsonl"}, "collect.output: {folder}/in.jsonl is a file, and would have to be"),
        ({"checkpoint_dir": "in.jsonl"}, "collect.checkpoint_dir: {folder}/in.jsonl is a file, and would have to be"),
    ],
)
def test_files_of_a_collection_that_cannot_be_what_they_are_to_be(
    keys: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    given = COLLECT | {"checkpoint_dir": "run"}
    load(changed("collect", given))
    with pytest.raises(ConfigError) as caught:
        load(changed("collect", given | keys))
    assert words.format(folder=tmp_path) in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("url", ["http://h", "https://api.example.org", "https://h:8443/models/large"])
def test_any_back_end_can_be_a_worker(url: str) -> None:
    policy = load(changed("servers.policy.workers", [url])).settings.servers["policy"]
    assert isinstance(policy, ModelSettings) and policy.workers == (url,)


def test_a_process_that_could_not_hold_its_calls_is_not_started() -> None:
    """Out of open files it would accept no connection, and take no checkpoint."""
    settings = load(changed("collect", COLLECT | {"concurrency": 1000})).settings
    check_open_files(settings, 2400)
    with pytest.raises(
        ConfigError, match=r"collect.concurrency: 1,000 rows .* 2400 open files .* 1024 .* lower it to 312"
    ):
        check_open_files(settings, 1024)


@pytest.mark.parametrize("model", ["worker", "http://127.0.0.1:9005", ["policy", "worker"]])
def test_an_agent_that_names_a_model_server_past_the_gate_does_not_start(model: Any) -> None:
    """INV-21: the message names the agent, the server and the policy-model server; so does the server's own start."""
    past = model if isinstance(model, str) else "worker"
    words = (
        f"servers.agent.model: agent 'agent' would call {past!r} past the gate, and a checkpoint would miss what it "
        "generates: name the policy-model server in front of it, 'policy'"
    )
    gym = changed("servers.agent.model", model)
    with pytest.raises(ConfigError) as caught:
        load(gym)
    assert str(caught.value) == words
    with pytest.raises(ConfigError) as at_start:
        anyio.run(start_alone, msgspec.convert(gym, GymSettings), "agent")
    assert str(at_start.value) == words


@pytest.mark.parametrize("key", ["gym", "app"])
def test_a_configuration_is_read_where_what_its_servers_run_cannot_be_imported(key: str) -> None:
    """As by a collector, which imports none of it (docs/install.md)."""
    tools = load(changed(f"servers.tools.{key}", "not_there.module:made")).settings.servers["tools"]
    assert isinstance(tools, ResourcesSettings) and getattr(tools, key) == "not_there.module:made"


def test_without_checkpoints_there_is_no_gate_to_go_past_and_a_model_server_is_still_asked_for() -> None:
    gym = changed("servers.agent.model", "worker")
    del gym["checkpoint"]
    msgspec.convert(gym, GymSettings).check_gated("agent")
    with pytest.raises(ConfigError, match="'worker' is of kind inference, and this must be of kind model"):
        load(gym)


async def start_alone(settings: GymSettings, name: str) -> None:
    async with production_ports() as ports:
        await run_server(settings, name, ports, ready=lambda: None)


def test_checkpoints_are_not_kept_of_servers_that_take_none() -> None:
    gym = changed("collect", COLLECT | {"checkpoint_dir": "run"})
    load(gym)
    del gym["checkpoint"]
    with pytest.raises(ConfigError, match=r"collect\.checkpoint_dir: needs a \[checkpoint\] table"):
        load(gym)


def test_of_a_verifier_with_an_application_of_its_own_only_its_server_knows_what_it_keeps() -> None:
    gym = changed("servers.judge", GYM["servers"]["tools"] | {"url": "http://h:1", "app": "package.module:factory"})
    gym["servers"]["environment"]["verifier"] = "judge"
    load(gym)


def test_a_token_comes_from_the_named_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    gym = changed("control_token", ...)
    gym["control_token_env"] = "GYM_CKPT_UNIT_TOKEN"
    monkeypatch.delenv("GYM_CKPT_UNIT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="'GYM_CKPT_UNIT_TOKEN' is not set or empty"):
        load(gym)
    monkeypatch.setenv("GYM_CKPT_UNIT_TOKEN", "from outside")
    loaded = load(gym)
    assert loaded.settings.control_token == "from outside"
    shown = {row.path: (row.value, row.source) for row in effective(loaded)}
    assert shown["control_token"] == ("********", "environment GYM_CKPT_UNIT_TOKEN")


def test_effective_values_carry_their_source_and_hide_the_token(tmp_path: Path) -> None:
    path = tmp_path / "gym.toml"
    path.write_text(TOML)
    shown = {row.path: (row.value, row.source) for row in effective(load(path))}
    assert shown["servers.worker.tokens_per_s"] == (100.0, "file")
    assert shown["servers.worker.step_tokens"] == (16, "default")
    assert shown["checkpoint"] == (None, "default")
    assert shown["control_token"] == ("********", "file")


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "gym.toml", tmp_path / "gym.yaml"
    toml.write_text(TOML)
    yaml.write_text(
        "name: unit\ncontrol_token: secret\nservers:\n"
        "  worker: {kind: inference, url: 'http://127.0.0.1:9005', tokens_per_s: 100}\n"
    )
    assert load(toml).settings == load(yaml).settings


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gym.json", "{}", "a configuration ends in .toml, .yaml or .yml"),
        ("gym.toml", "name = ", "not valid TOML"),
        ("gym.yaml", "a: [", "not valid YAML"),
        ("gym.yaml", "- 1", "must hold a mapping at the top, not list"),
        ("absent.toml", None, "there is no such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / name)
    assert words in str(caught.value) and name in str(caught.value)
    assert "\n" not in str(caught.value)
