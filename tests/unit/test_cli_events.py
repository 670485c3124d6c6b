"""How events are shown in a table."""

from leasekeeper.cli.events import data
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import ProfileId
from tests.conformance.world import START


def test_data_of_every_json_type_is_shown_and_ids_with_a_column_are_not() -> None:
    event = Event(
        type=EventType.FLEET_APPLIED,
        at=START,
        profile_id=ProfileId("p1"),
        data={"profile": "p1", "tasks": ["a", "b"], "more": {"n": 1}, "none": None},
    )
    assert data(event) == "tasks=['a', 'b'], more={'n': 1}"
