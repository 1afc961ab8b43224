"""The rules of the house as tests. Each failure names the file, the line and the mend.

`lint-imports` checks the layers (pyproject.toml); what is here concerns single modules: what may be imported, kept or
written where. A rule that gets in the way is changed here, in its own commit, with the reason. Long because
the rules stand together.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gym_ckpt.words import counted

ROOT = Path(__file__).resolve().parents[2]
PYTHON_FOLDERS = ("gym_ckpt", "sim", "faults", "e2e", "benchmarks", "examples", "tests", "tools")
SKIPPED_FOLDERS = {".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__"}

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
EXPLANATION = "Long because"
"""A docstring with these words may be longer than the limits: it says why."""

WORLD = {
    "asyncio",
    "trio",
    "time",
    "random",
    "uuid",
    "secrets",
    "os",
    "socket",
    "threading",
    "multiprocessing",
    "select",
}
"""What differs between production and the simulator. Only the adapters may import it."""
MACHINE = {"subprocess", "signal", "shutil", "tempfile", "glob", "fcntl", "pathlib"}
"""What the command line needs to talk to a person's machine; the simulator never runs that part."""
ALLOWED = {
    ("gym_ckpt/storage/abort.py", "threading"): "a lock between a disk job's thread and the loop, never held in a wait",
    ("gym_ckpt/storage/ownership.py", "threading"): "a lock between the threads of two disk jobs, never held in a wait",
}
"""Exceptions, each with its reason."""
OTHER_SIDE = {"sim", "faults", "e2e", "benchmarks", "examples", "tests"}
MENDS = {
    "asyncio": "use anyio",
    "trio": "use anyio",
    "time": "use anyio.current_time() for durations, ports.Clock for the wall clock",
    "random": "use ports.Entropy",
    "uuid": "use ports.Entropy.token",
    "secrets": "use ports.Entropy.token",
    "os": "use ports.FileSystem, or ports.Ports.pid",
    "socket": "use ports.HttpClient or ports.HttpServer",
    "pathlib": "use ports.FileSystem in a ports.Job (PurePath is allowed)",
    "signal": "use ports.Signals",
    "threading": "use ports.Disk for work in a thread; nothing else runs in one",
}

MUTABLE_TYPES = {
    "dict", "list", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter", "count", "WeakKeyDictionary",
    "WeakValueDictionary", "WeakSet", "Event", "Lock", "Condition", "Semaphore",
}  # fmt: skip
MUTATORS = {
    "append", "add", "update", "pop", "popitem", "popleft", "appendleft", "setdefault", "clear", "extend", "remove",
    "discard", "insert", "sort", "reverse", "set",
}  # fmt: skip
HTTP_CALLS = {"request", "stream", "get", "post", "put", "patch", "delete", "build_request", "Request"}


@dataclass(frozen=True)
class Module:
    """One parsed file."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def at(self, node: ast.stmt | ast.expr, what: str) -> str:
        return f"{self.path}:{node.lineno}: {what}"

    def is_in(self, *folders: str) -> bool:
        return any(self.path.startswith(f"{folder}/") for folder in folders)


def parse(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text))


def modules(*folders: str) -> list[Module]:
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in found]


@pytest.fixture(scope="module")
def implementation() -> list[Module]:
    found = modules("gym_ckpt")
    assert len(found) > 10, "the rules must have something to look at"
    return found


@pytest.fixture(scope="module")
def everything() -> list[Module]:
    return modules(*PYTHON_FOLDERS)


Rule = Callable[[Module], Iterator[str]]


def hold(rule: Rule, found: Sequence[Module]) -> None:
    """Fail with one line per violation and nothing else."""
    if lines := [line for module in found for line in rule(module)]:
        pytest.fail("\n".join(lines), pytrace=False)


# --------------------------------------------------------------------------------------------------- imports


def imports(module: Module) -> Iterator[tuple[ast.stmt, str, list[str]]]:
    """Every absolute import, wherever it stands: statement, module, names taken from it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name, []
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node, node.module, [alias.name for alias in node.names]


def reaches_for_the_world(module: Module) -> Iterator[str]:
    if module.is_in("gym_ckpt/adapters"):
        return
    banned = WORLD if module.is_in("gym_ckpt/cli") else WORLD | MACHINE
    for node, name, taken in imports(module):
        top = name.split(".")[0]
        if top == "pathlib" and taken and all(part.startswith("Pure") for part in taken):
            continue
        if top in banned and (module.path, top) not in ALLOWED:
            yield module.at(node, f"imports {name}; {MENDS.get(top, 'put it behind a port, in gym_ckpt/adapters')}")
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("open", "input"):
            yield module.at(call, f"calls {call.func.id}(); use ports.FileSystem in a ports.Job")


def knows_the_other_side(module: Module) -> Iterator[str]:
    for node, name, _ in imports(module):
        if name.split(".")[0] in OTHER_SIDE:
            yield module.at(node, f"imports {name}; gym_ckpt must not know it: turn the dependency round")


def test_only_adapters_reach_for_the_world(implementation: list[Module]) -> None:
    hold(reaches_for_the_world, implementation)


