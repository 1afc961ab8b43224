"""The commands of a checkout, each of which installs what it needs first.

What it needs goes into `.venv`, from the hashed requirements.txt; nothing else on the machine is touched. Progress goes
to standard error, so that standard output is the command's own. Runs on the standard library alone.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMP = VENV / ".complete"
"""Written last: holds the digest of what the environment was made from."""
UNFINISHED = VENV / ".unfinished"
"""There while packages are being installed: an environment found with it was interrupted and is made anew."""
WORLDS = ("sim-throughput", "sim-scale", "bug-power")
"""Benchmarks that run simulated worlds."""
PYTHON = ("gym_ckpt", "sim", "faults", "e2e", "benchmarks", "examples", "tests", "tools")
RULES = ("tests/unit/test_architecture.py", "tests/unit/test_repository.py")

HELP = """\
usage: ./dev COMMAND [ARGUMENTS...]

  demo    run the main job: start a gym, checkpoint it, kill every process, restore, compare   ./dev demo --json
  test    run the tests on every core (arguments go to pytest)                  ./dev test tests/unit -k lease -x
  check   lint, format, types, import layers, architecture rules
  fuzz    many seeds in the simulator (arguments go to `gym-ckpt sim fuzz`)      ./dev fuzz --seeds 0..2000
  bench   one benchmark, or a list of them (python -m benchmarks)                ./dev bench sim-throughput --json
  run     any command inside the environment                                     ./dev run gym-ckpt sim run --seed 7
  setup   make the environment and stop

The first command makes .venv in this checkout (about half a minute, 170 MB) from requirements.txt, where every
package is pinned by its hash; later ones start at once, until that file changes. `rm -r .venv` starts over.
Arguments pass through unchanged, and so does the exit status. GYM_CKPT_PYTHON names another Python (3.11 or newer).
"""


def say(text: str) -> None:
    print(f"dev: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    say(text)
    sys.exit(2)


# ------------------------------------------------------------------------------------------------ environment


def recipe() -> str:
    """Digest of everything that decides what the environment holds. The path counts: scripts in it name it."""
    digest = hashlib.sha256(f"{VENV}\n".encode())
    for name in ("requirements.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def works() -> bool:
    """Whether there is an environment that can be brought up to date in place."""
    if UNFINISHED.exists() or not (BIN / "python").exists():
        return False
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 11) or sys.prefix != sys.argv[1])"
    done = subprocess.run([BIN / "python", "-c", probe, str(VENV)], capture_output=True, check=False)
    return done.returncode == 0


def is_current() -> bool:
    try:
        return STAMP.read_text() == recipe() and (BIN / "python").exists()
    except FileNotFoundError:
        return False


@contextmanager
def locked() -> Iterator[int]:
    """One set-up at a time; the kernel drops the lock with its last holder, however that ends.

    Installers hold it too: one that outlives a killed ./dev must not write into an environment that is made anew.
    """
    with open(ROOT / ".venv.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another ./dev is making the environment; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def step(lock: int, *command: str | Path) -> None:
    """Run a set-up command with its output on standard error."""
    hidden = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PYTHONHOME", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command, stdout=sys.stderr, stdin=subprocess.DEVNULL, env=env, cwd=ROOT, pass_fds=(lock,), check=False
    )
    if done.returncode:
        fail(f"set-up failed at `{' '.join(str(part) for part in command[1:])}` (above); mend it and run ./dev again")


def make_environment(lock: int) -> None:
    if not works():
        say(f"making .venv with Python {sys.version.split()[0]}")
        shutil.rmtree(VENV, ignore_errors=True)
        VENV.mkdir()
        UNFINISHED.touch()
        # Not sys.executable: with the old environment activated that would be the one just removed.
        step(lock, getattr(sys, "_base_executable", sys.executable), "-m", "venv", VENV)
    UNFINISHED.touch()
    STAMP.unlink(missing_ok=True)
    pip = (BIN / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")
    say("installing what requirements.txt pins")
    step(lock, *pip, "--require-hashes", "--requirement", "requirements.txt")
    step(lock, *pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    draft = STAMP.with_suffix(".draft")
    draft.write_text(recipe())
    UNFINISHED.unlink()
    draft.rename(STAMP)
    say("the environment is ready")


def ensure_environment() -> None:
    if is_current():
        return
    with locked() as lock:
        if not is_current():
            make_environment(lock)


# --------------------------------------------------------------------------------------------------- commands


def become(program: str, *arguments: str) -> NoReturn:
    """Replace this process, so that signals and the exit status are the command's own."""
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
    os.environ.pop("PYTHONHOME", None)
    found = shutil.which(program)
    if found is None:
        fail(f"no command {program!r} in .venv/bin or on PATH")
    sys.stdout.flush()
    os.execv(found, [program, *arguments])


def use_large_pages() -> None:
    """For what runs worlds: in a virtual machine, up to half of their time went into finding small pages of memory.

    Read by glibc when a process starts, and by nobody elsewhere. Whoever has set them knows better.
    """
    os.environ.setdefault("PYTHONMALLOC", "malloc")
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")


def check() -> int:
    """Run every check, whatever the others say; the status is the first failure's."""
    python = str(BIN / "python")
    sources = [*(name for name in PYTHON if any((ROOT / name).rglob("*.py"))), "conftest.py"]
    steps = {
        "lint": [python, "-m", "ruff", "check", *sources],
        "format": [python, "-m", "ruff", "format", "--check", *sources],
        "types": [python, "-m", "mypy", *sources],
        "import layers": [str(BIN / "lint-imports"), "--no-logo"],
        "architecture": [python, "-m", "pytest", "-q", *RULES],
    }
    statuses: dict[str, int] = {}
    for name, command in steps.items():
        print(f"--- {name}", flush=True)
        statuses[name] = subprocess.run(command, cwd=ROOT, check=False).returncode
    print("\n".join(f"{'ok  ' if status == 0 else 'FAIL'} {name}" for name, status in statuses.items()), flush=True)
    return next((status for status in statuses.values() if status), 0)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command, *rest = arguments
    if command not in ("demo", "test", "check", "fuzz", "bench", "run", "setup"):
        fail(f"no command {command!r}; see ./dev --help")
    if command == "run" and not rest:
        fail("run what? For example ./dev run gym-ckpt --help")
    if command == "check" and rest:
        fail("check takes no arguments; a single check is for example ./dev run ruff check sim")
    ensure_environment()
    match command:
        case "demo":
            become("gym-ckpt", "demo", *rest)
        case "test":
            os.chdir(ROOT)
            become("python", "-m", "pytest", "-n", "auto", *rest)
        case "check":
            return check()
        case "fuzz":
            use_large_pages()
            become("gym-ckpt", "sim", "fuzz", *rest)
        case "bench":
            os.chdir(ROOT)
            if rest and rest[0] in WORLDS:
                use_large_pages()
            become("python", "-m", "benchmarks", *rest)
        case "run":
            become(*rest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
