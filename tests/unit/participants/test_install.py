"""Every kind of participant can be given records by `install`, as the interface has it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gym_ckpt.adapters.system import production_ports
from gym_ckpt.participants.model import ModelParticipant
from gym_ckpt.runtime.participant import Record
from gym_ckpt.types import EpisodeId

pytestmark = pytest.mark.anyio


async def test_a_model_server_takes_records_as_a_restore_of_just_these(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Sequence[EpisodeId], Sequence[Record]]] = []

    async def restore(scope: Sequence[EpisodeId], records: Sequence[Record]) -> None:
        given.append((scope, records))

    async with production_ports() as ports:
        model = ModelParticipant("policy", ports, ["http://worker:80"])
        monkeypatch.setattr(model.book, "restore", restore)
        records = [Record(EpisodeId("r", 1), {}), Record(EpisodeId("s", 4), {})]
        await model.install(records)
    assert given == [([EpisodeId("r"), EpisodeId("s", 3)], records)]
