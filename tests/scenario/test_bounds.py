"""Just within a bound of `gym_ckpt.limits` and just beyond it: what the caller sees, and that nothing else is lost."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from gym_ckpt.limits import (
    CHECKPOINT_ID_MAX_BYTES,
    IDEMPOTENCY_KEYS_KEPT,
    ITEM_AMOUNT_MAX,
    ITEM_STOCK_MAX,
    OPEN_FILES_S,
    POISON_DETAIL_MAX_CHARS,
    RESPONSE_ID_MAX_CHARS,
)
from gym_ckpt.participants import gate
from gym_ckpt.participants.captured import LedgerBook
from gym_ckpt.ports import Ports, Reply
from gym_ckpt.runtime import transfer
from gym_ckpt.runtime.asgi import tagged
from gym_ckpt.runtime.participant import Record
from gym_ckpt.runtime.peer import IDEMPOTENCY_KEY
from gym_ckpt.storage import records
from gym_ckpt.types import EpisodeId
from gym_ckpt.wire import json
from gym_ckpt.wire.sse import KEEP_ALIVE
from sim.cluster import LEDGER as SHARED
from sim.world import World
from tests.property.toys import URL, Toy, control, serve
from tests.scenario.gate import LEDGER, Stage, play, settle
from tests.scenario.ledger import Shop
from tests.scenario.servers import Ask, ask_servers, say, seeded
from tests.scenario.test_bookkeeping import ASKS, STAGED, TOKENS

R = EpisodeId("r")
MOST = 4096
"""In place of bounds that it would take long to reach."""


# ------------------------------------------------------------------------------------------------- the gate


def padded(size: int, *, streamed: bool) -> bytes:
    """A whole answer of so many bytes."""
    frame = b"data: %s\n\ndata: [DONE]\n\n" if streamed else b"%s"
    answer = TOKENS.removesuffix(b"}") + b',"pad":"%s"}'
    return frame % (answer % (b"x" * (size - len(frame % (answer % b"")))))


def poison(stage: Stage) -> list[dict[str, Any]]:
    lines = [data for path, data in stage.world.disk.tree(LEDGER).items() if path.endswith(".poison")]
    return [json.loads(line) for data in lines for line in data.splitlines()]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("over", [0, 1])
def test_an_answer_too_long_to_be_held_is_passed_on_whole_and_poisons_its_rollout(
    streaming: bool, over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ANSWER_MAX_BYTES`, where tokens are captured: in several chunks, the last of which goes beyond."""
    monkeypatch.setattr(gate, "ANSWER_MAX_BYTES", MOST)
    said = padded(MOST + over, streamed=streaming)

    async def story(stage: Stage) -> None:
        stage.worker.say(*([KEEP_ALIVE] if streaming else []), said[:1000], said[1000:4000], said[4000:])
        stage.worker.end()
        caller = await stage.call(asks=ASKS)
        assert caller.done and caller.status == 200
        assert caller.body.removeprefix(KEEP_ALIVE) == said, "not a byte is lost"
        assert await stage.gate.rows(R) == ([] if over else ["call"])
        why = [(each["model_call_id"], each["reason"], each["detail"]) for each in poison(stage)]
        assert why == ([("call", "capture_failed", f"an answer of more than {MOST} bytes")] if over else [])
        assert stage.world.disk.tree(STAGED) == {}
        assert stage.gate.it.book.has(R, "call"), "it has started, and an agent in mid-call waits for it"

    play(story, streaming=streaming, captures=True)


