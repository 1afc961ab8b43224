"""What a stranger can send to a gym's servers is refused with a typed error, and every server lives on."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ckpt.core.agent_session import ToolCall
from gym_ckpt.limits import DATA_BODY_MAX_BYTES, TASK_DEPTH_MAX
from gym_ckpt.participants.agent import _refusal
from gym_ckpt.participants.resources import COOKIE
from gym_ckpt.ports import Ports
from gym_ckpt.runtime import install
from gym_ckpt.runtime.asgi import Answer, Request, Route, Router, answer, episode_context, tagged
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX, report
from sim.cluster import until
from sim.world import World
from tests.scenario.asserting_gym import CLOSED
from tests.scenario.servers import FAR, Ask, R, ask_servers, say, seeded


def test_a_task_nested_too_deeply_is_refused_and_kills_nobody() -> None:
    async def story(ask: Ask, _: World) -> None:
        task = b'{"a":' * 250 + b"1" + b"}" * 250
        body = b'{"episode_id":{"rollout_id":"r"},"task":' + task + b"}"
        reply = await ask("environment", tagged("", R, "/run"), body)
        assert reply.status == 400 and b"invalid_request" in reply.body

    ask_servers(story)


def test_a_task_as_deep_as_an_input_may_hold_runs_to_its_end() -> None:
    """What its messages and states become part of is deeper still."""

    async def story(ask: Ask, _: World) -> None:
        depth = TASK_DEPTH_MAX - 3
        part = b'{"a":' * depth + b"1" + b"}" * depth
        task = b'{"messages":[{"role":"user","content":"count","more":' + part + b"}]}"
        body = b'{"episode_id":{"rollout_id":"r"},"task":' + task + b"}"
        reply = await ask("environment", tagged("", R, "/run"), body)
        assert (reply.status, json.loads(reply.body)["status"]) == (200, "finished"), reply.body

    ask_servers(story)


@pytest.mark.parametrize(
    "fields",
    [
        b'"resources_url":"http://inventory:99999","cookie":"a"',
        b'"resources_url":"inventory","cookie":"a"',
        b'"resources_url":"http://inventory:80","cookie":"a\\r\\nx: y"',
        b'"resources_url":"http://inventory:80","cookie":"\\u4e2d"',
    ],
)
def test_a_session_that_could_call_nobody_is_not_opened(fields: bytes) -> None:
    async def story(ask: Ask, _: World) -> None:
        reply = await ask("agent", tagged("", R, "/v1/agent_sessions"), b'{"messages":[],' + fields + b"}")
        assert reply.status == 400 and b"invalid_request" in reply.body

    ask_servers(story)


@pytest.mark.parametrize("operation", ["commit", "restore"])
@pytest.mark.parametrize("directory", [b'""', b'"relative/dir"', b'"/a\\u0000b"'])
def test_a_checkpoint_directory_that_is_no_absolute_path_is_refused(operation: str, directory: bytes) -> None:
    async def story(ask: Ask, world: World) -> None:
        before = world.disk.tree()
        body = b'{"checkpoint_id":"c","deadline_ts":%f,"episode_ids":[],"checkpoint_dir":%s}' % (FAR, directory)
        reply = await ask("verifier", CONTROL_PREFIX + operation, body)
        assert reply.status == 400 and b"checkpoint_dir" in reply.body
        assert world.disk.tree() == before

    ask_servers(story)


def test_a_prepare_that_comes_after_its_deadline_closes_nothing() -> None:
    async def story(ask: Ask, world: World) -> None:
        reply = await ask("verifier", CONTROL_PREFIX + "prepare", b'{"checkpoint_id":"c","deadline_ts":1.0}')
        assert reply.status == 409 and b"deadline_exceeded" in reply.body
        assert not [row for row in world.trace.rows if row.event == "phase"]

    ask_servers(story)


def _body(checkpoint_id: str, **more: Any) -> bytes:
    return json.dumps({"checkpoint_id": checkpoint_id, "deadline_ts": FAR, **more})


@pytest.mark.parametrize(
    ("gym", "operation", "code"),
    [
        ("Exports", "commit", b"export_failed"),
        ("Checks", "restore", b"invalid_checkpoint_state"),
        ("Restores", "restore", b"invalid_checkpoint_state"),
    ],
)
def test_an_assert_in_an_authors_hook_fails_what_was_being_done_and_kills_nobody(
    gym: str, operation: str, code: bytes
) -> None:
    async def story(ask: Ask, world: World) -> None:
        where = {"checkpoint_dir": "/run/a", "episode_ids": [{"rollout_id": "r", "attempt": 0}]}
        await ask("inventory", tagged("", R, "/seed_session"), json.dumps({"task": {"inventory": {"drum": 1}}}))
        await ask("inventory", CONTROL_PREFIX + "prepare", _body("c"))
        reply = await ask("inventory", CONTROL_PREFIX + "commit", _body("c", **where))
        if operation == "restore":
            assert reply.status == 200, reply.body
            world.nodes["inventory"].crash()
            world.nodes["inventory"].start()
            await until(world, lambda: False, 0.5)
            reply = await ask("inventory", CONTROL_PREFIX + "restore", _body("again", **where))
        assert code in reply.body and b"session of r" in reply.body and b"nobody has a drum" in reply.body
        for checkpoint_id in ("c", "again"):
            await ask("inventory", CONTROL_PREFIX + "resume", _body(checkpoint_id))
        reply = await ask("inventory", tagged("", R, "/seed_session"), json.dumps({"task": {}}))
        assert (reply.status == 200) is (operation == "commit"), "a failed restore has retired what it was to install"

    ask_servers(story, gym=f"tests.scenario.asserting_gym:{gym}")


@pytest.mark.parametrize("end", ["close", "retire", "forget", "stop", "discard"])
def test_what_a_session_holds_outside_is_freed_once_however_it_ends(end: str) -> None:
    """Or every preemption would leave a sandbox for each session."""
    where = {"checkpoint_dir": "/run/a", "episode_ids": [{"rollout_id": "r", "attempt": 0}]}

    async def story(ask: Ask, world: World) -> None:
        cookie = await seeded(world)
        for _ in range(2):
            match end:
                case "close":
                    await say(world, R, "/close_session", {}, cookie)
                case "retire":
                    body = json.dumps({"episode_ids": where["episode_ids"], "deadline_ts": FAR, "budget_s": 5.0})
                    await ask("inventory", CONTROL_PREFIX + "retire", body)
                case "forget":
                    body = json.dumps({"rollout_ids": ["r"], "deadline_ts": FAR, "budget_s": 5.0})
                    await ask("inventory", CONTROL_PREFIX + "forget", body)
                case _:
                    await ask("inventory", CONTROL_PREFIX + "prepare", _body("c"))
                    await ask("inventory", CONTROL_PREFIX + "commit", _body("c", **where, stop=end == "stop"))
        if end == "discard":
            await until(world, lambda: False, 0.5)
            assert CLOSED == [], "a checkpoint that the run goes on from frees nothing"
            world.nodes["inventory"].crash()
            world.nodes["inventory"].start()
            await until(world, lambda: False, 0.5)
            await ask("inventory", CONTROL_PREFIX + "restore", _body("again", **where))
            await ask("inventory", CONTROL_PREFIX + "resume", _body("again"))
            await until(world, lambda: False, 0.5)
            assert CLOSED == [], "what was restored goes on"
            body = json.dumps({"episode_ids": [{"rollout_id": "r", "attempt": 1}], "deadline_ts": FAR, "budget_s": 5.0})
            await ask("inventory", CONTROL_PREFIX + "retire", body)
        await until(world, lambda: False, 0.5)
        assert len(CLOSED) == 1

    CLOSED.clear()
    ask_servers(story, gym="tests.scenario.asserting_gym:Frees")


@pytest.mark.parametrize("path", ["/count_items", "/verify", "/close_session"])
def test_a_cookie_opens_its_session_to_the_attempt_that_it_belongs_to_alone(path: str) -> None:
    """A restore continues a session under its cookie: who still calls for an attempt before has none (INV-38)."""

    async def story(_: Ask, world: World) -> None:
        cookie = await seeded(world, episode=R.next())
        body: dict[str, Any] = {"task": {}} if path == "/verify" else {"item": "apple"}
        for episode in (R, R.next().next(), EpisodeId("other")):
            reply = await say(world, episode, path, body, cookie)
            assert reply.status == 409 and b"stale_attempt" in reply.body, reply
        reply = await say(world, R.next(), "/count_items", {"item": "apple"}, cookie)
        assert reply.status == 200, "its session stands"

    ask_servers(story)


class Says:
    """Another author's resources server, which sets this cookie."""

    def __init__(self, cookie: str) -> None:
        self._cookie = cookie

    async def __call__(self, ports: Ports) -> None:
        async def seed(_: Request) -> Answer:
            return answer({}, headers=[("set-cookie", f"{COOKIE}={self._cookie}")])

        app = Router((Route("POST", "/seed_session", seed),))
        await ports.server.serve(episode_context(app), "http://inventory:80", ready=lambda: None)


