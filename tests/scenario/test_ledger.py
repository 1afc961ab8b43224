"""Two policy-model servers, one ledger: situation by situation, over the servers' own routes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gym_ckpt.participants import ledger_routes
from gym_ckpt.storage.ledger.locking import lock_of
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from sim.cluster import LEDGER
from sim.fates import CalmFates, DiskFate
from tests.scenario.ledger import BUDGET_S, POLICIES, USER, Shop, play, said, settle

R, R1, R2 = EpisodeId("r"), EpisodeId("r", 1), EpisodeId("r", 2)
ALIKE = (EpisodeId("r-1"), EpisodeId("r.b"), EpisodeId("r-a2x"))
ONE, TWO = POLICIES


def test_a_conversation_over_two_servers_is_one_lineage_that_verifies() -> None:
    async def story(shop: Shop) -> None:
        first = said(await shop.call(ONE, R, "c0"))
        more = {"role": "user", "content": "and now?"}
        said(await shop.call(TWO, R, "c1", USER, first, more))
        status, reply = await shop.ledger(ONE, "verify", R)
        (found,) = reply["lineages"]
        assert status == 200 and found["usable"] and found["rows"] == 2
        assert [tip["model_call_id"] for tip in found["tips"]] == ["c1"]
        _, listed = await shop.ledger(TWO, "manifest", R)
        assert [row["parent_call_id"] for row in listed["lineages"][0]["rows"]] == [None, "c0"]

    play(story)


@pytest.mark.parametrize("leave_at", ["gate.started", "gate.row"])
def test_a_caller_that_leaves_while_its_row_is_written(leave_at: str) -> None:
    """Scenario 42, INV-20."""

    async def story(shop: Shop) -> None:
        shop.leave_at = leave_at
        await shop.call(ONE, R, "c0")
        await settle()
        assert shop.rows(R) == ["c0"]
        assert (await shop.control("prepare"))[0][1]["report"]["ready"], "the call has left the books"

    play(story)


def test_a_caller_that_leaves_while_its_row_waits_for_a_lock() -> None:
    """Scenario 42, INV-20: neither the wait nor the row is cut short, and the call is in the books until then."""

    async def story(shop: Shop) -> None:
        held = shop.world.disk.view("another").try_lock(lock_of(LEDGER, R.rollout_id), "")
        assert held is not None
        shop.leave_at = "gate.started"
        await shop.call(ONE, R, "c0")
        await settle()
        assert shop.rows(R) == []
        reply = (await shop.control("prepare", budget_s=1.0))[0][1]
        assert reply["report"]["blockers"] == ["r"], "a checkpoint waits for it"
        held.release()
        await settle()
        assert shop.rows(R) == ["c0"]
        assert (await shop.control("prepare"))[0][1]["report"]["ready"]

    play(story)


def test_a_held_call_is_in_no_checkpoint_and_its_repetition_finds_its_parent() -> None:
    """INV-17; scenarios 81 and 83."""

    async def story(shop: Shop) -> None:
        first = said(await shop.call(ONE, R, "c0"))
        again = (USER, first, USER)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shop.call, TWO, R, "c1", *again)
            await settle(0.02)
            await shop.control("prepare", "b")
            await settle()
            assert not await shop.started(TWO, R, "c1"), "held: not safe to be waited for"
            scope = [{"rollout_id": "r", "attempt": 0}]
            done = await shop.control("commit", "b", checkpoint_dir="/run/b", episode_ids=scope)
            keys = [key for _, reply in done for key in reply["staging_keys"]]
            assert len(keys) == 1 and shop.rows(R) == ["c0"], "one delivered call"
            shop.leave("c1")
        await shop.control("resume", "b")
        said(await shop.call(ONE, R, "c1.again", *again))
        assert shop.rows(R) == ["c0", "c1.again"] and shop.poison(R) == []

    play(story)


def test_every_row_is_in_a_checkpoint_once_and_the_keys_are_partitioned() -> None:
    async def story(shop: Shop) -> None:
        episodes = [EpisodeId(f"e{number}") for number in range(6)]
        for number, each in enumerate(episodes):
            await shop.call(POLICIES[number % 2], each, f"{each}.c0")
        replies = await shop.checkpoint("c", *episodes)
        exported = [key for reply in replies for key in reply["episode_ids"]]
        assert sorted(exported) == sorted(each.key for each in episodes)
        assert all(reply["episode_ids"] for reply in replies), "both look after some"
        for reply in replies:
            by_episode = reply["staging_keys_by_episode"]
            assert sorted(key for keys in by_episode.values() for key in keys) == sorted(reply["staging_keys"])

    play(story)


def test_two_servers_restore_into_one_directory_and_lookalikes_are_untouched() -> None:
    """Scenarios 80 and 82: after any number of restores the attempts before stay refused, here and on the disk."""

    async def story(shop: Shop) -> None:
        for each in (R, *ALIKE):
            await shop.call(ONE, each, f"{each}.c0")
        await shop.checkpoint("a", R, where="/run/a")
        await shop.restore("a-restore", R, where="/run/a")
        assert shop.rows(R1) == ["r.c0"] and not shop.there(R) and shop.fenced(R)
        assert [shop.rows(each) for each in ALIKE] == [[f"{each}.c0"] for each in ALIKE]
        await shop.checkpoint("b", R1, where="/run/b")
        await shop.restore("b-restore", R1, where="/run/b")
        assert shop.rows(R2) == ["r.c0"] and shop.fenced(R) and shop.fenced(R1) and not shop.fenced(R2)
        for server in POLICIES:
            for old in (R, R1):
                late = await shop.call(server, old, "late")
                assert late is not None and late.status == 409
        assert not shop.there(R) and not shop.there(R1)

    play(story)


def test_what_a_dead_execution_left_at_the_target_goes_and_restored_rows_are_written() -> None:
    """Scenario 85, INV-62, 65: a fence at the target attempt would discard them without a word."""

    async def story(shop: Shop) -> None:
        first = said(await shop.call(ONE, R, "r.c0"))
        await shop.checkpoint("a", R)
        await shop.restore("one", R)
        said(await shop.call(TWO, R1, "r-a1.c1", USER, first, USER))
        await shop.retire(R1)
        assert shop.fenced(R1)
        await shop.restore("two", R)
        assert shop.rows(R1) == ["r.c0"] and not shop.fenced(R1) and not shop.marked(R1)
        said(await shop.call(TWO, R1, "r-a1.c1", USER, first, USER))
        assert shop.rows(R1) == ["r.c0", "r-a1.c1"]

    play(story)


@pytest.mark.parametrize("how", ["nothing", "claim", "call", "held"])
@pytest.mark.parametrize("server", POLICIES)
def test_a_commit_deletes_only_what_no_server_has_begun(server: str, how: str) -> None:
    """Scenario 84, INV-42, 43: before its first row, after it, and when it never calls."""

    async def story(shop: Shop) -> None:
        first = said(await shop.call(ONE, R, "r.c0"))
        await shop.checkpoint("a", R)
        await shop.restore("a-restore", R)
        if how == "claim":
            assert (await shop.claim(server, R1)).status == 200
        async with anyio.create_task_group() as tasks:
            if how in ("call", "held"):
                tasks.start_soon(shop.call, server, R1, "r-a1.c1", USER, first, USER)
                await settle(0.02 if how == "held" else 1.0)
            await shop.checkpoint("b", where="/run/b")
        begun = how != "nothing"
        assert shop.there(R1) is begun and shop.marked(R1) is begun
        assert not shop.fenced(R1)

    play(story)


def test_unclaimed_state_in_scope_is_exported_again() -> None:
    async def story(shop: Shop) -> None:
        await shop.call(ONE, R, "r.c0")
        await shop.checkpoint("a", R)
        await shop.restore("a-restore", R)
        replies = await shop.checkpoint("b", R1, where="/run/b")
        assert [key for reply in replies for key in reply["episode_ids"]] == ["r-a1"]
        assert shop.rows(R1) == ["r.c0"]

    play(story)


@pytest.mark.parametrize("operation", ["retire", "delete"])
def test_the_framework_takes_no_ledger_out_of_an_open_checkpoint(operation: str) -> None:
    """Scenario 86, INV-47."""

    async def story(shop: Shop) -> None:
        await shop.call(ONE, R, "r.c0")
        await shop.control("prepare", "c")
        for server in POLICIES:
            for refused in (operation, "sweep", "manifest"):
                status, reply = await shop.ledger(server, refused, R)
                assert (status, reply["error"]["code"]) == (409, "invalid_phase")
        assert (await shop.ledger(ONE, "verify", R))[0] == 200, "which changes nothing, and names what it looks at"
        await shop.control("resume", "c")
        assert shop.rows(R) == ["r.c0"] and (await shop.ledger(ONE, "manifest", R))[0] == 200
        status, _ = await shop.ledger(TWO, operation, R)
        assert status == 200 and not shop.there(R) and shop.fenced(R) is (operation == "retire")

    play(story)


def test_a_sweep_removes_the_tokens_of_retired_rollouts_but_those_that_a_checkpoint_needs() -> None:
    async def story(shop: Shop) -> None:
        for each in ALIKE:
            await shop.call(ONE, each, f"{each}.c0")
        replies = await shop.checkpoint("c", ALIKE[0], where="/run/c")
        (kept,) = [key for reply in replies for key in reply["staging_keys"]]
        await shop.retire(*ALIKE[:2])
        status, swept = await shop.ledger(TWO, "sweep", keep=[kept])
        assert (status, swept) == (200, {"removed": 1, "kept": 2, "busy": 0})
        await shop.restore("c-restore", ALIKE[0], where="/run/c")
        _, reply = await shop.ledger(ONE, "verify", ALIKE[0].next())
        assert reply["lineages"][0]["usable"]

    play(story)


def test_a_sweep_of_many_lets_checkpoints_in_and_ends_with_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on the disk cannot be cut off: a sweep is several, and of each repetition something is done."""
    monkeypatch.setattr(ledger_routes, "LEDGER_PIECE", 1)
    many = [EpisodeId(f"s{number}") for number in range(6)]

    class SlowSweep(CalmFates):
        def disk(self, node: str, step: str, op_index: int) -> DiskFate:
            return DiskFate(latency_s=8.0) if step == "ledger.sweep" else super().disk(node, step, op_index)

    async def story(shop: Shop) -> None:
        swept: list[tuple[int, Any]] = []

        async def sweep() -> None:
            swept.append(await shop.ledger(ONE, "sweep"))

        for each in many:
            await shop.call(ONE, each, f"{each}.c0")
        await shop.retire(*many)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sweep)
            await settle()
            assert [status for status, _ in await shop.control("prepare", "c")] == [200, 200]
        status, refused = swept.pop()
        assert (status, refused["error"]["code"]) == (409, "invalid_phase")
        await shop.control("resume", "c")
        began = anyio.current_time()
        await sweep()
        status, refused = swept.pop()
        assert (status, refused["error"]["code"]) == (409, "deadline_exceeded")
        assert "3 staged calls removed in time, not all: repeat" in refused["error"]["detail"]
        assert anyio.current_time() - began < BUDGET_S + 8.0
        await sweep()
        assert swept == [(200, {"removed": 2, "kept": 0, "busy": 0})]

    play(story, fates=SlowSweep())


