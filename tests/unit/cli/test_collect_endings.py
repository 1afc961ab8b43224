"""How `gym-ckpt collect` ends when it cannot begin: one line, one object with `--json`, one event in the log."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ckpt.adapters.host import free_ports, why_not_writable
from gym_ckpt.cli.endings import INTERRUPTED
from gym_ckpt.cli.main import run
from gym_ckpt.controller.outcome import AGAIN, INTERRUPTED_STATUS
from gym_ckpt.errors import ConfigError
from gym_ckpt.wire import json

SERVERS = {
    "environment": 'agent = "agent"\nresources = "tools"',
    "agent": 'model = "policy"',
    "resources": "",
    "model": 'workers = ["http://127.0.0.1:9"]',
}
WAIT_S = 2.5
"""For servers that are not there: longer than it takes until that is said, on a busy machine, too."""
NAMES = {"environment": "environment", "agent": "agent", "resources": "tools", "model": "policy"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    parts = ['control_token = "t"', "[checkpoint]"]
    for (kind, rest), port in zip(SERVERS.items(), free_ports(len(SERVERS)), strict=True):
        parts.append(f'[servers.{NAMES[kind]}]\nkind = "{kind}"\nurl = "http://127.0.0.1:{port}"\n{rest}')
    parts.append('[collect]\nenvironment = "environment"\ninput = "in.jsonl"\noutput = "out.jsonl"')
    parts.append(f'checkpoint_dir = "run"\nservers_wait_s = {WAIT_S}')
    (tmp_path / "in.jsonl").write_text('{"id": "a", "task": {}}\n')
    (tmp_path / "gym.toml").write_text("\n".join(parts) + "\n")
    return tmp_path / "gym.toml"


def test_servers_that_are_down_are_named_while_they_are_waited_for_and_at_the_end(config: Path) -> None:
    script = f"from gym_ckpt.cli.main import main; main(['collect', {str(config)!r}, '--json'])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert all(line.startswith("INFO gym_ckpt: collector.") for line in ended.stderr.splitlines()), "events, no words"
    events = [line.removeprefix("INFO gym_ckpt: ").partition(" ") for line in ended.stderr.splitlines()]
    waited = r"waiting for .*\(GET .*\), up to \d+ s more; if they do not run, gym-ckpt serve CONFIG starts them"
    told = [json.loads(fields.encode())["text"] for event, _, fields in events if event == "collector.says"]
    assert told and re.fullmatch(waited, told[0])
    said = json.loads(ended.stdout.encode())
    assert (said["exit_code"], said["complete"], said["began"]) == (1, False, False)
    assert said["message"].startswith("no status from agent, environment, policy, tools (GET ")
    assert said["message"].endswith("gym-ckpt serve CONFIG starts them") and said["figures"] is None
    (last,) = [line for line in ended.stderr.splitlines() if " collector.exit {" in line]
    assert json.loads(b"{" + last.partition(" {")[2].encode()) == {"status": 1, "message": said["message"]}
    assert "gym-ckpt: " not in ended.stderr, "it is said once, as an event"
    assert not (config.parent / "run" / "run.json").exists() and not (config.parent / "out.jsonl").exists()


def test_without_json_an_end_is_one_line_wherever_one_looks(config: Path) -> None:
    """On standard output and on standard error; where both are one place, once. No event stands beside its words."""
    argv = [sys.executable, "-c", f"from gym_ckpt.cli.main import main; main(['collect', {str(config)!r}])"]
    apart = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    together = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60
    )
    assert apart.returncode == together.returncode == 1
    assert apart.stdout.startswith("no status from ") and apart.stdout.count("\n") == 1
    for said in (apart.stderr, together.stdout):
        assert said.count("no status from ") == 1 and said.splitlines()[-1].startswith("gym-ckpt: no status from ")
        assert "INFO gym_ckpt" not in said


def test_ctrl_c_before_anything_began_is_said_like_any_end(config: Path) -> None:
    config.write_text(config.read_text().replace(f"servers_wait_s = {WAIT_S}", "servers_wait_s = 60"))
    argv = [sys.executable, "-m", "gym_ckpt", "collect", str(config)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stderr is not None
        assert waiting.stderr.readline().startswith("waiting for ")
        waiting.send_signal(signal.SIGINT)
        said = waiting.stdout.read()
        assert said == f"interrupted before any row was sent, there is no checkpoint; {AGAIN}\n"
        assert waiting.stderr.read() == said and waiting.wait() == INTERRUPTED_STATUS == INTERRUPTED


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a directory")
@pytest.mark.parametrize("key", ["output", "checkpoint_dir"])
def test_what_nobody_can_write_into_is_refused_before_anything_is_waited_for(config: Path, key: str) -> None:
    """Whoever asks: root has every permission below /proc, and can make nothing there."""
    text = config.read_text()
    config.write_text(text.replace({"output": '"out.jsonl"', "checkpoint_dir": '"run"'}[key], '"/proc/nowhere/deep"'))
    ended = subprocess.run(
        [sys.executable, "-m", "gym_ckpt", "collect", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout.startswith(f"collect.{key}: nothing can be written into /proc (")
    assert sorted(path.name for path in config.parent.iterdir()) == ["gym.toml", "in.jsonl"], "and nothing was made"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such files")
def test_a_file_that_nobody_can_add_to_is_known_by_trying(tmp_path: Path) -> None:
    assert why_not_writable(Path("/proc/version")) is not None
    assert why_not_writable(tmp_path) is None and list(tmp_path.iterdir()) == []
    (tmp_path / "out").write_text("rows")
    assert why_not_writable(tmp_path / "out") is None and (tmp_path / "out").read_text() == "rows"


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, 1), (errno.ESTALE, 1), (errno.EROFS, 2)])
def test_a_disk_that_is_full_is_no_mistake_of_the_configuration(
    config: Path, code: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch system tries what ends with 1 again, and not what ends with 2."""
    monkeypatch.setattr("gym_ckpt.cli.config_files.why_not_writable", lambda _: OSError(code, os.strerror(code)))
    assert run(["collect", str(config), "--json"], debug=False) == status
    said = json.loads(capsys.readouterr().out.encode())
    assert (said["later"], said["began"]) == (status == 1, False)
    assert f"({os.strerror(code)}): make " in said["message"]


