"""The repository's own machinery: pins, the wheel, and `./dev`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def requirements_in() -> list[str]:
    lines = (ROOT / "requirements.in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins(name: str = "requirements.txt") -> dict[str, str]:
    text = (ROOT / name).read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s\\]+)", text, re.MULTILINE))


# ------------------------------------------------------------------------------------------------------ pins


def test_requirements_in_is_what_the_project_declares() -> None:
    declared = {*project()["dependencies"], *project()["optional-dependencies"]["dev"]}
    assert set(requirements_in()) == declared, "keep requirements.in and pyproject.toml equal"


def test_every_requirement_is_pinned_to_a_version_that_satisfies_it() -> None:
    pinned = pins()
    wanted = [Requirement(line) for line in requirements_in()]
    wrong = [str(need) for need in wanted if not need.specifier.contains(pinned.get(need.name, "0"))]
    assert not wrong, f"make requirements.txt again (CONTRIBUTING.md, Dependencies): {wrong}"


def test_the_extra_ray_is_pinned_beside_the_rest_and_agrees_with_it() -> None:
    (wanted,) = map(Requirement, project()["optional-dependencies"]["ray"])
    extra, rest = pins("requirements-ray.txt"), pins()
    assert wanted.specifier.contains(extra["ray"])
    differing = [name for name in extra if rest.get(name, extra[name]) != extra[name]]
    assert not differing, f"make requirements-ray.txt again (CONTRIBUTING.md, Dependencies): {differing}"


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-ray.txt"])
def test_the_lock_file_holds_names_versions_and_hashes_only(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    shape = re.compile(r"[a-z0-9._-]+==[^\s\\]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    assert [line for line in lines if not shape.fullmatch(line)] == []
    assert len(pins(name)) > 10


def test_extras_are_those_of_the_product() -> None:
    assert set(project()["optional-dependencies"]) == {
        "vllm", "object-store", "otel", "metrics", "ray", "yaml", "dev",
    }  # fmt: skip


def test_the_wheel_holds_the_implementation_only(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "gym_ckpt", source / "gym_ckpt", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("sim", "tests"):
        (source / folder).mkdir()
        (source / folder / "__init__.py").touch()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"gym_ckpt", f"gym_ckpt-{project()['version']}.dist-info"}
    assert "gym_ckpt/py.typed" in names


# ------------------------------------------------------------------------------------------------------ ./dev

RECIPE = "import sys; sys.path.insert(0, 'tools'); import dev; dev.VENV.mkdir(exist_ok=True)"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is complete and holds one command, `gym-ckpt`, that shows what it was given."""
    (tmp_path / "tools").mkdir()
    for name in ("dev", "tools/dev.py", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    program = tmp_path / ".venv" / "bin" / "gym-ckpt"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$0" "$VIRTUAL_ENV"; for part in "$@"; do echo "[$part]"; done; exit 3\n')
    program.chmod(0o755)
    (program.parent / "python").symlink_to(sys.executable)
    in_checkout(tmp_path, sys.executable, "-c", f"{RECIPE}; dev.STAMP.write_text(dev.recipe())")
    return tmp_path


def in_checkout(where: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    merged = {**os.environ, **env}
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60, check=False, env=merged)


def test_dev_passes_arguments_output_and_status_through(checkout: Path) -> None:
    done = in_checkout(checkout, "./dev", "demo", "--json", "two words", "*")
    assert done.returncode == 3
    assert done.stderr == ""
    venv = checkout / ".venv"
    assert done.stdout.splitlines() == [f"{venv}/bin/gym-ckpt {venv}", "[demo]", "[--json]", "[two words]", "[*]"]


def test_dev_works_from_any_folder_and_for_any_command(checkout: Path) -> None:
    elsewhere = checkout / "elsewhere"
    elsewhere.mkdir()
    done = in_checkout(elsewhere, str(checkout / "dev"), "run", "sh", "-c", "pwd; exit 5")
    assert (done.returncode, done.stdout.strip()) == (5, str(elsewhere))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_dev_teaches(checkout: Path, arguments: list[str]) -> None:
    done = in_checkout(checkout, "./dev", *arguments)
    assert done.returncode == 0
    for command in ("demo", "test", "check", "fuzz", "bench", "run", "setup"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["run", "no-such-command"], ["check", "more"]])
def test_dev_refuses_wrong_usage_in_one_line(checkout: Path, arguments: list[str]) -> None:
    done = in_checkout(checkout, "./dev", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_dev_explains_when_there_is_no_python(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    done = in_checkout(ROOT, str(tools / "sh"), "./dev", "--help", PATH=str(tools), GYM_CKPT_PYTHON="")
    assert done.returncode == 2
    assert "no Python 3.11 or newer" in done.stderr


def test_dev_makes_an_interrupted_environment_anew_and_keeps_a_whole_one(checkout: Path) -> None:
    ask = f"{RECIPE}; print(dev.is_current(), dev.works())"
    shutil.rmtree(checkout / ".venv")
    in_checkout(checkout, sys.executable, "-m", "venv", "--without-pip", ".venv")
    assert in_checkout(checkout, sys.executable, "-c", ask).stdout.split() == ["False", "False"], (
        "nothing installs there"
    )
    (packages,) = (checkout / ".venv" / "lib").glob("python*/site-packages")
    (packages / "pip.py").touch()
    assert in_checkout(checkout, sys.executable, "-c", ask).stdout.split() == ["False", "True"]
    (checkout / ".venv" / ".unfinished").touch()
    assert in_checkout(checkout, sys.executable, "-c", ask).stdout.split() == ["False", "False"]


def test_dev_notices_that_requirements_have_changed(checkout: Path) -> None:
    ask = f"{RECIPE}; print(dev.is_current())"
    assert in_checkout(checkout, sys.executable, "-c", ask).stdout.strip() == "True"
    with (checkout / "requirements.txt").open("a") as file:
        file.write("\n")
    assert in_checkout(checkout, sys.executable, "-c", ask).stdout.strip() == "False"


def test_an_installer_that_outlives_its_dev_keeps_the_next_one_waiting(checkout: Path) -> None:
    (checkout / ".venv" / ".complete").unlink()
    killed = (
        f"{RECIPE}; import os, signal, subprocess\n"
        "with dev.locked() as lock:\n"
        "    subprocess.Popen(['sh', '-c', 'read line; touch installed'], pass_fds=(lock,))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    following = (
        f"{RECIPE}\n"
        "def make(lock):\n    print(os.path.exists('installed')); dev.STAMP.write_text(dev.recipe())\n"
        "import os; dev.make_environment = make; dev.ensure_environment()"
    )
    with subprocess.Popen([sys.executable, "-c", killed], cwd=checkout, stdin=subprocess.PIPE) as first:
        first.wait(timeout=60)
        with subprocess.Popen(
            [sys.executable, "-c", following], cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr is not None
            assert "waiting" in second.stderr.readline()
            assert first.stdin is not None
            first.stdin.write(b"go on\n")
            first.stdin.flush()
            assert second.communicate(timeout=60)[0].strip() == "True"


def test_two_devs_at_once_make_one_environment(checkout: Path) -> None:
    (checkout / ".venv" / ".complete").unlink()
    slow = (
        f"{RECIPE}; import time\n"
        "def make(lock):\n    print('made', flush=True); time.sleep(0.3); dev.STAMP.write_text(dev.recipe())\n"
        "dev.make_environment = make; dev.ensure_environment(); print(dev.is_current())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", slow], cwd=checkout, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].split() for process in both]
    assert sorted(outputs) == [["True"], ["made", "True"]]
