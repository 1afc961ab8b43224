"""What leaves a task group: the error that counts, as it is, on both event loops."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from gym_ckpt.errors import ConfigError, Unavailable
from gym_ckpt.runtime.groups import Tasks

pytestmark = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def _fails(error: BaseException) -> None:
    raise error


def test_the_error_of_the_body_comes_out_with_its_cause(backend: str) -> None:
    cause = OSError("disk")

    async def main() -> None:
        async with Tasks():
            raise Unavailable("worker") from cause

    with pytest.raises(Unavailable) as caught:
        anyio.run(main, backend=backend)
    assert caught.value.__cause__ is cause


def test_the_error_of_a_task_comes_out(backend: str) -> None:
    async def main() -> None:
        async with Tasks() as tasks:
            tasks.start_soon(_fails, Unavailable("worker"))
            await anyio.sleep_forever()

    with pytest.raises(Unavailable):
        anyio.run(main, backend=backend)


def test_an_error_that_meets_a_cancellation_from_outside_is_caught_by_its_name(backend: str) -> None:
    """The next wait is cancelled all the same."""
    seen: list[str] = []

    async def main() -> None:
        with anyio.CancelScope() as everything:
            try:
                async with Tasks() as tasks:
                    tasks.start_soon(anyio.sleep_forever)
                    await anyio.lowlevel.checkpoint()
                    everything.cancel()
                    raise Unavailable("export failed")
            except Unavailable as error:
                seen.append(error.detail)
            await anyio.lowlevel.checkpoint()
            seen.append("went on although cancelled")

    anyio.run(main, backend=backend)
    assert seen == ["export failed"]


def test_a_cancellation_alone_stays_one(backend: str) -> None:
    async def main() -> bool:
        with anyio.CancelScope() as scope:
            async with Tasks() as tasks:
                tasks.start_soon(anyio.sleep_forever)
                scope.cancel()
                await anyio.sleep_forever()
        return scope.cancelled_caught

    assert anyio.run(main, backend=backend)


@pytest.mark.parametrize(
    ("make", "counts"),
    [
        (lambda: [ConfigError("a"), AssertionError("belief")], AssertionError),
        (lambda: [OSError("disk"), ConfigError("a")], OSError),
        (lambda: [AssertionError("belief"), SystemExit(3)], SystemExit),
    ],
)
def test_of_several_the_gravest_counts_and_names_the_others(
    backend: str, make: Callable[[], list[BaseException]], counts: type[BaseException]
) -> None:
    errors = make()

    async def late(error: BaseException) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise error

    async def main() -> None:
        async with Tasks() as tasks:
            tasks.start_soon(late, errors[1])
            await anyio.lowlevel.checkpoint()
            raise errors[0]

    with pytest.raises(counts) as caught:
        anyio.run(main, backend=backend)
    others = [error for error in errors if error is not caught.value]
    assert caught.value.__notes__ == [f"at the same time: {type(other).__name__}: {other}" for other in others]