def test_the_ledgers_routes_ask_for_the_token() -> None:
    async def story(shop: Shop) -> None:
        for operation in ("manifest", "verify", "retire", "delete", "sweep"):
            url = f"{shop.gym.url(ONE)}/ng-control/v1/ledger/{operation}"
            assert (await shop.world.client().request("POST", url, body=b"{}")).status == 401

    play(story)


def test_nothing_of_a_forgotten_rollout_is_left_but_the_rows_of_its_last_attempt() -> None:
    """Scenario 87, INV-39."""

    async def story(shop: Shop) -> None:
        await shop.call(ONE, R, "r.c0")
        await shop.retire(R)
        await shop.restart()
        await shop.call(TWO, R1, "r-a1.c0")
        assert shop.fenced(R)
        await shop.forget("r")
        assert shop.shelf.names() == ["r-a1.lineage.jsonl", "r-a1.lineage.started"], (
            "also when the server that fenced it has been restarted"
        )
        for _, status in [await shop.ask(server, "/ng-control/v1/ledger/manifest", {}) for server in POLICIES]:
            assert [each["capture_key"] for each in status["lineages"]] == ["r-a1"]

    play(story)


def test_a_retire_leaves_the_next_attempt_alone_and_no_late_row_recreates_a_ledger() -> None:
    async def story(shop: Shop) -> None:
        await shop.call(ONE, R, "r.c0")
        await shop.call(TWO, R1, "r-a1.c0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shop.call, TWO, R, "r.c1")
            await settle(0.02)
            await shop.retire(R)
        assert not shop.there(R) and shop.fenced(R) and shop.rows(R1) == ["r-a1.c0"]

    play(story)


def _answer(*, weight_version: int = 0, response_id: str = "x", **changes: object) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi"},
        "finish_reason": "stop",
        "token_ids": [5, 6],
        "logprobs": {"content": [{"token": "h", "logprob": -1.0}, {"token": "i", "logprob": -2.0}]},
    }
    return json.dumps(
        {"id": response_id, "choices": [choice | changes], "prompt_token_ids": [1, 2]}
        | {"weight_version": weight_version, "usage": {"prompt_tokens": 2, "completion_tokens": 2}}
    )


