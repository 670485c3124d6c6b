"""`leasekeeper pause`, `resume` and `workers drain`."""

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import WorkerReport
from tests.cli.workplace import Workplace


def test_everything_is_paused_and_every_list_says_so(place: Workplace) -> None:
    assert place.text("pause") == "no pauses: nothing is paused\n"
    said = place.text("pause", "--all", "--note", "the shop is down", "--by", "ann")
    assert said == "everything is now paused; running jobs continue\n"
    line = "everything is paused by ann (the shop is down)\n"
    work = ("jobs", "leases", "runs", "reviews", "workers", "events", "dlq", "schedules", "conflicts")
    for noun in (*work, "profiles", "accounts", "proxies", "launchers", "notes", "webhooks", "tokens", "secrets"):
        assert place.text(noun).endswith(line), noun
    assert place.text("stats").endswith(line)
    job_id = place.submit()
    assert place.json("jobs", "show", job_id)["blocked_reason"] == "blocked_by_pause"
    why = place.text("why", "job", job_id)
    assert "everything is paused by ann" in why
    assert "leasekeeper resume" in why
    assert place.text("resume", "--all", "--note", "it is back") == "everything is now active\n"
    assert line not in place.text("jobs")
    assert place.json("jobs", "show", job_id)["state"] == "queued"


def test_pools_accounts_and_workers_are_paused_by_name(place: Workplace) -> None:
    answer = place.json("pause", "--pool", "default", "--account", "twins", "--until", "+2h", "--note", "x")
    assert [(item["id"], item["state"]) for item in answer["items"]] == [
        ("pool:default", "paused"),
        ("account:twins", "paused"),
    ]
    assert all(item["until"] for item in answer["items"])
    place.text("workers", "drain", "w1", "--note", "new kernel")
    assert [pause["pause_id"] for pause in place.json("pause")["items"]] == [
        "account:twins",
        "pool:default",
        "worker:w1",
    ]
    assert "and 2 more: leasekeeper pause" in place.text("jobs")
    place.text("resume", "--pool", "default", "--account", "twins", "--note", "x")
    place.text("workers", "resume", "w1", "--note", "x")
    assert place.json("pause")["items"] == []
    assert "paused" not in place.text("accounts")


def test_accounts_that_are_paused_without_an_end_are_named_in_every_list_too(place: Workplace) -> None:
    place.text("accounts", "pause", "shop_us", "--note", "audit")
    assert place.text("jobs").endswith("account shop_us is paused (audit)\n")
    place.text("accounts", "ban", "twins", "--note", "the site says so")
    place.text("pause", "--account", "shop_de", "--until", "+2h", "--note", "x", "--by", "ann")
    shown = place.text("jobs").splitlines()
    assert shown[-2].startswith("account shop_de is paused until ")
    assert shown[-1] == "2 accounts are paused: leasekeeper accounts --paused"
    ids = ["account:shop_de", "account:shop_us", "account:twins"]
    assert [(item["pause_id"], item["actor"]) for item in place.json("pause")["items"]] == [
        *zip(ids, ("ann", None, None), strict=True)
    ]
    assert [line.split()[0] for line in place.text("pause").splitlines()[1:]] == ids
    assert len(place.json("accounts", "--paused")["items"]) == 3
    place.text("accounts", "resume", "shop_us", "shop_de", "twins", "--note", "x")
    assert place.text("pause") == "no pauses: nothing is paused\n"


def test_accounts_and_workers_are_paused_by_the_beginning_of_their_names(place: Workplace) -> None:
    place.start_worker()  # w1-1
    paused = place.text("pause", "--account", "tw", "--note", "x")
    assert paused == "account twins is now paused; running jobs continue\n"
    assert "shop_de, shop_us" in place.fails(2, "pause", "--account", "shop", "--note", "x")
    assert place.text("resume", "--account", "tw", "--note", "x") == "account twins is now active\n"
    assert place.text("workers", "drain", "w", "--note", "x") == "worker w1 is now paused; running jobs continue\n"
    assert place.text("workers", "resume", "w1", "--note", "x") == "worker w1 is now active\n"
    place.do(
        lambda store: store.report(
            WorkerReport(worker_id=WorkerId("w2"), incarnation="w2-1", pool="default", tasks=("buy",))
        )
    )
    assert "w1, w2" in place.fails(2, "pause", "--worker", "w", "--note", "x")


def test_a_pause_is_explained_and_names_what_there_is(place: Workplace) -> None:
    assert "--note" in place.fails(2, "pause", "--all")
    said = place.fails(3, "pause", "--pool", "nowhere", "--note", "x")
    assert "there is no pool nowhere\n  list what there is: leasekeeper workers" in said
    assert "--until" in place.fails(2, "pause", "--all", "--note", "x", "--until", "soon")
    assert "future" in place.fails(2, "pause", "--all", "--note", "x", "--until", "2020-01-01T00:00:00Z")
    assert "name what to pause" in place.fails(2, "pause", "--note", "x")
    assert "name what to resume" in place.fails(2, "resume", "--note", "x")
    assert "not paused" in place.fails(4, "resume", "--all", "--note", "x")
