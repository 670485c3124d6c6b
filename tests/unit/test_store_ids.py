"""Ids are made in order, also many within one millisecond: lists are newest first by them."""

from uuid import UUID

from leasekeeper.stores.sql.new_ids import Ids


def test_ids_grow_and_never_repeat() -> None:
    make = Ids()
    made = [make() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {UUID(text).version for text in made} == {7}
