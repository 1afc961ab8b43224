"""The documents say what the code does: every key, code, class, event, message and command, and no other."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import anyio
import msgspec
import pytest

from gym_ckpt import Gym, errors, limits
from gym_ckpt.adapters.host import free_ports
from gym_ckpt.adapters.http_client import HttpxClient
from gym_ckpt.cli import endings
from gym_ckpt.cli.collect import LOGGED
from gym_ckpt.cli.config import load_mapping, read_file
from gym_ckpt.cli.config_types import SERVER_KINDS
from gym_ckpt.controller.outcome import KILLED_STATUS
from gym_ckpt.gyms import by_name
from gym_ckpt.settings import CheckpointSettings, CollectSettings, GymSettings
from gym_ckpt.storage import layout
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from tests.unit.documents import (
    PAGES,
    ROOT,
    blocks,
    broken_links,
    commands,
    executed,
    name_of,
    snippets,
    unknown,
)

CODE = re.compile(r"`([^`]+)`")


def page(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def text_of(name: str) -> str:
    return page(name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """From a heading's line to the next heading of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"there is no heading {heading!r}"
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of all tables in `text`, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {index for index, line in enumerate(lines) if re.fullmatch(r"[|-]+", line)}
    kept = [line for index, line in enumerate(lines) if index not in heads and index + 1 not in heads]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in kept]


# ------------------------------------------------------------------------------------------------ configuration


def tables() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    yield "### Top level", GymSettings
    yield "### `[checkpoint]`", CheckpointSettings
    yield "### `[collect]`", CollectSettings
    for kind, settings in SERVER_KINDS.items():
        yield f'### `kind = "{kind}"`', cast(type[msgspec.Struct], settings)


def default_of(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    return "unset" if value is None else f"`{json.dumps(value).decode()}`"


@pytest.mark.parametrize(("heading", "settings"), list(tables()), ids=lambda value: getattr(value, "__name__", ""))
def test_every_key_is_documented_with_its_default_and_no_other(heading: str, settings: type[msgspec.Struct]) -> None:
    documented = {CODE.findall(row[0])[0]: row[1] for row in rows(section(text_of("configuration"), heading))}
    assert documented == {field.encode_name: default_of(field) for field in msgspec.structs.fields(settings)}


def test_every_table_of_keys_is_compared() -> None:
    headings = re.findall(r"^### .*$", text_of("configuration"), re.MULTILINE)
    assert sorted(headings) == sorted(heading for heading, _ in tables())


def test_the_shortest_configuration_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYM_TOKEN", "secret")
    found = [body for language, body in blocks(page("configuration")) if language == "toml"]
    assert found
    for body in found:
        (tmp_path / "gym.toml").write_text(body)
        loaded = load_mapping(read_file(tmp_path / "gym.toml"), folder=tmp_path, source="docs")
        assert loaded.settings.checkpoint is not None and loaded.settings.collect is not None


# ------------------------------------------------------------------------------------------------------- errors


def test_every_wire_code_is_documented_with_its_status() -> None:
    documented = [(CODE.findall(row[0])[0], int(row[1])) for row in rows(section(text_of("errors"), "## On the wire"))]
    assert sorted(documented) == sorted((code, cls.status) for code, cls in errors.BY_CODE.items())


def test_every_class_of_errors_is_documented() -> None:
    named = [name for row in rows(section(text_of("errors"), "## In Python")) for name in CODE.findall(row[0])]
    ours = [name for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.GymCkptError)]
    assert sorted(named) == sorted(ours)


def test_every_exit_status_is_documented() -> None:
    documented = [int(row[0]) for row in rows(section(text_of("errors"), "## Exit statuses"))]
    assert documented == sorted({0, endings.DID_NOT_HAPPEN, endings.USAGE_ERROR, endings.INTERRUPTED, KILLED_STATUS})


# --------------------------------------------------------------------------------------------------- operations


def test_every_event_of_the_log_is_documented() -> None:
    documented = [CODE.findall(row[0])[0] for row in rows(section(text_of("operations"), "## Log events"))]
    assert sorted(documented) == sorted(LOGGED)


def test_every_file_of_a_run_directory_is_documented() -> None:
    named = " ".join(row[0] + row[1] for row in rows(section(text_of("operations"), "## Files of a run directory")))
    files = (layout.latest, layout.run_file, layout.collector_pid, layout.serve_pid, layout.dispatched)
    for path in (file(".") for file in files):
        assert f"`{Path(path).name}`" in named
    assert layout.output_lock("`…") + "`" in named
    for name in (layout.COLLECTION, layout.MANIFEST, layout.CHECKPOINTS, layout.GYM):
        assert name in named