def test_the_implementation_does_not_know_the_simulator(implementation: list[Module]) -> None:
    hold(knows_the_other_side, implementation)


def test_httpx_has_one_home(implementation: list[Module]) -> None:
    homes = {
        module.path for module in implementation for _, name, _ in imports(module) if name.split(".")[0] == "httpx"
    }
    assert homes <= {"gym_ckpt/adapters/http_client.py"}, (
        f"use ports.HttpClient; its adapter alone knows httpx: {homes}"
    )


# ------------------------------------------------------------------------------------------------------ JSON


def writes_json_through_a_library(module: Module) -> Iterator[str]:
    """NaN must travel (INV-60s): httpx's `json=` and Starlette's JSONResponse raise on it, msgspec.json nulls it."""
    mend = "send bytes made by gym_ckpt.wire.json"
    if module.path == "gym_ckpt/wire/json.py":  # the one way: it knows which values msgspec writes as they are
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in HTTP_CALLS and any(keyword.arg == "json" for keyword in node.keywords):
                yield module.at(node, f"passes json= to {name}(); {mend}")
        if isinstance(node, ast.Attribute) and node.attr == "json" and getattr(node.value, "id", "") == "msgspec":
            yield module.at(node, f"uses msgspec.json, which writes NaN as null; {mend}")
    for statement, name, taken in imports(module):
        if "JSONResponse" in taken or name == "orjson" or name.startswith("msgspec.json"):
            yield module.at(statement, f"imports {', '.join(taken) or name}; {mend}")


def test_json_is_written_in_one_way(everything: list[Module]) -> None:
    hold(writes_json_through_a_library, everything)


# ------------------------------------------------------------------------------------------- shared state


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)):
        return True
    if isinstance(value, ast.Call):
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return called in MUTABLE_TYPES
    return False


def assignments(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str, str, ast.expr | None]]:
    """Statement, name, annotation, value of the plain assignments of a body."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield node, target.id, "", node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node, node.target.id, ast.unparse(node.annotation), node.value


def shares_mutable_state(module: Module) -> Iterator[str]:
    """A table is allowed when it is annotated (so that it is meant), and nothing in the module changes it."""
    tables = set()
    for statement, name, annotation, value in assignments(module.tree.body):
        if name == "__all__" or not is_mutable(value):
            continue
        tables.add(name)
        if not annotation or isinstance(value, ast.Call):
            mend = "annotate a constant table with Final, or keep state in an object"
            yield module.at(statement, f"{name} can change and is shared by all nodes of a simulation; {mend}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            for statement, name, annotation, value in assignments(node.body):
                if is_mutable(value) and not annotation and not name.startswith("__"):
                    yield module.at(statement, f"{node.name}.{name} is shared by all instances; make it in __init__")
        if isinstance(node, ast.Global):
            yield module.at(node, f"`global {', '.join(node.names)}`; keep state in an object")
        changed = changed_name(node)
        if changed in tables and isinstance(node, (ast.stmt, ast.expr)):
            yield module.at(node, f"changes the module's table {changed}; keep state in an object")


def changed_name(node: ast.AST) -> str | None:
    """The bare name of a collection that this node changes in place."""
    targets: Sequence[ast.expr] = ()
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.AugAssign):
        targets = [node.target.value if isinstance(node.target, ast.Subscript) else node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        targets = [node.func.value]
    return next((target.id for target in targets if isinstance(target, ast.Name)), None)


def test_modules_hold_no_state(implementation: list[Module]) -> None:
    hold(shares_mutable_state, implementation)


# ------------------------------------------------------------------------------------------------------ size


def is_long(module: Module) -> Iterator[str]:
    mend = f"split it, or say '{EXPLANATION} ...' in its docstring"
    if module.lines > FILE_LINES_MAX and EXPLANATION not in (ast.get_docstring(module.tree) or ""):
        yield f"{module.path}:1: {module.lines} lines, more than {FILE_LINES_MAX}; {mend}"
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX and EXPLANATION not in (ast.get_docstring(node) or ""):
                yield module.at(node, f"{node.name} has {length} lines, more than {FUNCTION_LINES_MAX}; {mend}")


def says_what_it_is(module: Module) -> Iterator[str]:
    if module.text.strip() and not ast.get_docstring(module.tree):
        yield f"{module.path}:1: no docstring; say what it is, which invariants it keeps, and what it must not know"


def test_files_and_functions_are_short_or_say_why_not(everything: list[Module]) -> None:
    hold(is_long, everything)


def test_modules_say_what_they_are(implementation: list[Module]) -> None:
    hold(says_what_it_is, implementation)


# ----------------------------------------------------------------------------------------------------- words


def banned_words() -> re.Pattern[str]:
    """Spelled in parts, so that this file does not hold them."""
    hosts = ["pypi" + ".org", "python" + "hosted", "registry." + "npmjs", "deb." + "debian", "crates" + ".io"]
    places = [
        "/wo" + "rk/",
        "/opt/" + "pypi",
        "/opt/" + "wheels",
        r"\.\./shared" + "/",
        "shared" + "/(?:spec|style|lab)",
    ]
    return re.compile("|".join([*(re.escape(host) for host in hosts), *places]))


def texts() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        if path.is_file() and not SKIPPED_FOLDERS & set(inside.parts) and path.stat().st_size < 1_000_000:
            try:
                yield inside.as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_no_file_names_a_registry_or_a_place_outside_the_repository() -> None:
    banned = banned_words()
    found = [
        f"{name}:{number}: {line.strip()[:100]!r}; name no package index and no path of one machine"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if banned.search(line)
    ]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


COUNTED = (
    "attempts|calls|checkpoints|effects|episodes|events|failures|faults|files|lineages|parts|plans|problems|processes|"
    "records|rollouts|rows|seeds|servers|turns"
)
COUNTED_IN = re.compile(rf" (?:(?:failed|ledger|model|source|tool) )?(?:{COUNTED})\b(?![/=])")


def counts_by_hand(module: Module) -> Iterator[str]:
    """A limit, in capitals, is known not to be one."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for number, text in itertools.pairwise(node.values):
            if isinstance(number, ast.FormattedValue) and isinstance(text, ast.Constant):
                value = ast.unparse(number.value)
                found = COUNTED_IN.match(str(text.value))
                if found and not value.isupper() and not value.startswith("counted("):
                    yield module.at(node, f"{{{value}}}{found[0]} may be 1; use gym_ckpt.words.counted")


