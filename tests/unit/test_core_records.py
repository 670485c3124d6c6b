"""Quick constructors: all that a frozen dataclass promises still holds."""

import copy
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from leasekeeper.core.records import quick_init


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A record with every kind of field."""

    name: str
    weight: int = 3
    labels: Mapping[str, str] = field(default_factory=dict)


def test_fields_and_defaults_are_as_declared() -> None:
    assert (Parcel(name="a").weight, Parcel(name="a", weight=5).weight) == (3, 5)
    assert Parcel(name="a", labels={"x": "y"}) == replace(Parcel(name="a"), labels={"x": "y"})
    assert repr(Parcel(name="a")) == "Parcel(name='a', weight=3, labels={})"
    assert type(Parcel(name="a")) is Parcel


def test_each_record_has_a_default_of_its_own() -> None:
    assert Parcel(name="a").labels is not Parcel(name="a").labels


def test_it_is_frozen_and_can_be_copied() -> None:
    parcel: Any = Parcel(name="a")
    with pytest.raises(FrozenInstanceError):
        parcel.name = "b"
    assert copy.deepcopy(parcel) == pickle.loads(pickle.dumps(parcel)) == parcel  # noqa: S301 - pickled a moment ago


def test_a_class_that_does_more_than_keep_its_fields_is_refused() -> None:
    class Checked:
        def __post_init__(self) -> None: ...

    class Child(Parcel):
        """Inherits fields."""

    for kind in (Checked, Child):
        with pytest.raises(TypeError, match="more than its fields"):
            quick_init(kind)


@pytest.mark.parametrize("arguments", [{}, {"name": "a", "height": 1}], ids=["too_few", "unknown"])
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Parcel.__init__\(\)"):
        Parcel(**arguments)
    with pytest.raises(TypeError):
        Parcel("a")  # type: ignore[call-arg]  # keywords only
