"""An inventory whose every change can be counted: the shipped gym with state and side effects.

The log holds each effect in order, so a tool call that was done twice, or lost, shows in the output row (INV-3). The
state is plain JSON; its checks are strict enough that a record which passes could have been reached by tool calls.
Knows no session, episode or checkpoint.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.gyms.base import Gym, StateMode, ToolError, VerifyMode
from gym_ckpt.gyms.rewards import fraction_of, said
from gym_ckpt.limits import ITEM_AMOUNT_MAX, ITEM_STOCK_MAX

ITEMS: Final = ("apple", "bolt", "candle", "drum", "envelope", "flask")
_CHANGES: Final = ("add_item", "take_item")
_STATE_FIELDS: Final = {"items", "log", "revision"}
_EFFECT_FIELDS: Final = {"tool", "item", "amount"}


def _tool(name: str, description: str, *, amount: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"item": {"type": "string", "enum": list(ITEMS)}}
    if amount:
        properties["amount"] = {"type": "integer", "minimum": 1, "maximum": ITEM_AMOUNT_MAX}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class InventoryGym(Gym):
    """State: `items` (pieces of each), `log` (effects in order), `revision` (number of effects).

    A task may hold `inventory` (pieces at the start) and `goal` (pieces at the end); both map items to whole numbers.
    """

    state_mode = StateMode.EXPORTED
    verify_mode = VerifyMode.REPLAY
    tools = (
        _tool("add_item", "Put pieces of an item into the inventory.", amount=True),
        _tool("take_item", "Take pieces of an item out of the inventory; refused when there are too few.", amount=True),
        _tool("count_items", "How many pieces of an item there are.", amount=False),
    )

    async def seed(self, task: dict[str, Any]) -> Any:
        """Raises `InvalidRequest` naming the task's field that is wrong."""
        _stock(task, "goal")
        start = _stock(task, "inventory")
        return {"items": {item: start.get(item, 0) for item in ITEMS}, "log": [], "revision": 0}

    async def call(self, state: Any, tool: str, arguments: dict[str, Any]) -> Any:
        """Checks everything before it changes anything: a refused call has no effect."""
        if tool not in (*_CHANGES, "count_items"):
            raise ToolError(f"unknown tool {tool!r}")
        expected = {"item", "amount"} if tool in _CHANGES else {"item"}
        if set(arguments) != expected:
            raise ToolError(f"{tool} takes {', '.join(sorted(expected))}")
        item, amount = arguments["item"], arguments.get("amount", 0)
        if item not in ITEMS:
            raise ToolError(f"item must be one of {', '.join(ITEMS)}")
        if tool in _CHANGES:
            if not _is_amount(amount):
                raise ToolError(f"amount must be a whole number from 1 to {ITEM_AMOUNT_MAX}")
            _change(state, tool, item, amount)
        return {"item": item, "count": state["items"][item], "revision": state["revision"]}

    async def verify(self, state: Any, task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """With a goal, the share of its items that are met; without, a fraction that notices every difference."""
        goal = _stock(task, "goal")
        if goal:
            reward = sum(state["items"][item] == amount for item, amount in goal.items()) / len(goal)
        else:
            reward = fraction_of([state, said(messages)])
        return {"reward": reward, "effects": copy.deepcopy(state["log"]), "items": dict(state["items"])}

    async def export_session_state(self, state: Any) -> Any:
        return copy.deepcopy(state)

    async def check_session_state(self, exported: Any) -> None:
        _check(exported)

    async def restore_session_state(self, exported: Any) -> Any:
        _check(exported)
        return copy.deepcopy(exported)


def _change(state: Any, tool: str, item: str, amount: int) -> None:
    count = state["items"][item] + (amount if tool == "add_item" else -amount)
    if count < 0:
        raise ToolError(f"cannot take {amount} of {item}: there are {state['items'][item]}")
    if count > ITEM_STOCK_MAX:
        raise ToolError(f"cannot hold more than {ITEM_STOCK_MAX} of {item}")
    state["items"][item] = count
    state["log"].append({"tool": tool, "item": item, "amount": amount})
    state["revision"] += 1


def _stock(task: dict[str, Any], field: str) -> dict[str, int]:
    """Pieces per item in a task's field, in the order of `ITEMS`; empty when the field is absent."""
    stock = task.get(field)
    if stock is None:
        return {}
    if not isinstance(stock, dict) or not set(stock) <= set(ITEMS):
        raise InvalidRequest(f"task.{field} must map items ({', '.join(ITEMS)}) to whole numbers")
    for item, count in stock.items():
        if not _is_count(count):
            raise InvalidRequest(f"task.{field}.{item} must be a whole number from 0 to {ITEM_STOCK_MAX}")
    return {item: stock[item] for item in ITEMS if item in stock}


def _check(exported: Any) -> None:
    """Raise `ValueError` unless the state has the right form and its log could have led to it."""
    if type(exported) is not dict or set(exported) != _STATE_FIELDS:
        raise ValueError(f"an inventory must be an object with exactly {', '.join(sorted(_STATE_FIELDS))}")
    items, log, revision = exported["items"], exported["log"], exported["revision"]
    if type(items) is not dict or set(items) != set(ITEMS) or not all(map(_is_count, items.values())):
        raise ValueError(f"items must map each of {', '.join(ITEMS)} to a whole number from 0 to {ITEM_STOCK_MAX}")
    if type(log) is not list or type(revision) is not int or revision != len(log):
        raise ValueError("log must be a list, and revision the number of its entries")
    counts = dict(items)
    for index in range(len(log) - 1, -1, -1):
        effect = log[index]
        _check_effect(effect, index)
        counts[effect["item"]] += effect["amount"] if effect["tool"] == "take_item" else -effect["amount"]
        if not _is_count(counts[effect["item"]]):
            raise ValueError(f"log[{index}]: its effect does not lead to the counts in items")


def _check_effect(effect: Any, index: int) -> None:
    if type(effect) is not dict or set(effect) != _EFFECT_FIELDS:
        raise ValueError(f"log[{index}] must be an object with exactly {', '.join(sorted(_EFFECT_FIELDS))}")
    if effect["tool"] not in _CHANGES or effect["item"] not in ITEMS or not _is_amount(effect["amount"]):
        raise ValueError(f"log[{index}] is not an effect of this gym's tools")


def _is_amount(value: Any) -> bool:
    return type(value) is int and 1 <= value <= ITEM_AMOUNT_MAX


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= ITEM_STOCK_MAX