def test_nouns_are_counted_in_one_place() -> None:
    hold(counts_by_hand, modules("gym_ckpt", "sim", "faults", "tools", "examples"))


def test_what_is_counted_is_one_or_many() -> None:
    said = [counted(0, "row"), counted(1, "row"), counted(1204, "row"), counted(8, "process", "processes")]
    assert said == ["0 rows", "1 row", "1,204 rows", "8 processes"]


# -------------------------------------------------------------------------------------- the rules themselves


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (reaches_for_the_world, "gym_ckpt/core/a.py", "def f():\n    import time"),
        (reaches_for_the_world, "gym_ckpt/core/a.py", "from os import path"),
        (reaches_for_the_world, "gym_ckpt/core/a.py", "from pathlib import PurePath, Path"),
        (reaches_for_the_world, "gym_ckpt/core/a.py", "f = open('x')"),
        (reaches_for_the_world, "gym_ckpt/cli/a.py", "import asyncio.subprocess"),
        (knows_the_other_side, "gym_ckpt/cli/a.py", "def f():\n    from sim.world import World"),
        (writes_json_through_a_library, "e2e/a.py", "client.post('/x', json={})"),
        (writes_json_through_a_library, "sim/a.py", "from starlette.responses import JSONResponse"),
        (writes_json_through_a_library, "sim/a.py", "msgspec.json.encode(1)"),
        (shares_mutable_state, "gym_ckpt/a.py", "seen = set()"),
        (shares_mutable_state, "gym_ckpt/a.py", "SEEN: set[str] = set()"),
        (shares_mutable_state, "gym_ckpt/a.py", "TABLE = {}"),
        (shares_mutable_state, "gym_ckpt/a.py", "T: Final = {}\ndef f():\n    T['a'] = 1"),
        (shares_mutable_state, "gym_ckpt/a.py", "T: Final = []\ndef f():\n    T.append(1)"),
        (shares_mutable_state, "gym_ckpt/a.py", "def f():\n    global x\n    x = 1"),
        (shares_mutable_state, "gym_ckpt/a.py", "class A:\n    cache = {}"),
        (is_long, "sim/a.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
        (is_long, "sim/a.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
        (says_what_it_is, "gym_ckpt/a.py", "x = 1"),
        (counts_by_hand, "gym_ckpt/a.py", "f'{len(rows)} rows are lost'"),
        (counts_by_hand, "sim/a.py", "f'{n} failed plans'"),
    ],
)
def test_every_rule_sees_what_it_is_there_for(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (reaches_for_the_world, "gym_ckpt/adapters/a.py", "import os, time"),
        (reaches_for_the_world, "gym_ckpt/core/a.py", "from pathlib import PurePosixPath\nfile.open('x')"),
        (reaches_for_the_world, "gym_ckpt/cli/a.py", "import signal\nfrom pathlib import Path"),
        (writes_json_through_a_library, "gym_ckpt/a.py", "from gym_ckpt.wire import json\njson.encode({})"),
        (shares_mutable_state, "gym_ckpt/a.py", "T: Final = {'a': 1}\nU = (1,)\n__all__ = ['f']\ndef f():\n    x = []"),
        (is_long, "sim/a.py", f'"""A table. {EXPLANATION} it lists all."""\n' + "x = 1\n" * FILE_LINES_MAX),
        (says_what_it_is, "gym_ckpt/a.py", ""),
        (counts_by_hand, "gym_ckpt/a.py", "f'{rate} rows/s, at most {ROWS_MAX} rows, {counted(n, noun)} of {name}'"),
    ],
)
def test_no_rule_sees_more_than_that(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(parse(path, text)))
