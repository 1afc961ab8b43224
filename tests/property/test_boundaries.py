"""Whatever an episode or a session can be at when it is exported can be restored: no reachable boundary is refused.

A check of what comes from a file is as strict as it may be and no stricter; one that refused an episode with all of
its steps done, which waits at its last boundary to be told, cost a whole checkpoint.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gym_ckpt.core import agent_session, episode
from gym_ckpt.core.agent_session import Call, Reply, SessionState, ToolCall, after_model, after_tool
from gym_ckpt.core.episode import EpisodeState, Seeded, Step, Worked, completed, next_step

RESULTS: dict[Step, Seeded | Worked | dict[str, Any]] = {
    Step.SEED: Seeded("cookie", (), replay_verify=False, restart=False),
    Step.WORK: Worked((), (), "stop"),
    Step.VERIFY: {"reward": 1.0},
    Step.JUDGE: {"reward": 0.5},
}


@given(st.booleans(), st.floats(0, 1e5))
def test_every_boundary_of_an_episode_is_one(judge: bool, worked_s: float) -> None:
    state = episode.begin({"prompt": "x"}, judge=judge)
    reached: list[EpisodeState] = [state]
    while (step := next_step(state)) is not None:
        state = completed(state, RESULTS.get(step))
        reached.append(state)
    for each in reached:
        exported = msgspec.structs.replace(each, worked_s=worked_s)
        assert episode.flaw(exported, judge=judge) is None
        assert episode.flaw(exported, judge=not judge) is not None, "another configuration's is none"
    row, judged = episode.row(state), RESULTS[Step.JUDGE] if judge else None
    assert (row["verification"], row.get("judgement")) == (RESULTS[Step.VERIFY], judged)
    assert row["reward"] == (0.5 if judge else 1.0), "the judge's word counts, where there is one"


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(1, 6))
def test_every_boundary_of_a_session_is_one(asked: list[int], max_steps: int) -> None:
    """`asked`: tool calls of each turn."""
    state = SessionState(({"role": "user", "content": "x"},))
    for turn, calls in enumerate([*asked, 0]):
        wanted = tuple(ToolCall(f"{turn}.{number}", "add_item", "{}") for number in range(calls))
        call = Call(f"r.c{turn}.0", 1, 1, None)
        state = after_model(state, Reply({"role": "assistant"}, wanted, "stop", call), max_steps)
        assert agent_session.flaw(state) is None
        at_the_limit = turn + 1 == max_steps
        assert state.finish_reason == ("stop" if not wanted else "max_steps" if at_the_limit else None)
        while state.pending:
            state = after_tool(state, "ok", revision=turn)
            assert agent_session.flaw(state) is None
        if state.finish_reason is not None:
            return