@pytest.mark.parametrize("cookie", ["\xe9t\xe9", "a\x01b", "a b", ""])
def test_a_cookie_that_cannot_be_sent_fails_its_episode_and_not_the_environment(cookie: str) -> None:
    async def story(ask: Ask, world: World) -> None:
        world.nodes["inventory"].crash()
        world.nodes["inventory"].main = Says(cookie)
        world.nodes["inventory"].start()
        await until(world, lambda: False, 0.5)
        reply = await ask("environment", tagged("", R, "/run"), b'{"episode_id":{"rollout_id":"r"},"task":{}}')
        assert json.loads(reply.body)["status"] == "failed" and b"cookie" in reply.body

    ask_servers(story)


def test_an_episode_that_cannot_be_captured_is_left_out_of_the_scope() -> None:
    async def story(ask: Ask, _: World) -> None:
        where = {"checkpoint_dir": "/run/a", "episode_ids": [{"rollout_id": "r", "attempt": 0}]}
        await ask("inventory", tagged("", R, "/seed_session"), json.dumps({"task": {}}))
        reply = await ask("inventory", CONTROL_PREFIX + "prepare", _body("c"))
        assert json.loads(reply.body)["report"]["restarts"] == ["r"]
        reply = await ask("inventory", CONTROL_PREFIX + "commit", _body("c", **where))
        assert reply.status == 409 and b"restart_in_scope" in reply.body
        reply = await ask("inventory", CONTROL_PREFIX + "commit", _body("c", checkpoint_dir="/run/a", episode_ids=[]))
        assert reply.status == 200, reply.body

    ask_servers(story, gym="sim.gyms:RestartingInventory")