def test_an_answer_too_long_to_be_held_is_held_as_far_as_it_goes_while_admission_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-11: no part of it leaves; what is beyond the bound stays with the worker until it may."""
    monkeypatch.setattr(gate, "ANSWER_MAX_BYTES", MOST)
    said = padded(3 * MOST, streamed=False)

    async def story(stage: Stage) -> None:
        caller = await stage.call(asks=ASKS)
        stage.gate.it.admission.close()
        stage.worker.say(said[: MOST + 1], said[MOST + 1 :])
        stage.worker.end()
        await settle()
        assert caller.status is None and stage.gate.it.admission.book.quiet
        stage.gate.it.admission.open()
        await settle()
        assert caller.done and caller.body == said
        assert await stage.gate.rows(R) == ["call"]

    play(story)


@pytest.mark.parametrize("over", [0, 1])
def test_an_answer_whose_id_no_row_can_hold_is_served_and_poisons_its_rollout(over: int) -> None:
    """`RESPONSE_ID_MAX_CHARS`."""
    said = TOKENS.replace(b'"id":"x"', b'"id":"%s"' % (b"x" * (RESPONSE_ID_MAX_CHARS + over)))

    async def story(stage: Stage) -> None:
        stage.worker.say(said)
        stage.worker.end()
        caller = await stage.call(asks=ASKS)
        assert (caller.status, caller.body) == (200, said)
        assert await stage.gate.rows(R) == ([] if over else ["call"])
        assert [each["reason"] for each in poison(stage)] == ["capture_failed"] * over

    play(story, captures=True)


def test_a_reason_for_poison_is_cut_and_stays_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`POISON_DETAIL_MAX_CHARS`, of an error whose text is as long as its path."""

    async def story(stage: Stage) -> None:
        book = stage.gate.it.book
        assert isinstance(book, LedgerBook)

        async def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "/ledger/" + "\udcff" * 10_000)

        stage.worker.say(TOKENS)
        stage.worker.end()
        with monkeypatch.context() as patched:
            patched.setattr(book.ledger, "append", full)
            failed = await stage.call(asks=ASKS)
        assert failed.status == 503
        (written,) = poison(stage)
        assert written["reason"] == "row_write_failed" and len(written["detail"]) == POISON_DETAIL_MAX_CHARS
        assert (await stage.call(call_id="again", asks=ASKS)).status == 200

    play(story, captures=True)


@pytest.mark.parametrize("fails_s", [OPEN_FILES_S - 2, OPEN_FILES_S + 2])
def test_a_server_that_cannot_open_its_files_for_long_says_so_and_ends(fails_s: float) -> None:
    """`OPEN_FILES_S`: of a disk that comes back in time nobody hears."""
    world = World(1)
    shop = Shop(world)
    world.add_node("policy", shop.server("policy"))
    events: list[Any] = []
    world.trace.subscribe(events.append, ("server.files_unavailable",))

    def broken(_owner: str, op: str, path: str) -> None:
        if world.now < fails_s and path.startswith(SHARED):
            raise OSError(errno.EIO, "Input/output error", path)

    async def script(world: World) -> None:
        world.disk.on_op = broken
        world.nodes["policy"].start()
        await anyio.sleep(fails_s + 10)
        assert world.nodes["policy"].alive is (fails_s < OPEN_FILES_S)

    result = world.run(script, horizon_s=1000)
    assert events, "each try is in the trace"
    if fails_s < OPEN_FILES_S:
        result.check()
    else:
        (failure,) = result.errors
        assert "server 'policy': its files cannot be opened" in failure.detail


# --------------------------------------------------------------------------------------------- the records


class Long(Toy):
    """Its state is text."""

    size = 0

    async def export(self, scope: frozenset[EpisodeId], stop: bool) -> Sequence[Record]:
        return [Record(each.episode, "x" * self.size) for each in await super().export(scope, stop)]

    async def check(self, records: Sequence[Record]) -> None:
        assert all(record.state == "x" * self.size for record in records)


def test_a_record_that_is_too_long_fails_its_checkpoint_and_names_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """`RECORD_MAX_BYTES`: the longest is read back; one byte more, and the checkpoint before it stays in force."""
    for module in (records, transfer):
        monkeypatch.setattr(module, "RECORD_MAX_BYTES", MOST)
    frame = json.dumps({"episode": {"rollout_id": "r", "attempt": 0}, "state": ""})
    scope = [{"rollout_id": "r", "attempt": 0}]
    toys: list[Long] = []

    async def main(ports: Ports) -> None:
        toys.append(Long("model", ports))
        await serve(toys[-1], URL)

    async def script(world: World) -> None:
        node = world.nodes["model"]
        node.start()
        await settle()
        await world.client().request("POST", tagged(URL, R, "/add"), body=b"{}")

        async def taken(checkpoint_id: str, size: int) -> tuple[int, Any]:
            toys[-1].size = size - len(frame)
            assert (await control(world, "prepare", checkpoint_id))[0] == 200
            where = {"checkpoint_dir": f"/run/{checkpoint_id}", "episode_ids": scope}
            replied = await control(world, "commit", checkpoint_id, **where)
            assert (await control(world, "resume", checkpoint_id))[0] == 200
            return replied

        assert (await taken("a", MOST))[0] == 200
        status, said = await taken("b", MOST + 1)
        assert (status, said["error"]["code"]) == (409, "export_failed")
        assert "episode r " in said["error"]["detail"] and f"{MOST + 1:,} bytes" in said["error"]["detail"]
        assert not [path for path in world.disk.tree("/run/b") if path.endswith("manifest.json")]
        reply = await world.client().request("POST", tagged(URL, R, "/add"), body=b"{}")
        assert reply.status == 200, "its episode goes on"
        node.crash()
        node.start()
        await settle()
        toys[-1].size = MOST - len(frame)
        status, said = await control(world, "restore", "again", checkpoint_dir="/run/a", episode_ids=scope)
        assert (status, said["installed"]) == (200, ["r-a1"]), said

    world = World(1)
    world.disk.make_dirs("/run")
    world.add_node("model", main)
    world.run(script, horizon_s=100).check()


