"""`leasekeeper webhooks add|endpoints|enable|disable|remove|ping`: receivers of alerts."""

import json

import pytest

from leasekeeper.encryption import new_key
from tests.cli.workplace import Workplace


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", new_key())


def test_an_endpoint_is_added_disabled_enabled_and_removed(place: Workplace) -> None:
    added = json.loads(
        place.text("webhooks", "add", "oncall", "https://hook.test/in", "--event", "profile.*", "--json")
    )
    assert (added["endpoint_id"], added["state"], added["secret"][:6]) == ("oncall", "active", "whsec_")
    listed = json.loads(place.text("webhooks", "endpoints", "--json"))
    assert [each["endpoint_id"] for each in listed["items"]] == ["oncall"]
    assert added["secret"] not in json.dumps(listed)
    assert "oncall is disabled" in place.text("webhooks", "disable", "oncall", "--note", "noisy")
    assert "noisy" in place.text("webhooks", "endpoints")
    assert "oncall is active" in place.text("webhooks", "enable", "onc", "--note", "quiet again")
    assert "oncall is removed" in place.text("webhooks", "remove", "oncall", "--note", "moved")
    assert json.loads(place.text("webhooks", "endpoints", "--json"))["items"] == []
    assert json.loads(place.text("secrets", "list", "--json"))["items"] == []
