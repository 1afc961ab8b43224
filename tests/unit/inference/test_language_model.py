"""The model is a function of the conversation and its seed, and each prompt extends the one before."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.errors import InvalidRequest
from gym_ckpt.gyms import InventoryGym
from gym_ckpt.gyms.inventory import ITEMS
from gym_ckpt.inference.completion import Completion
from gym_ckpt.inference.language_model import Script, plan, script_of
from gym_ckpt.inference.openai import messages_of, tools_of
from gym_ckpt.inference.tokens import decode
from tests.unit.inference.driver import TOOLS, conversation, user

ROOT = Path(__file__).parents[3]
TASKS = st.builds(
    "Sort the shelf {} [[turns={} tokens={} calls={}]]".format,
    st.text(max_size=5),
    st.integers(0, 4),
    st.integers(1, 40),
    st.integers(1, 3),
)


def once(text: str, seed: int = 7, **options: Any) -> Completion:
    return plan(messages_of(user(text)), tools_of(TOOLS), seed=seed, **options)


@given(TASKS)
def test_every_prompt_extends_the_one_before_by_what_was_generated(task: str) -> None:
    turns = conversation(task)
    for before, after in zip(turns, turns[1:], strict=False):
        known = before.prompt_ids + before.ids
        assert after.prompt_ids[: len(known)] == known and len(after.prompt_ids) > len(known)


@given(TASKS)
def test_the_directive_is_obeyed(task: str) -> None:
    script = script_of(messages_of(user(task)), 7)
    turns = conversation(task)
    assert len(turns) == script.turns + 1
    assert all(len(turn.text_ids) == script.tokens for turn in turns)
    assert [len(turn.calls) for turn in turns] == [script.calls] * script.turns + [0]
    assert [turn.finish_reason for turn in turns] == ["tool_calls"] * script.turns + ["stop"]


@given(TASKS, st.integers(1, 50))
def test_slices_add_up_to_the_whole(task: str, step: int) -> None:
    for turn in conversation(task):
        text, arguments, begun = "", [""] * len(turn.calls), list[int]()
        for start in range(0, len(turn.ids), step):
            added, calls = turn.delta(start, min(start + step, len(turn.ids)))
            text += added
            for call in calls:
                if call.begins is not None:
                    assert call.begins == turn.calls[call.index]
                    begun.append(call.index)
                assert begun and begun[-1] == call.index, "arguments before the call that they belong to"
                arguments[call.index] += call.arguments
        assert text == turn.text
        assert arguments == [call.arguments for call in turn.calls]
        assert begun == list(range(len(turn.calls)))


@given(TASKS, st.integers(1, 200))
def test_max_tokens_cuts_to_a_prefix(task: str, limit: int) -> None:
    whole, cut = once(task), once(task, max_tokens=limit)
    if len(whole.ids) <= limit:
        assert cut == whole
    else:
        assert cut.finish_reason == "length" and not cut.calls
        assert len(cut.ids) <= limit and cut.ids == whole.ids[: len(cut.ids)]
        assert len(cut.ids) == min(limit, len(whole.text_ids))


def test_what_it_says_depends_on_every_part_of_the_prompt() -> None:
    base = once("task [[turns=1 tokens=30]]")
    others = [
        once("task! [[turns=1 tokens=30]]"),
        once("task [[turns=1 tokens=30]]", seed=8),
        plan(messages_of(user("task [[turns=1 tokens=30]]")), (), seed=7),
        plan(messages_of(user("task [[turns=1 tokens=30]]")[1:]), tools_of(TOOLS), seed=7),
    ]
    assert len({base.text_ids, *(other.text_ids for other in others)}) == 5
    assert once("task [[turns=1 tokens=30]]") == base


def test_key_order_of_a_tools_schema_does_not_matter() -> None:
    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(list(value))}
        return value

    shuffled = tools_of([reversed_keys(tool) for tool in TOOLS])
    messages = messages_of(user("task"))
    assert plan(messages, shuffled, seed=7) == plan(messages, tools_of(TOOLS), seed=7)


def test_without_a_directive_length_is_drawn_from_the_task() -> None:
    scripts = [script_of(messages_of(user(f"task {index}")), 7) for index in range(60)]
    assert {script.turns for script in scripts} == {2, 3, 4, 5}
    lengths = [len(turn.text_ids) for index in range(8) for turn in conversation(f"task {index}")]
    assert all(100 <= length <= 400 for length in lengths) and len(set(lengths)) > len(lengths) // 2


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("[[turns=0 tokens=5]]", Script(0, 5)),
        ("[[ tokens=0 turns=3 calls=2 ]]", Script(3, 1, 2)),
        ("[[turns=999999999 tokens=999999999 calls=999999999]]", Script(10_000, 1_000_000, 16)),
    ],
)
def test_directives(text: str, script: Script) -> None:
    assert script_of(messages_of(user(text)), 7) == script


@given(st.integers(0, 300), st.integers(1, 4))
def test_calls_fit_the_inventory(number: int, calls: int) -> None:
    """Every generated call is one that the gym understands and, with stock enough, does."""

    async def play() -> None:
        gym = InventoryGym()
        state = await gym.seed({"inventory": dict.fromkeys(ITEMS, 1000)})
        for turn in conversation(f"task {number} [[turns=2 tokens=3 calls={calls}]]"):
            for call in turn.calls:
                await gym.call(state, call.name, json.loads(call.arguments))

    anyio.run(play)


PROCESS = """
import hashlib
from tests.unit.inference.driver import conversation
turns = conversation("a task") + conversation("another [[turns=3 calls=3]]", seed=-1)
print(hashlib.sha256(repr([(t.prompt_ids, t.ids, t.text, t.calls) for t in turns]).encode()).hexdigest())
"""


def test_every_process_says_the_same() -> None:
    turns = conversation("a task") + conversation("another [[turns=3 calls=3]]", seed=-1)
    here = hashlib.sha256(repr([(t.prompt_ids, t.ids, t.text, t.calls) for t in turns]).encode()).hexdigest()
    for hash_seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PROCESS]
        there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert there.strip() == here, f"PYTHONHASHSEED={hash_seed}"


def test_the_model_has_not_changed() -> None:
    """A golden value: recorded rows of older runs stay comparable. Change it only together with a changelog entry."""
    turn = once("golden [[turns=1 tokens=4]]")
    assert turn.calls[0].id == "call_2cc7f0ff0abeb02525d5daaf"
    assert decode(turn.ids) == 'dina sami zela rara<|call|>count_items<|arguments|>{"item":"drum"}<|end|>'


def test_text_that_utf8_cannot_carry_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]"):
        once("\ud800")
    with pytest.raises(InvalidRequest, match="tools"):
        plan(messages_of(user("x")), tools_of([{"function": {"name": "t", "description": "\ud800"}}]), seed=1)
