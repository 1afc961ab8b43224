"""What a piece of work may do around admission that closes and opens."""

from __future__ import annotations

import anyio

from gym_ckpt.runtime.admission import Admission
from gym_ckpt.types import EpisodeId


class Silent:
    """A tracer that nobody reads."""

    def emit(self, event: str, **fields: object) -> None: ...


def test_what_was_parked_while_closed_works_again_at_its_next_boundary() -> None:
    """Or the next checkpoint would take it for parked while it is in the middle of something."""

    async def main() -> None:
        admission = Admission(Silent())
        async with admission.enter(EpisodeId("r")) as work:
            await work.begin()
            admission.close()
            work.park()
            assert admission.book.quiet
            admission.open()
            await work.boundary()
            admission.close()
            assert not admission.book.quiet

    anyio.run(main)


def test_what_goes_on_once_admission_is_open_counts_as_work() -> None:
    async def main() -> None:
        admission = Admission(Silent())
        async with admission.enter(EpisodeId("r")) as work:
            await work.begin()
            admission.close()
            work.park()
            work.go_on()
            assert admission.book.quiet, "not while it is closed"
            admission.open()
            work.go_on()
            assert admission.book.blockers() == {"r"}

    anyio.run(main)
