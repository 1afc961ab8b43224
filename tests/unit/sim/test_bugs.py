"""Planted bugs: planted where the code would use what they replace, and gone afterwards."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from faults.bugs import BUGS, planted, unplantable
from faults.patches import unlike


def holders(value: object) -> set[str]:
    """Modules, packages aside, of which some name stands for this object."""
    modules = [module for name, module in sys.modules.items() if name.startswith("gym_ckpt.") and module is not None]
    return {each.__name__ for each in modules if not hasattr(each, "__path__") and value in vars(each).values()}


@pytest.mark.parametrize("name", BUGS)
def test_nobody_has_what_it_replaces_under_a_name_of_his_own(name: str) -> None:
    """A function that another module has imported by its name is still the right one there: no bug at all."""
    for owner, attribute, _ in BUGS[name].patch():
        real = getattr(owner, attribute)
        if not isinstance(owner, ModuleType) or getattr(real, "__module__", None) != owner.__name__:
            continue  # a method, or planted in one of those who use it
        replaced = {str(getattr(each, "__name__", each)) for each, same, _ in BUGS[name].patch() if same == attribute}
        unplanted = {module for module in holders(real) - replaced if module.split(".")[1] != "cli"}
        assert unplanted == set(), f"plant {name} there too"


@pytest.mark.parametrize("name", BUGS)
def test_it_is_gone_afterwards(name: str) -> None:
    places = [(owner, attribute) for owner, attribute, _ in BUGS[name].patch()]
    before = [getattr(owner, attribute) for owner, attribute in places]
    with planted(name):
        assert all(getattr(*place) != value for place, value in zip(places, before, strict=True))
    assert [getattr(*place) for place in places] == before


@pytest.mark.parametrize("name", BUGS)
def test_what_is_planted_is_called_as_what_it_replaces(name: str) -> None:
    """Otherwise its `TypeError` is what the campaign finds, and the checks have shown nothing."""
    assert unplantable(name) is None


def test_what_takes_less_or_asks_for_more_does_not_stand_in() -> None:
    def real(one: int, two: int = 0, *, three: int = 0) -> None: ...

    assert unlike(real, real) is None
    assert unlike(real, lambda *args, **named: None) is None
    for value in (lambda one: None, lambda one, two=0: None, lambda one, two, *, three=0: None):
        assert "is not called like this" in str(unlike(real, value))
