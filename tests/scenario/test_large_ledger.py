"""Questions about a ledger that is larger than an answer, or takes longer to look at than a stream can wait."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gym_ckpt.core.rebuild import verifying
from gym_ckpt.participants import ledger_routes
from gym_ckpt.storage.ledger import listing
from gym_ckpt.types import EpisodeId
from tests.scenario.ledger import POLICIES, Shop, play

ONE, TWO = POLICIES
MANIFEST = "/ng-control/v1/ledger/manifest"


def test_what_a_ledger_holds_is_told_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LEDGER_LISTED_MAX", 2)
    there = [EpisodeId("r", 0), EpisodeId("r", 10), EpisodeId("r-1", 0), EpisodeId("s", 2), EpisodeId("s", 11)]

    async def story(shop: Shop) -> None:
        for each in there:
            await shop.call(ONE, each, f"{each}.c0")
        pages: list[list[str]] = []
        asked: dict[str, Any] = {}
        while not pages or asked:
            status, page = await shop.ask(TWO, MANIFEST, asked)
            assert status == 200 and all(len(each["rows"]) == 1 for each in page["lineages"])
            pages.append([each["capture_key"] for each in page["lineages"]])
            asked = {"after": pages[-1][-1]} if page["more"] else {}
        assert [len(page) for page in pages] == [2, 2, 1]
        assert [key for page in pages for key in page] == [each.key for each in there]
        wanted = [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in there[1:]]
        _, page = await shop.ask(ONE, MANIFEST, {"episode_ids": wanted, "after": "r-1"})
        assert [each["capture_key"] for each in page["lineages"]] == ["s-a2", "s-a11"] and not page["more"]
        status, refused = await shop.ask(ONE, MANIFEST, {"after": "no/key"})
        assert (status, refused["error"]["code"]) == (400, "invalid_rollout_id")

    play(story)


def test_others_have_their_turns_while_a_long_lineage_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row costs time in proportion to all tokens before it: a lineage of hundreds of calls takes seconds."""
    turns = 0
    meanwhile: list[int] = []
    begun, over = anyio.Event(), list[bool]()

    def watched(*lineage: Any) -> Generator[None, None, Any]:
        steps = verifying(*lineage)
        begun.set()
        while True:
            meanwhile.append(turns)
            try:
                yield next(steps)
            except StopIteration as end:
                over.append(True)
                return end.value

    monkeypatch.setattr(ledger_routes, "verifying", watched)

    async def other() -> None:
        nonlocal turns
        await begun.wait()
        while not over:
            await checkpoint()
            turns += 1

    async def story(shop: Shop) -> None:
        for number in range(4):
            await shop.call(ONE, EpisodeId("r"), f"c{number}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            _, reply = await shop.ledger(ONE, "verify", EpisodeId("r"))
        assert reply["lineages"][0]["usable"] and reply["lineages"][0]["rows"] == 4
        assert len(meanwhile) == 5
        later = meanwhile[1:]  # the other one has woken up by then
        assert later == sorted(set(later)), "it ran between each two rows"

    play(story)
