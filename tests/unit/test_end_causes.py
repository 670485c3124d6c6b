"""Why a browser's use ended: the values that the keeper repeats, and a sentence for each."""

import pytest

from leasekeeper.browsers.keeper import causes
from leasekeeper.core.browsers import EndCause
from leasekeeper.wording.browsers import END_CAUSES, end_text, gone_text


def test_a_keeper_gives_the_causes_that_core_has() -> None:
    names = {name: value for name, value in vars(causes).items() if name.isupper()}
    assert names == {cause.name: cause.value for cause in EndCause if cause is not EndCause.OVERDUE}


def test_every_cause_has_a_sentence() -> None:
    assert set(END_CAUSES) == set(EndCause)
    assert [end_text(cause.value) for cause in EndCause] == [END_CAUSES[cause] for cause in EndCause]
    assert end_text("of a later version") == "of a later version"


@pytest.mark.parametrize("cause", [None, *EndCause])
def test_a_browser_that_is_gone_ended_by_itself_unless_the_page_was_at_fault(cause: EndCause | None) -> None:
    at_fault = cause is EndCause.MESSAGE_TOO_LARGE
    assert ("above the limit (LEASEKEEPER_MAX_MESSAGE_MB)" in gone_text(cause)) is at_fault
    assert (gone_text(cause, "Target closed") == "Target closed") is not at_fault
