"""What a policy-model server keeps of calls and rollouts, in memory and on the disk, and for how long (scenario 87)."""

from __future__ import annotations

import errno
from collections import deque
from typing import Any

import anyio
import pytest

from gym_ckpt.limits import KEEP_ALIVE_S
from gym_ckpt.participants.captured import LedgerBook
from gym_ckpt.storage.ledger import Appended
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.sse import KEEP_ALIVE
from tests.scenario.gate import LEDGER, Stage, play, settle

ROLLOUTS = 20
STAGED = f"{LEDGER}/tokens/staged/policy"
TOKENS = json.dumps(
    {
        "id": "x",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hi"},
                "finish_reason": "stop",
                "token_ids": [5, 6],
                "logprobs": {"content": [{"token": "h", "logprob": -1.0}, {"token": "i", "logprob": -2.0}]},
            }
        ],
        "prompt_token_ids": [1, 2],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    }
)
ASKS = json.dumps({"messages": [{"role": "user", "content": "hello"}]})


def kept(stage: Stage) -> dict[str, int]:
    """Entries of every container that the server's books hold, by name; without the empty ones."""
    gate = stage.gate.it
    books: list[Any] = [gate.book, gate.admission, gate.admission.book, gate.admission.book.marks]
    if isinstance(gate.book, LedgerBook):
        books += [gate.book.ledger, gate.book.ledger.pending]
    return {
        f"{type(book).__name__}.{name}": len(value)
        for book in books
        for name, value in vars(book).items()
        if isinstance(value, dict | list | set | deque) and value
    }


async def episodes_run(stage: Stage, attempts: int) -> list[EpisodeId]:
    stage.worker.say(TOKENS)
    stage.worker.end()
    episodes = [EpisodeId(f"r{number}", attempt) for number in range(ROLLOUTS) for attempt in range(attempts)]
    for episode in episodes:
        caller = await stage.call(episode=episode, call_id=f"{episode.key}.c0", asks=ASKS)
        assert caller.done and caller.status == 200
    return episodes


@pytest.mark.parametrize("captures", [False, True])
def test_without_checkpoints_nothing_is_kept_of_a_rollout_in_memory(captures: bool) -> None:
    """Nobody would ever forget it (INV-39)."""

    async def story(stage: Stage) -> None:
        episodes = await episodes_run(stage, 2)
        assert kept(stage) == {}
        rows = stage.world.disk.tree(LEDGER)
        assert [f"{LEDGER}/{each.key}.lineage.jsonl" in rows for each in episodes] == [captures] * len(episodes)

    play(story, captures=captures, checkpoints=False)


@pytest.mark.parametrize("captures", [False, True])
def test_once_every_rollout_is_forgotten_the_books_are_empty(captures: bool) -> None:
    async def story(stage: Stage) -> None:
        gate = stage.gate.it
        episodes = await episodes_run(stage, 2)
        assert kept(stage), "of rollouts that may be checkpointed something is kept"
        retired = [each for each in episodes if each.attempt == 0]
        gate.admission.stop(retired)
        gate.free(retired)
        await gate.release(retired)
        names = sorted({each.rollout_id for each in episodes})
        await gate.release_forgotten(names, retired)
        gate.forget(names)
        gate.admission.book.marks.forget(names)
        assert kept(stage) == {}
        assert not [path for path in stage.world.disk.tree(LEDGER) if path.endswith(".fence")]

    play(story, captures=captures)


