"""The inventory's effects can be counted, and its records are believed only when they add up."""

from __future__ import annotations

import copy
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.gyms import InventoryGym, StateMode, ToolError, VerifyMode
from gym_ckpt.gyms.inventory import ITEMS
from gym_ckpt.wire import json

CALLS = st.lists(
    st.tuples(st.sampled_from(["add_item", "take_item", "count_items"]), st.sampled_from(ITEMS), st.integers(1, 100)),
    max_size=25,
)
MESSAGES = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "done"}]


async def played(calls: list[tuple[str, str, int]]) -> tuple[Any, int]:
    """The state after `calls`, and how many of them had an effect."""
    gym, effects = InventoryGym(), 0
    state = await gym.seed({"inventory": {"bolt": 50}})
    for tool, item, amount in calls:
        before = copy.deepcopy(state)
        arguments = {"item": item} | ({"amount": amount} if tool != "count_items" else {})
        try:
            result = await gym.call(state, tool, arguments)
        except ToolError:
            assert state == before, "a refused call had an effect"
            assert tool == "take_item" and amount > before["items"][item]
            continue
        assert result == {"item": item, "count": state["items"][item], "revision": state["revision"]}
        effects += tool != "count_items"
    return state, effects


@given(CALLS)
def test_every_effect_is_logged_once_and_every_reachable_state_survives_an_export(
    calls: list[tuple[str, str, int]],
) -> None:
    async def check() -> None:
        gym = InventoryGym()
        state, effects = await played(calls)
        assert len(state["log"]) == state["revision"] == effects
        assert (await gym.verify(state, {}, MESSAGES))["effects"] == state["log"]
        exported = await gym.export_session_state(state)
        stored = json.loads(json.dumps(exported))
        await gym.check_session_state(stored)
        restored = await gym.restore_session_state(stored)
        assert restored == state
        await gym.call(restored, "add_item", {"item": "drum", "amount": 1})
        assert exported == stored == state, "a session shares its state with its export"

    anyio.run(check)


def spoil(state: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    spoilt = copy.deepcopy(state)
    place: Any = spoilt
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return spoilt


async def test_records_that_do_not_add_up_are_refused() -> None:
    gym = InventoryGym()
    state, _ = await played([("add_item", "drum", 3), ("take_item", "bolt", 2)])
    without_log = {key: value for key, value in state.items() if key != "log"}
    wrong: list[Any] = [
        None, [], "{}", without_log, {**state, "more": 1},
        spoil(state, "revision", value=3), spoil(state, "revision", value=2.0), spoil(state, "log", value=[]),
        spoil(state, "items", value={}), spoil(state, "items", "drum", value=-1),
        spoil(state, "items", "drum", value=2),
        spoil(state, "items", "drum", value=3.0), spoil(state, "items", "drum", value=True),
        spoil(state, "items", "whale", value=1), spoil(state, "items", "bolt", value=10**6),
        spoil(state, "log", 0, value=None), spoil(state, "log", 0, "tool", value="count_items"),
        spoil(state, "log", 0, "tool", value=[]), spoil(state, "log", 0, "item", value={}),
        spoil(state, "log", 0, "amount", value=0), spoil(state, "log", 0, "amount", value=101),
        spoil(state, "log", 0, "amount", value=3.0), spoil(state, "log", 0, "extra", value=1),
    ]  # fmt: skip
    for record in wrong:
        with pytest.raises(ValueError):
            await gym.check_session_state(record)
        with pytest.raises(ValueError):
            await gym.restore_session_state(record)
    await gym.check_session_state(state)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sell_item", {"item": "bolt"}),
        ("add_item", {"item": "bolt"}),
        ("add_item", {"item": "bolt", "amount": 1, "colour": "red"}),
        ("add_item", {"item": "whale", "amount": 1}),
        ("add_item", {"item": ["bolt"], "amount": 1}),
        ("add_item", {"item": "bolt", "amount": 0}),
        ("add_item", {"item": "bolt", "amount": True}),
        ("add_item", {"item": "bolt", "amount": 1.0}),
        ("take_item", {"item": "apple", "amount": 1}),
        ("count_items", {}),
    ],
)
async def test_a_refused_call_changes_nothing(tool: str, arguments: dict[str, Any]) -> None:
    gym = InventoryGym()
    state = await gym.seed({})
    before = copy.deepcopy(state)
    with pytest.raises(ToolError):
        await gym.call(state, tool, arguments)
    assert state == before


async def test_rewards() -> None:
    gym = InventoryGym()
    state, _ = await played([("add_item", "drum", 3)])
    before = copy.deepcopy(state)
    for goal, reward in [({"drum": 3}, 1.0), ({"drum": 3, "bolt": 0}, 0.5), ({"flask": 1}, 0.0)]:
        assert (await gym.verify(state, {"goal": goal}, MESSAGES))["reward"] == reward
    fraction = (await gym.verify(state, {}, MESSAGES))["reward"]
    assert 0.0 <= fraction < 1.0 and state == before
    other_state, _ = await played([("add_item", "drum", 4)])
    others = [await gym.verify(other_state, {}, MESSAGES), await gym.verify(state, {}, MESSAGES[:1])]
    assert fraction not in [other["reward"] for other in others]
    noisy = [{**message, "id": "attempt-2"} for message in MESSAGES]
    assert (await gym.verify(state, {}, noisy))["reward"] == fraction, "it depends on the attempt"


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"inventory": {"whale": 1}}, r"task\.inventory"),
        ({"inventory": {"bolt": -1}}, r"task\.inventory\.bolt"),
        ({"goal": {"bolt": 1.5}}, r"task\.goal\.bolt"),
        ({"goal": ["bolt"]}, r"task\.goal"),
    ],
)
async def test_a_wrong_task_is_refused_by_the_name_of_its_field(task: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        await InventoryGym().seed(task)


async def test_what_it_declares() -> None:
    assert (InventoryGym.state_mode, InventoryGym.verify_mode) == (StateMode.EXPORTED, VerifyMode.REPLAY)
    assert [tool["function"]["name"] for tool in InventoryGym.tools] == ["add_item", "take_item", "count_items"]
