"""A checkpoint whose digests are right and whose records no run could have written is refused before anything is
installed, by the server that they are for, and every server lives on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from gym_ckpt.limits import LEDGER_ATTEMPTS_MAX
from gym_ckpt.storage import layout
from gym_ckpt.storage.files import finish
from gym_ckpt.storage.manifest import ManifestHead
from gym_ckpt.storage.records import AbortFlag, write_records
from gym_ckpt.types import EpisodeId, Kind
from gym_ckpt.wire import json
from gym_ckpt.wire.messages import CONTROL_PREFIX
from sim.cluster import RUN_DIR
from sim.world import World
from tests.scenario.servers import FAR, Ask, ask_servers
from tests.unit.sim.onlooker import lines

States = Mapping[str, Any]
DIRECTORY = layout.checkpoint_dir(RUN_DIR, "c-1")
KINDS = {"environment": Kind.ENVIRONMENT, "agent": Kind.AGENT, "policy": Kind.MODEL, "inventory": Kind.RESOURCES}
SEEDED = {"cookie": "s", "tools": [], "replay_verify": True, "restart": False}
WORKED = {"messages": [], "calls": [], "finish_reason": "stop"}
STEPS = ["seed", "open", "work", "close_agent", "verify", "close_session"]
BEGUN = {"task_digest": "0" * 64, "steps": STEPS, "done": 2, "seeded": SEEDED}
OPENED = {"resources_url": "http://inventory:80", "cookie": "s", "tools": []}
CALL = {"model_call_id": "r.c0.1", "prompt_tokens": 1, "completion_tokens": 1, "tokens_hash": None}
TOOL = {"id": "1", "name": "count_items", "arguments": "{}"}
STOCK = {"items": dict.fromkeys(("apple", "bolt", "candle", "drum", "envelope", "flask"), 0), "log": [], "revision": 0}


def session(**changed: Any) -> dict[str, Any]:
    return {"session_id": "s", "revision": 0, "state": STOCK} | changed


def agent(opened: Mapping[str, Any] = OPENED, **state: Any) -> dict[str, Any]:
    return {"opened": opened, "state": {"messages": []} | state}


async def restored(ask: Ask, world: World, server: str, states: States) -> tuple[int, bytes]:
    """What the server says to a restore of a checkpoint that holds these states of its own."""
    head = ManifestHead(kind=KINDS[server], instance=server, checkpoint_id="c-1")
    world.disk.make_dirs(DIRECTORY)
    finish(world.disk.view("forger"), write_records(DIRECTORY, head, lines(states), AbortFlag(), "0" * 16))
    episodes = [EpisodeId.from_key(key) for key in states]
    refs = [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in episodes]
    body = {"checkpoint_id": "x", "deadline_ts": FAR, "checkpoint_dir": DIRECTORY, "episode_ids": refs}
    reply = await ask(server, CONTROL_PREFIX + "restore", json.dumps(body))
    return reply.status, reply.body


@pytest.mark.parametrize(
    ("server", "states"),
    [
        ("environment", {"r": BEGUN}),
        ("environment", {"r": BEGUN | {"done": 3, "worked": WORKED, "worked_s": 7e6}}),
        ("agent", {"r": agent(calls=[CALL], pending=[TOOL])}),
        ("inventory", {"r": session(), "t0": session(session_id="t")}),
        ("policy", {"r": {"rows": [{"model_call_id": "r.c0.1"}]}}),
    ],
)
def test_what_a_run_could_have_written_is_restored(server: str, states: States) -> None:
    """Or else the others are refused for another reason than theirs."""

    async def story(ask: Ask, world: World) -> None:
        status, body = await restored(ask, world, server, states)
        assert status == 200, body

    ask_servers(story)


def test_of_one_rollout_one_attempt_is_continued() -> None:
    async def story(ask: Ask, world: World) -> None:
        status, body = await restored(ask, world, "environment", {"r": BEGUN, "r-a1": BEGUN})
        assert status == 400 and b"r is named at attempts 0 and 1" in body

    ask_servers(story)


@pytest.mark.parametrize("over", [0, 1])
def test_an_attempt_that_no_ledger_could_retire_is_refused_and_the_last_that_it_could_is_not(over: int) -> None:
    """`LEDGER_ATTEMPTS_MAX`: a fence is made for each."""
    key = EpisodeId("r", LEDGER_ATTEMPTS_MAX - 1 + over).key

    async def story(ask: Ask, world: World) -> None:
        status, body = await restored(ask, world, "policy", {key: {"rows": [], "poison": []}})
        assert status == (400 if over else 200), body
        assert (f"more than {LEDGER_ATTEMPTS_MAX} cannot".encode() in body) is bool(over)

    ask_servers(story, number=1)


@pytest.mark.parametrize(
    ("server", "states", "why"),
    [
        ("environment", {"r": BEGUN | {"worked_s": math.nan}}, "worked for nan s"),
        ("environment", {"r": BEGUN | {"worked_s": -1.0}}, "worked for -1 s"),
        ("environment", {"r": BEGUN | {"worked_s": math.inf}}, "worked for inf s"),
        ("environment", {"r": BEGUN | {"worked_s": 1e300}}, "worked for 1e+300 s"),
        ("environment", {"r": BEGUN | {"worked_s": 10**400}}, "worked_s"),
        ("environment", {"r": BEGUN | {"done": 3}}, "step work is done and has no result"),
        ("environment", {"r": BEGUN | {"worked": WORKED}}, "step work is not done and has a result"),
        ("environment", {"r": BEGUN | {"done": 0}}, "step seed is not done and has a result"),
        ("environment", {"r": BEGUN | {"judged": {}}}, "step judge is not done"),
        ("environment", {"r": BEGUN | {"done": 7}}, "step 7 does not exist"),
        ("environment", {"r": BEGUN | {"steps": STEPS[::-1]}}, "not those of an episode"),
        ("environment", {"r": BEGUN | {"steps": [*STEPS, "seed"]}}, "not those of an episode"),
        ("environment", {"r": BEGUN | {"seeded": SEEDED | {"cookie": "a\r\nx: y"}}}, "cookie"),
        ("agent", {"r": agent(OPENED | {"cookie": "a\r\nx: y"})}, "cookie"),
        ("agent", {"r": agent(OPENED | {"resources_url": "file:///etc"})}, "resources server"),
        ("agent", {"r": agent(calls=[CALL, CALL])}, "comes twice"),
        ("agent", {"r": agent(calls=[CALL | {"prompt_tokens": -1}])}, "less than no tokens"),
        ("agent", {"r": agent(tool_steps=-1)}, "count from 0"),
        ("agent", {"r": agent(pending=[TOOL], finish_reason="stop")}, "is over"),
        ("inventory", {"r": session(), "t0": session()}, "session_id is that of r-a1"),
        ("inventory", {"r": session(session_id="")}, "no cookie"),
        ("inventory", {"r": session(session_id="a;b")}, "no cookie"),
        ("inventory", {"r": session(revision=-1)}, "revision"),
        ("policy", {"r": {"rows": [{"model_call_id": 1}]}}, "model_call_id"),
    ],
)
def test_what_no_run_could_have_written_is_refused(server: str, states: States, why: str) -> None:
    async def story(ask: Ask, world: World) -> None:
        status, body = await restored(ask, world, server, states)
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (422, "invalid_checkpoint_state")
        assert why in error["detail"], error["detail"]
        assert not [row for row in world.trace.rows if row.event == "restore.installed"]

    ask_servers(story)