def test_a_stream_that_has_begun_with_keep_alives_ends_with_an_error_in_it_when_its_row_cannot_be_written() -> None:
    """It is too late for a status, and a stream that just ends cannot be told from a server that died."""

    async def story(stage: Stage) -> None:
        calls = [await stage.call(asks=ASKS) for _ in range(2)]
        stage.worker.say(KEEP_ALIVE, b"data: " + TOKENS + b"\n\ndata: [DONE]\n\n")
        stage.worker.end()
        await settle()
        served, refused = sorted(calls, key=lambda caller: b"broken_off" in caller.body)
        assert served.done and served.body.endswith(b"data: [DONE]\n\n")
        assert refused.done and b"a row already" in refused.body and b"hi" not in refused.body

    play(story, streaming=True, captures=True)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_copy_of_a_delivered_call_does_not_poison_it_when_the_disk_fails(
    restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has gone on from that call: hidden, its row would be missing in every checkpoint (INV-42)."""

    async def story(stage: Stage) -> None:
        stage.worker.say(TOKENS)
        stage.worker.end()
        assert (await stage.call(asks=ASKS)).status == 200
        if restarted:
            node = stage.world.nodes["policy"]
            node.crash()
            node.start()
            await settle()
        book = stage.gate.it.book
        assert isinstance(book, LedgerBook)

        monkeypatch.setattr(book.ledger, "append", full)
        copy = await stage.call(asks=ASKS)
        assert copy.status == 409 and json.loads(copy.body)["error"]["code"] == "call_id_taken"
        await book.settle()
        assert await stage.gate.rows(EpisodeId("r")) == ["call"]
        assert stage.world.disk.tree(STAGED) == {}

    play(story, captures=True)


async def full(*_: object) -> Appended:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_call_whose_row_failed_may_be_repeated_and_its_id_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 says that it may pass, which it does; under the old id it never will, and 409 says so."""

    async def story(stage: Stage) -> None:
        stage.worker.say(TOKENS)
        stage.worker.end()
        book = stage.gate.it.book
        assert isinstance(book, LedgerBook)
        with monkeypatch.context() as patched:
            patched.setattr(book.ledger, "append", full)
            failed = await stage.call(asks=ASKS)
        assert failed.status == 503 and json.loads(failed.body)["error"]["code"] == "unavailable"
        same = await stage.call(asks=ASKS)
        assert same.status == 409 and json.loads(same.body)["error"]["code"] == "call_id_taken"
        again = await stage.call(call_id="again", asks=ASKS)
        assert again.status == 200 and await stage.gate.rows(EpisodeId("r")) == ["again"]

    play(story, captures=True)


def test_of_two_calls_with_one_id_at_once_one_is_served_although_nothing_is_kept_in_memory() -> None:
    """The ledger itself says that the second row is another one."""

    async def story(stage: Stage) -> None:
        calls = [await stage.call(asks=ASKS) for _ in range(2)]
        stage.worker.say(TOKENS)
        stage.worker.end()
        await settle()
        served, refused = sorted(calls, key=lambda caller: caller.status or 0)
        assert served.status == 200 and refused.status == 409
        assert json.loads(refused.body)["error"]["code"] == "call_id_taken"
        (rows,) = [data for path, data in stage.world.disk.tree(LEDGER).items() if path.endswith(".jsonl")]
        assert rows.count(b"\n") == 1 and stage.world.disk.tree(STAGED) == {}

    play(story, captures=True, checkpoints=False)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_a_stream_that_is_gathered_for_long_sends_keep_alives_and_nothing_else(closed: bool, silent: bool) -> None:
    """They start nothing (INV-13), so they leave a closed gate, too (INV-11), and block no checkpoint."""
    whole = b"data: " + TOKENS + b"\n\ndata: [DONE]\n\n"

    async def story(stage: Stage) -> None:
        gate = stage.gate.it
        caller = await stage.call(asks=ASKS)
        if closed:
            gate.admission.close()
        if not silent:
            for at in range(0, 40, 10):
                stage.worker.say(whole[at : at + 10])
                await anyio.sleep(KEEP_ALIVE_S / 8)
        await anyio.sleep(KEEP_ALIVE_S + 0.1 - (0 if silent else KEEP_ALIVE_S / 2))
        assert stage.seen(caller) == (KEEP_ALIVE, False)
        assert not gate.book.has(EpisodeId("r"), "call") and gate.admission.book.quiet
        stage.worker.say(whole if silent else whole[40:])
        stage.worker.end()
        await settle()
        if closed:
            await anyio.sleep(KEEP_ALIVE_S)
            assert stage.seen(caller) == (2 * KEEP_ALIVE, False), "while it is held as well"
            gate.admission.open()
            await settle()
        assert stage.seen(caller) == ((2 if closed else 1) * KEEP_ALIVE + whole, True)
        assert await stage.gate.rows(EpisodeId("r")) == ["call"]

    play(story, streaming=True, captures=True)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_call_that_leaves_while_it_is_held_leaves_no_tokens(streaming: bool) -> None:
    """INV-19: neither row nor poison, nor a file that nobody refers to."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(asks=ASKS)
        stage.gate.it.admission.close()
        stage.worker.say(b"data: " + TOKENS + b"\n\ndata: [DONE]\n\n" if streaming else TOKENS)
        stage.worker.end()
        await settle()
        disk = stage.world.disk
        assert len(disk.tree(STAGED)) == 1, "held, its tokens safe"
        caller.leave()
        await settle()
        assert disk.tree(STAGED) == {} and not [path for path in disk.tree(LEDGER) if ".lineage." in path]
        stage.gate.it.admission.open()
        await settle()
        assert disk.tree(STAGED) == {}

    play(story, streaming=streaming, captures=True)


def test_what_a_killed_server_had_staged_goes_and_what_a_row_names_stays() -> None:
    async def story(stage: Stage) -> None:
        stage.worker.say(TOKENS)
        await stage.call(episode=EpisodeId("r"), call_id="c0", asks=ASKS)
        held = [await stage.call(episode=EpisodeId("r", at), call_id="c0", asks=ASKS) for at in (1, 2, 3)]
        stage.gate.it.admission.close()
        stage.worker.end()
        await settle()
        disk = stage.world.disk
        assert len(disk.tree(STAGED)) == 4 and not any(caller.body for caller in held)
        node = stage.world.nodes["policy"]
        node.crash()
        node.start()
        await settle()
        assert disk.tree(STAGED) == {}, "its next life empties what was nobody's"
        await stage.call(episode=EpisodeId("s"), call_id="c0", asks=ASKS)
        (row,) = [json.loads(data) for path, data in disk.tree(LEDGER).items() if path.endswith(".jsonl")]
        path = f"{LEDGER}/tokens/{row['staging_key'][:2]}/{row['staging_key']}"
        node.crash()
        node.start()
        await settle()
        assert path in disk.tree(LEDGER)

    play(story, captures=True)


def test_without_a_ledger_a_copy_of_a_call_is_answered_and_booked_once() -> None:
    async def story(stage: Stage) -> None:
        stage.worker.say(TOKENS)
        stage.worker.end()
        for _ in range(2):
            caller = await stage.call(asks=ASKS)
            await settle()
            assert caller.status == 200 and stage.seen(caller) == (TOKENS, True)
        assert await stage.gate.rows(EpisodeId("r")) == ["call"] and stage.gate.it.counts() == {"delivered_calls": 1}

    play(story)
