"""`leasekeeper webhooks`, and what `why`, `stats` and `sweep` say of them."""

import json
from datetime import timedelta

from leasekeeper.core.deliveries import Attempt, DeliveryRequest
from leasekeeper.ports import Store
from leasekeeper.webhooks.message import read_keys
from tests.cli.workplace import Workplace

HOOK = "https://hook.test/done?key=hunter2"


def owed(place: Workplace, *statuses: int | None) -> list[str]:
    """A message per status that ended so; None: it was not sent yet. Gives their ids."""
    for _ in statuses:
        document = {"task": "buy", "profile_id": "shop_us_main", "callback_url": HOOK}
        place.json("submit", "--file", "-", stdin=json.dumps(document))
        place.run_one()
    items = place.json("webhooks")["items"][: len(statuses)][::-1]

    async def send(store: Store) -> None:
        await store.take_deliveries(DeliveryRequest(limit=100, each=100), timedelta(minutes=5))
        attempts = [
            Attempt(delivery_id=item["delivery_id"], number=1, status=status, answer=f"HTTP {status}")
            for item, status in zip(items, statuses, strict=True)
        ]
        await store.settle_deliveries(attempts)

    if None not in statuses:
        place.do(send)
    return [str(item["delivery_id"]) for item in items]


def test_an_empty_list_says_so(place: Workplace) -> None:
    assert place.text("webhooks") == "no webhooks: no job with a callback_url has ended yet\n"
    assert place.text("webhooks", "--state", "exhausted") == "no webhooks match\n"


def test_a_list_shows_where_each_went_and_what_came_of_it_without_keys(place: Workplace) -> None:
    done, gone = owed(place, 200, 410)
    header, first, second = place.text("webhooks").splitlines()
    assert header.split()[:7] == ["WEBHOOK", "STATE", "TO", "LAST", "ANSWER", "TRIES", "TYPE"]
    assert first.split()[:7] == [gone, "exhausted", "hook.test", "HTTP", "410", "1", "job.completed"]
    assert second.split()[:7] == [done, "delivered", "hook.test", "HTTP", "200", "1", "job.completed"]
    (item,) = place.json("webhooks", "--state", "exhausted")["items"]
    assert (item["delivery_id"], item["url"]) == (gone, "https://hook.test/done?[redacted]")
    assert place.json("webhooks", "--job", item["job_id"])["items"] == [item]
    assert place.json("webhooks", "--host", "elsewhere")["items"] == []
    for answer in (place.text("webhooks", "show", gone), json.dumps(place.json("webhooks", "show", gone))):
        assert "hunter2" not in answer
        assert "https://hook.test/done?[redacted]" in answer


def test_one_that_was_given_up_is_sent_once_more(place: Workplace) -> None:
    (gone,) = owed(place, 410)
    said = place.text("webhooks", "replay", gone, "--note", "it is back")
    assert said == f"webhook {gone} is due again: 'leasekeeper up' or 'leasekeeper sweep' sends it\n"
    assert place.json("webhooks", "show", gone)["state"] == "pending"
    for webhook, code, why in ((gone, 4, "not tried yet"), ("nobody", 3, "there is no webhook nobody")):
        refused = place.cli("webhooks", "replay", webhook, "--note", "again")
        assert refused.exit_code == code
        assert why in refused.stderr


def test_all_that_were_given_up_are_sent_once_more(place: Workplace) -> None:
    done, *gone = owed(place, 200, 410, 410)
    assert place.text("webhooks", "replay", "--all", "--host", "elsewhere", "--note", "x").startswith("no webhooks")
    answer = place.json("webhooks", "replay", "--all", "--yes", "--host", "hook.test", "--note", "it is back")
    assert sorted(item["id"] for item in answer["items"]) == sorted(gone)
    assert place.json("webhooks", "show", done)["state"] == "delivered"
    assert place.text("webhooks", "replay", "--all", "--note", "x").startswith("no webhooks that were given up")


def test_what_is_to_be_replayed_has_to_be_said(place: Workplace) -> None:
    for wrong in (("replay",), ("replay", "x", "--all"), ("replay", "x", "--host", "h")):
        assert place.cli("webhooks", *wrong, "--note", "x").exit_code == 2


def test_why_and_stats_show_it(place: Workplace) -> None:
    (gone,) = owed(place, 410)
    job_id = place.json("webhooks", "show", gone)["job_id"]
    reported = place.text("why", "job", job_id)
    assert "job.completed was given up after 1 try: HTTP 410" in reported
    assert f"leasekeeper webhooks replay {gone} --note …" in reported
    assert "webhooks not delivered\n  1  exhausted\n" in place.text("stats")
    assert place.json("stats")["webhooks"] == {"exhausted": 1}


def test_a_new_secret_is_one(empty: Workplace) -> None:
    for secret in (empty.text("webhooks", "secret").strip(), empty.json("webhooks", "secret")["secret"]):
        assert read_keys(secret) is not None


def test_a_sweep_with_a_wrong_secret_says_that_the_rest_was_done(place: Workplace) -> None:
    wrong = place.cli("sweep", env={"LEASEKEEPER_WEBHOOK_SECRET": "hunter2"})
    assert wrong.exit_code == 7
    assert "the sweep is done, but webhooks were not sent" in wrong.stderr
    assert "leasekeeper webhooks secret" in wrong.stderr
    assert "hunter2" not in wrong.stderr
