"""`leasekeeper take` without a server: a task that asks for a person is answered through the store."""

from pathlib import Path

import pytest

from leasekeeper.core.leases import Lease
from tests.cli.workplace import Workplace


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasekeeper.cli.take.USUAL_SERVER", "http://127.0.0.1:1")


def test_a_task_that_asks_is_answered_through_the_store(sqlite_url: str, tmp_path: Path) -> None:
    place = Workplace(url=sqlite_url, directory=tmp_path)
    place.apply()
    place.start_worker()
    job = place.submit()
    (grant,) = place.claim()
    lease_id = grant.lease.lease_id
    assert "does not ask for anybody" in place.fails(4, "take", "shop_us_main", "--hand-back")
    place.do(lambda store: store.request_person(grant.lease.ref, "solve the prompt"))
    answered = place.text("take", job, "--hand-back", "--outcome", "solved")
    assert answered == "Answered. The task of shop_us_main goes on at its worker's next heartbeat.\n"
    kept = place.do(lambda store: store.get(Lease, lease_id)).person_answer or {}
    assert (kept["outcome"], kept["note"]) == ("solved", "solved")
    assert "has answered run" in place.fails(4, "take", "shop_us_main", "--hand-back")
    assert "a browser is taken where it runs" in place.cli("take", "shop_us_main").stderr
    assert "there is no run, profile or job nobody" in place.fails(3, "take", "nobody", "--hand-back")
