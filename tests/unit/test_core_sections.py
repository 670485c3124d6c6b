"""Safe steps and mutating sections, as tables: what a write of the holder makes of its lease, and what is refused."""

from datetime import timedelta

import pytest

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.leases import Lease, Mode, may_have_been_done
from leasekeeper.core.sections import section_entered, section_left, step_reached
from leasekeeper.errors import Conflict
from tests.unit.test_core_lanes import NOW, lease

LATER = NOW + timedelta(seconds=1)


def enter(held: Lease, name: str = "order", *, idempotent: bool = False, disposable: bool = False) -> Lease:
    return section_entered(held, name, idempotent=idempotent, disposable=disposable, now=LATER)


def test_a_section_is_remembered_from_its_beginning_until_the_next_safe_step() -> None:
    inside = enter(lease())
    assert (inside.open_section, inside.section_at) == ("order", LATER)
    assert "was open" in str(may_have_been_done(inside))
    left = section_left(inside, "order")
    assert (left.open_section, left.section_at, left.left_section) == (None, None, "order")
    assert "was left" in str(may_have_been_done(left))
    assert may_have_been_done(step_reached(left, "ordered", None, LATER)) is None


def test_a_section_that_may_be_done_twice_is_not_remembered_and_hides_none_before_it() -> None:
    again = section_left(enter(lease(), "sync", idempotent=True), "sync")
    assert (again.left_section, again.section_idempotent) == (None, False)
    after = section_left(enter(section_left(enter(lease()), "order"), "sync", idempotent=True), "sync")
    assert after.left_section == "order"


def test_a_safe_step_keeps_the_last_address_that_was_given() -> None:
    there = step_reached(lease(), "cart", "https://shop.test/cart", NOW)
    assert (there.last_safe_step, there.last_safe_at, there.last_url) == ("cart", NOW, "https://shop.test/cart")
    assert step_reached(there, "paid", None, LATER).last_url == "https://shop.test/cart"


@pytest.mark.parametrize(
    ("held", "disposable", "cause"),
    [
        (lease(), False, None),
        (lease(open_section="sync"), False, ConflictReason.SECTION_OPEN),
        (lease(mode=Mode.SHARED), False, ConflictReason.PROFILE_SHARED),
        (lease(mode=Mode.SHARED), True, None),
    ],
)
def test_sections_do_not_nest_and_need_the_profile_alone(
    held: Lease, disposable: bool, cause: ConflictReason | None
) -> None:
    if cause is None:
        assert enter(held, disposable=disposable).open_section == "order"
        return
    with pytest.raises(Conflict) as refused:
        enter(held, disposable=disposable)
    assert refused.value.cause is cause


@pytest.mark.parametrize("open_section", [None, "sync"])
def test_only_the_open_section_is_left(open_section: str | None) -> None:
    with pytest.raises(Conflict) as refused:
        section_left(lease(open_section=open_section), "order")
    assert refused.value.cause is ConflictReason.SECTION_NOT_OPEN
