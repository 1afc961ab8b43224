"""An episode of the environment server as a machine: which step comes next, and what each has returned.

    seed ▶ open ▶ work ▶ close_agent ▶ verify ▶ [judge] ▶ close_session ▶ over

Every state between two steps is a boundary. A step is *waited for* by a checkpoint (the default), or may be
*replayed*: while it runs the episode counts as parked before it, and after a crash the step runs again. `work` may,
because the agent's session is itself continued and keeps its result until it is closed; `verify` and `judge` may when
the server that does them says so.

Pure: no clock, no network. States are never changed in place.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

import msgspec

from gym_ckpt.limits import EPISODE_WORKED_MAX_S
from gym_ckpt.wire import json


class Step(StrEnum):
    SEED = "seed"
    OPEN = "open"
    WORK = "work"
    CLOSE_AGENT = "close_agent"
    VERIFY = "verify"
    JUDGE = "judge"
    CLOSE_SESSION = "close_session"


class Seeded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What seeding the resources session returned. `restart`: the session cannot be captured."""

    cookie: str
    tools: tuple[dict[str, Any], ...]
    replay_verify: bool
    restart: bool


class Worked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the agent returned."""

    messages: tuple[dict[str, Any], ...]
    calls: tuple[dict[str, Any], ...]
    finish_reason: str | None


class EpisodeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A boundary. `done` counts completed steps of `steps`; `worked_s`: seconds worked, as of an export."""

    task_digest: str
    steps: tuple[Step, ...]
    done: int = 0
    seeded: Seeded | None = None
    worked: Worked | None = None
    verified: dict[str, Any] | None = None
    judged: dict[str, Any] | None = None
    worked_s: float = 0.0


def task_digest(task: dict[str, Any]) -> str:
    """SHA-256 of a task, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(task, sort_keys=True)).hexdigest()


def begin(task: dict[str, Any], *, judge: bool) -> EpisodeState:
    """An episode that starts from its input. `judge`: another server verifies too."""
    return EpisodeState(task_digest(task), _steps(judge))


def _steps(judge: bool) -> tuple[Step, ...]:
    return tuple(step for step in Step if judge or step is not Step.JUDGE)


def flaw(state: EpisodeState, *, judge: bool) -> str | None:
    """Why this is no boundary that an episode can be at; None when it is one. For state that comes from a file."""
    if (Step.JUDGE in state.steps) != judge:
        return "its checkpoint and this configuration differ about a verifier"
    if state.steps != _steps(judge):
        return "its steps are not those of an episode"
    if not 0 <= state.done <= len(state.steps):  # all of them: over, and not yet told
        return f"step {state.done} does not exist"
    results = {Step.SEED: state.seeded, Step.WORK: state.worked, Step.VERIFY: state.verified, Step.JUDGE: state.judged}
    for step, result in results.items():
        if (result is not None) != (step in state.steps[: state.done]):
            return f"step {step} is {'not done and has a result' if result is not None else 'done and has no result'}"
    if not 0 <= state.worked_s <= EPISODE_WORKED_MAX_S:
        return f"it has worked for {state.worked_s:g} s"
    return None


def next_step(state: EpisodeState) -> Step | None:
    """The step to do; None when the episode is over."""
    return state.steps[state.done] if state.done < len(state.steps) else None


def may_replay(state: EpisodeState, step: Step, *, judge_replays: bool) -> bool:
    """Whether a step is safe to run twice, so that a checkpoint need not wait for it."""
    match step:
        case Step.WORK:
            return True
        case Step.VERIFY:
            return state.seeded is not None and state.seeded.replay_verify
        case Step.JUDGE:
            return judge_replays
        case _:
            return False


def completed(state: EpisodeState, result: Seeded | Worked | dict[str, Any] | None) -> EpisodeState:
    """The next step has returned `result`."""
    step = next_step(state)
    after = msgspec.structs.replace(state, done=state.done + 1)
    match step, result:
        case Step.SEED, Seeded():
            return msgspec.structs.replace(after, seeded=result)
        case Step.WORK, Worked():
            return msgspec.structs.replace(after, worked=result)
        case Step.VERIFY, dict():
            return msgspec.structs.replace(after, verified=result)
        case Step.JUDGE, dict():
            return msgspec.structs.replace(after, judged=result)
        case ((Step.OPEN | Step.CLOSE_AGENT | Step.CLOSE_SESSION), None):
            return after
    raise AssertionError(f"step {step} does not return {type(result).__name__}")


def row(state: EpisodeState) -> dict[str, Any]:
    """What the episode contributes to the output once it is over."""
    assert next_step(state) is None and state.worked is not None and state.verified is not None, "not over yet"
    decisive = state.verified if state.judged is None else state.judged
    return {
        "reward": decisive.get("reward"),
        "messages": list(state.worked.messages),
        "calls": list(state.worked.calls),
        "finish_reason": state.worked.finish_reason,
        "verification": state.verified,
        **({} if state.judged is None else {"judgement": state.judged}),
    }
