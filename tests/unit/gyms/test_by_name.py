"""A configuration's name of a gym leads to one, or to an error that says what is allowed."""

from __future__ import annotations

import pytest

from gym_ckpt.errors import ConfigError
from gym_ckpt.gyms import SHIPPED, AnswerGym, InventoryGym, by_name


class Verifies(AnswerGym):
    tools = ({"type": "function", "function": {"name": "verify"}},)


def test_shipped_names() -> None:
    assert {name: type(by_name(name)) for name in SHIPPED} == {"answer": AnswerGym, "inventory": InventoryGym}
    assert by_name("inventory") is not by_name("inventory")


def test_anybody_elses_class() -> None:
    assert type(by_name("gym_ckpt.gyms.answer:AnswerGym")) is AnswerGym


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("stock", "unknown"),
        ("", "unknown"),
        (":Class", "unknown"),
        ("module:", "unknown"),
        ("no_such_module:Class", "cannot be imported"),
        ("gym_ckpt.gyms:Nothing", "has no Nothing"),
        ("gym_ckpt.gyms:SHIPPED", "not a subclass"),
        ("gym_ckpt.gyms:ToolError", "not a subclass"),
        ("gym_ckpt.gyms:Gym", "does not define seed, verify"),
        (f"{__name__}:Verifies", "its tool verify would be called by the name of a route"),
    ],
)
def test_what_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=r"answer, inventory or package\.module:Class") as caught:
        by_name(name)
    assert why in str(caught.value)
