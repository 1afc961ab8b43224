"""Stories for the oracle, each told right and wrong: `Stories` collects those of a file, for its two tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.sim.onlooker import Onlooker

Story = Callable[[Onlooker, bool], None]
"""What happens; with True, gone wrong."""


class Stories:
    """`@story(number, *also)`: gone wrong, exactly this invariant breaks, and those that cannot but break with it."""

    def __init__(self) -> None:
        self._told: list[tuple[int, tuple[int, ...], Story]] = []

    def __call__(self, number: int, *also: int) -> Callable[[Story], Story]:
        def add(told: Story) -> Story:
            self._told.append((number, also, told))
            return told

        return add

    @property
    def each(self) -> pytest.MarkDecorator:
        """Of a test with the arguments `number`, `also` and `told`."""
        names = [f"INV-{number}-{told.__name__}" for number, _, told in self._told]
        return pytest.mark.parametrize(("number", "also", "told"), self._told, ids=names)


def check_wrong(told: Story, *numbers: int) -> None:
    on = Onlooker()
    told(on, True)
    assert on.found == {f"INV-{number}" for number in numbers}, on.oracle.violations


def check_right(told: Story, number: int) -> None:
    on = Onlooker()
    told(on, False)
    assert on.oracle.violations == []
    assert on.checked(number) > 0, "the check never looked"