@pytest.mark.parametrize(("server", "path"), [("inventory", "/seed_session"), ("environment", "/run")])
def test_work_without_an_id_is_refused_where_one_is_needed(server: str, path: str) -> None:
    async def story(ask: Ask, _: World) -> None:
        reply = await ask(server, path, b'{"episode_id":{"rollout_id":"r"},"task":{}}')
        assert reply.status == 400 and b"rollout_id_required" in reply.body

    ask_servers(story)


def test_a_report_names_a_hundred_blockers_and_counts_them_all() -> None:
    made = report([f"r{number:03d}" for number in range(150)], {})
    assert (len(made.blockers), made.blocker_count, made.ready) == (100, 150, False)


@pytest.mark.parametrize("control", [True, False])
def test_a_body_over_its_bound_is_refused(control: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "CONTROL_BODY_MAX_BYTES", 1000)
    size = 1001 if control else DATA_BODY_MAX_BYTES + 1

    async def story(ask: Ask, _: World) -> None:
        path = CONTROL_PREFIX + "prepare" if control else tagged("", R, "/run")
        reply = await ask("environment", path, b" " * size)
        assert reply.status == 400 and b"bytes" in reply.body, reply

    ask_servers(story)


TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "count_items"}}]


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("verify", '{"task": {}}', "no tool"),
        ("close_session", "{}", "no tool"),
        ("count_items", "[1]", "not an object"),
        ("count_items", "{", "not JSON"),
    ],
)
def test_a_model_calls_only_the_tools_it_was_offered(name: str, arguments: str, why: str) -> None:
    """`verify` is a route of the same server, and would tell it its reward."""
    assert why in str(_refusal(ToolCall("call", name, arguments), TOOLS))
    assert _refusal(ToolCall("call", "count_items", "{}"), TOOLS) is None


def test_a_prefix_is_decoded_once() -> None:
    """By the server, as ASGI has it: what is left of an escape is no part of an id."""

    async def story(ask: Ask, _: World) -> None:
        for path, status, code in (
            ("/ng-rollout/%72/v1/responses", 404, b"refused"),
            ("/ng-rollout/%2572/v1/responses", 400, b"invalid_rollout_id"),
        ):
            reply = await ask("agent", path, b"{}")
            assert reply.status == status and code in reply.body, reply

    ask_servers(story)