AT_BOTH_EDGES = """
import os, signal
import gym_ckpt.cli.collect as command
from gym_ckpt.controller.outcome import Outcome

def tell(why):
    for each in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), each)

async def collect(settings, coordination, url, ports, progress):
    async with ports.signals.listen() as signals:
        heard = [await anext(signals), await anext(signals)]
    return Outcome(0, " ".join(sorted(heard)))

load, show = command.load, command._print
command.load = lambda config: (tell("before it listens"), load(config))[1]
command._print = lambda outcome: (tell("once it has ended"), show(outcome))
command.collect = collect
from gym_ckpt.cli.main import main
main(["collect", CONFIG])
"""


def test_signals_before_it_listens_wait_and_those_after_its_end_change_nothing(config: Path) -> None:
    """By default each of them kills a process, and a job would be told so although every row is there (INV-96)."""
    script = AT_BOTH_EDGES.replace("CONFIG", repr(str(config)))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "SIGTERM SIGUSR1\n"), ended.stderr


@pytest.mark.parametrize("words", [[], ["--resume"]])
def test_what_is_refused_before_anything_begins_is_an_object_too(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gym.toml"
    path.write_text('[servers.worker]\nkind = "inference"\nurl = "http://127.0.0.1:9"\n')
    argv = [sys.executable, "-m", "gym_ckpt", "collect", str(path), "--json", *words]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    said = json.loads(ended.stdout.encode())
    assert ended.returncode == said["exit_code"] == 2 and not said["complete"] and said["counts"] is None
    assert "has no [collect] table" in said["message"]
    assert ended.stderr.count("\n") == 1 and " collector.exit {" in ended.stderr and said["message"] in ended.stderr
    with pytest.raises(ConfigError, match=r"has no \[collect\] table"):
        run(["collect", str(path), "--json", *words], debug=True)
    capsys.readouterr()