NAN = {"content": [{"token": "h", "logprob": float("nan")}, {"token": "i", "logprob": -1.0}]}
WITH_NAN = _answer(logprobs=NAN)


@pytest.mark.parametrize(
    "answer",
    [
        WITH_NAN,
        _answer(logprobs=None),
        _answer(token_ids=None),
        _answer(token_ids=[2**70, 1]),
        _answer(weight_version=2**63),
        _answer(weight_version=-1),
        _answer(response_id="x" * 2_000_000),
        b"no",
    ],
)
def test_an_answer_that_cannot_be_staged_is_served_and_poisons_its_rollout(answer: bytes) -> None:
    """Scenario 60: NaN and integers beyond 64 bits among them."""

    async def story(shop: Shop) -> None:
        reply = await shop.call(ONE, R, "c0")
        assert reply is not None and reply.status == 200 and reply.body == answer
        assert shop.rows(R) == [] and shop.poison(R) == ["capture_failed"]
        await shop.checkpoint("c", R)

    play(story, answer=answer)


def test_a_rotten_ledger_file_is_the_trouble_of_its_rollout_alone() -> None:
    """INV-19: its calls are served and its episode goes on, poisoned; the others are what they were."""
    other = EpisodeId("s")

    async def story(shop: Shop) -> None:
        for episode in (R, other):
            await shop.call(ONE, episode, "c0")
        shop.world.disk.view("nobody").append(f"{LEDGER}/r.lineage.jsonl").write(b"nonsense\n")
        more = await shop.call(TWO, R, "c1")
        assert more is not None and more.status == 200
        await shop.checkpoint("c", R, other)
        await shop.restore("again", R, other)
        assert shop.rows(R1) == [] and shop.poison(R1) == ["damaged"]
        assert shop.rows(other.next()) == ["c0"] and shop.poison(other.next()) == []
        _, reply = await shop.ledger(ONE, "verify", R1, other.next())
        assert [each["usable"] for each in reply["lineages"]] == [False, True]
        _, reply = await shop.ledger(ONE, "verify", EpisodeId("nobody"))
        assert (reply["lineages"][0]["usable"], reply["lineages"][0]["reason"]) == (False, "no_rows")

    play(story)


def test_an_answer_of_another_engine_is_staged_as_it_is() -> None:
    async def story(shop: Shop) -> None:
        await shop.call(ONE, R, "c0")
        (row,) = shop.shelf.rows("r")
        assert (row["prev_len"], row["delta_len"], row["cum_len"], row["response_id"]) == (0, 4, 4, "x")

    play(story, answer=_answer())