@pytest.mark.parametrize("over", [0, 1])
def test_an_id_of_a_checkpoint_that_is_too_long_is_refused_and_opens_nothing(over: int) -> None:
    """`CHECKPOINT_ID_MAX_BYTES`: it becomes the name of a directory."""

    async def story(stage: Stage) -> None:
        status, said = await stage.control("prepare", "c" * (CHECKPOINT_ID_MAX_BYTES + over))
        assert (status, said.get("phase")) == ((200, "prepared"), (400, None))[over]
        assert stage.gate.it.admission.book.closed is not bool(over)

    play(story)


# --------------------------------------------------------------------------------------------------- tools


def test_keys_of_tool_calls_are_known_for_thousands_of_calls_and_not_for_ever() -> None:
    """`IDEMPOTENCY_KEYS_KEPT`: a late copy within it has no effect; one from beyond is taken for a new call."""

    async def story(_: Ask, world: World) -> None:
        cookie = await seeded(world)

        async def add(key: str) -> Reply:
            return await say(world, R, "/add_item", {"item": "bolt", "amount": 1}, cookie, (IDEMPOTENCY_KEY, key))

        def count(reply: Reply) -> int:
            assert reply.status == 200, reply
            result = json.loads(reply.body)["result"]
            return int(result["count"])

        first = count(await add("key-0"))
        for number in range(1, IDEMPOTENCY_KEYS_KEPT):
            await add(f"key-{number}")
        last = await add(f"key-{IDEMPOTENCY_KEYS_KEPT}")
        assert count(last) == first + IDEMPOTENCY_KEYS_KEPT
        assert (await add(f"key-{IDEMPOTENCY_KEYS_KEPT}")).body == last.body, "the last is answered once more"
        assert (await add("key-0")).status == 409, "the oldest that is known is refused"
        assert count(await add("new")) == count(last) + 1
        assert (await add("key-1")).status == 409
        assert count(await add("key-0")) == count(last) + 2

    ask_servers(story)


@pytest.mark.parametrize(
    ("stock", "amount", "why"),
    [
        (0, ITEM_AMOUNT_MAX, None),
        (0, ITEM_AMOUNT_MAX + 1, "from 1 to 100"),
        (ITEM_STOCK_MAX - 1, 1, None),
        (ITEM_STOCK_MAX, 1, "cannot hold more than"),
    ],
)
def test_what_an_inventory_cannot_hold_is_said_to_the_model_and_changes_nothing(
    stock: int, amount: int, why: str | None
) -> None:
    """`ITEM_AMOUNT_MAX`, `ITEM_STOCK_MAX`."""

    async def story(_: Ask, world: World) -> None:
        cookie = await seeded(world, {"inventory": {"bolt": stock}})

        async def use(tool: str, **arguments: object) -> Any:
            reply = await say(world, R, f"/{tool}", arguments, cookie)
            assert reply.status == 200
            return json.loads(reply.body)["result"]

        result = await use("add_item", item="bolt", amount=amount)
        assert (result.get("error") or "") == "" if why is None else why in result["error"]
        assert (await use("count_items", item="bolt"))["count"] == stock + (amount if why is None else 0)

    ask_servers(story)


def test_more_stock_than_an_inventory_holds_is_refused_with_its_field() -> None:
    async def story(_: Ask, world: World) -> None:
        async def seed(bolts: int) -> Reply:
            task = {"task": {"inventory": {"bolt": bolts}}}
            return await say(world, EpisodeId(f"s{bolts}"), "/seed_session", task)

        assert (await seed(ITEM_STOCK_MAX)).status == 200
        reply = await seed(ITEM_STOCK_MAX + 1)
        assert reply.status == 400 and b"task.inventory.bolt" in reply.body

    ask_servers(story)