def spoken() -> str:
    """Every text that the package can print, its variable parts as `…`."""
    found = []
    for path in sorted((ROOT / "gym_ckpt").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_message_that_is_explained_can_be_met() -> None:
    source = spoken()
    explained = [CODE.findall(row[0])[0] for row in rows(section(text_of("operations"), "## What a message means"))]
    assert len(explained) > 10
    for message in explained:
        for part in re.split(r"…|\bN\b|\(123\)", message):
            assert part.strip(" :,") in source, f"nothing says {part!r}"


def test_the_times_that_are_named_are_those_of_the_limits() -> None:
    text = text_of("operations")
    assert limits.SERVERS_WAIT_S == 600 and "waits for the servers to answer, ten minutes" in text
    assert limits.DRAIN_S == 10 and "drains every server for up to 10 s" in text
    assert limits.ROWS_RETRY_BUDGET_S == 600 and "make room within ten minutes" in text
    assert limits.BUDGET_MAX_S == 3600 and "at most 3600, for one checkpoint" in text_of("configuration")


# ----------------------------------------------------------------------------------------- commands and snippets


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_exists_with_its_options(page: Path) -> None:
    assert [missing for words in commands(page) if (missing := unknown(words)) is not None] == []


def test_commands_are_found_and_those_that_do_not_exist_are_named(tmp_path: Path) -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 50
    (tmp_path / "page.md").write_text(
        "`gym-ckpt colect`, `./dev fuzz --seds 0..2` and `./dev run gym-ckpt sim replay --until 3` are commands:\n\n"
        "```\nHOME=/tmp gym-ckpt config show --jsn | less  # like that\n```\n"
    )
    said = list(commands(tmp_path / "page.md"))
    assert said[0] == ["config", "show", "--jsn"] and len(said) == 4
    assert [unknown(words) for words in said] == ["show --jsn", "gym-ckpt colect", "fuzz --seds", None]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_links_that_lead_nowhere_are_seen(tmp_path: Path) -> None:
    links = "[b](b.md), [c](c.md), [there](#the-1st-part), [not](#the-2nd), [out](https://x.y)"
    (tmp_path / "a.md").write_text(f"{links}\n\n## The 1st part\n")
    (tmp_path / "b.md").touch()
    assert list(broken_links(tmp_path / "a.md")) == ["c.md", "#the-2nd"]


RUN = [(page, name) for page in PAGES for name in snippets(page) if name != "failed"]
"""The one that is left out is run by the test of what it shows."""


@pytest.mark.parametrize(("page", "name"), RUN, ids=[f"{page.stem}-{name}" for page, name in RUN])
def test_every_snippet_runs(page: Path, name: str) -> None:
    executed(page, name)


# ------------------------------------------------------------------------------------------ the worked examples


@pytest.fixture
def anyio_backend() -> str:
    """Production's event loop."""
    return "asyncio"


@pytest.mark.anyio
async def test_the_gym_of_the_docs_carries_a_session_over(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("docs_safe")
    vars(module).update(executed(page("servers"), "gym"))
    monkeypatch.setitem(sys.modules, "docs_safe", module)
    gym: Gym = by_name("docs_safe:SafeGym")
    task = {"code": 7}
    state = await gym.seed(task)
    assert await gym.call(state, "guess", {"code": 3}) == {"open": False}
    exported = json.loads(json.dumps(await gym.export_session_state(state)))
    await gym.check_session_state(exported)
    restored = await by_name("docs_safe:SafeGym").restore_session_state(exported)
    assert await gym.call(restored, "guess", {"code": 7}) == {"open": True}
    assert await gym.verify(restored, task, []) == {"reward": 1.0, "tries": 2}
    assert state == exported  # the copy went on alone
    with pytest.raises(ValueError, match="a safe has"):
        await gym.check_session_state({"code": 7})


class Driver:
    """A controller of one server, by hand."""

    def __init__(self, http: HttpxClient, url: str, folder: Path) -> None:
        self.http, self.url, self.folder = http, url, folder

    async def write(self, episode: EpisodeId, note: str) -> tuple[int, str]:
        url = f"{self.url}/ng-rollout/{episode.key}/write"
        reply = await self.http.request("POST", url, body=note.encode(), timeout_s=10)
        return reply.status, reply.body.decode().strip()

    async def control(self, operation: str, checkpoint_id: str | None = None, **fields: Any) -> Any:
        whose = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
        body = {**whose, "deadline_ts": 4e9, "budget_s": 10.0, **fields}
        url = f"{self.url}/ng-control/v1/checkpoint/{operation}"
        headers = (("authorization", "Bearer secret"), ("content-type", "application/json"))
        reply = await self.http.request("POST", url, headers=headers, body=json.dumps(body), timeout_s=10)
        assert reply.status == 200, reply.body
        return json.loads(reply.body)

    def scope(self, *episodes: EpisodeId) -> dict[str, Any]:
        refs = [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in episodes]
        return {"checkpoint_dir": str(self.folder), "episode_ids": refs}


@pytest.mark.anyio
async def test_the_server_of_the_docs_is_checkpointed_and_restored(tmp_path: Path) -> None:
    serve = executed(page("servers"), "server")["serve"]
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    row, other = EpisodeId("row-7"), EpisodeId("row-8")
    async with HttpxClient() as http:
        driver = Driver(http, url, tmp_path / "c1")
        async with Serving(serve, url):
            assert await driver.write(row, "first") == (200, "1")
            assert await driver.write(other, "left out") == (200, "1")
            assert (await driver.control("prepare", "c1"))["phase"] == "prepared"
            reply = await driver.control("commit", "c1", stop=True, **driver.scope(row))
            assert reply["episode_ids"] == ["row-7"] and reply["manifest"]["record_count"] == 1
        async with Serving(serve, url):
            assert (await driver.control("restore", "r1", **driver.scope(row)))["installed"] == ["row-7-a1"]
            await driver.control("resume", "r1")
            assert await driver.write(row.next(), "second") == (200, "2")
            assert (await driver.write(row, "from the dead attempt"))[0] == 409
            await driver.control("retire", episode_ids=driver.scope(row)["episode_ids"])  # the dead one: no harm
            assert await driver.write(row.next(), "third") == (200, "3")


class Serving:
    """The documented `serve`, running for the length of a `with`."""

    def __init__(self, serve: Any, url: str) -> None:
        self._serve, self._url = serve, url
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> None:
        await self._tasks.__aenter__()
        ready = anyio.Event()
        self._tasks.start_soon(partial(self._serve, self._url, "secret", ready.set))
        with anyio.fail_after(10):
            await ready.wait()

    async def __aexit__(self, *reason: Any) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
