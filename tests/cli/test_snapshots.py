"""Snapshots on the command line: declared, listed, gone back to, and shown where somebody asks."""

import json

from leasekeeper.core.browsers import LOCAL
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.snapshots import DirectoryReport, NewSnapshot, Verdict
from leasekeeper.encryption import new_key
from leasekeeper.ports import LeaseRequest, Store
from tests.cli.workplace import FLEET, Workplace

P = "shop_us_main"
STORED = FLEET.replace("proxies:", "profile_store: s3://acme-profiles/leasekeeper\nproxies:", 1).replace(
    "shop_us: {}", 'shop_us: {login_canary: {url: "https://shop.example/me", selector: "#out"}}'
)
CLOSED = EndFacts(browser=Browser.CLOSED, final_url="https://shop.example")


def run(
    place: Workplace,
    verdict: Verdict = Verdict.NOT_ASKED,
    problem: str = "",
    size: int = 2_400_000,
    key_id: str | None = None,
) -> int:
    """A run on machine rack1 that changed the profile; with a problem, its snapshot could not be uploaded."""

    async def work(store: Store) -> int:
        grant = await store.acquire(
            LeaseRequest(profile_id=ProfileId(P), worker_id=WorkerId("w1"), incarnation="i1", machine="rack1")
        )
        assert grant.profile.driver == LOCAL
        token = grant.lease.token
        new = NewSnapshot(
            place=f"{P}/{token}", sha256="5a", packed_bytes=800_000, contents_hash=f"c{token}", key_id=key_id
        )
        report = DirectoryReport(size_bytes=size, verdict=verdict, problem=problem)
        ending = Ending(
            ref=grant.lease.ref, facts=CLOSED, engine=150, directory=report, snapshot=None if problem else new
        )
        (settled,) = await store.settle([ending])
        assert settled.refused is None
        return token

    return place.do(work)


def test_a_fleet_declares_where_snapshots_go_and_how_a_login_is_checked(place: Workplace) -> None:
    shown = place.text("apply", place.fleet(STORED), "--yes")
    assert "profile_store" in shown
    assert "s3://acme-profiles/leasekeeper" in shown
    (account,) = [each for each in place.json("accounts")["items"] if each["account_id"] == "shop_us"]
    assert (account["canary_url"], account["canary_selector"]) == ("https://shop.example/me", "#out")
    assert "nothing to change" in place.text("apply", place.fleet(STORED), "--yes").lower()
    assert "must be s3://BUCKET" in place.fails(2, "apply", place.fleet("profile_store: ftp://x\n"), "--yes")


def test_snapshots_are_listed_with_what_can_be_gone_back_to(place: Workplace) -> None:
    place.apply(STORED)
    assert place.text("profiles", "snapshots", P).startswith("no snapshots: a run that changes the profile")
    good, bad = run(place, Verdict.LOGGED_IN), run(place, Verdict.LOGGED_OUT)
    title, newest, first = place.text("profiles", "snapshots", P).splitlines()
    assert title.split()[:3] == ["TOKEN", "TAKEN", "LOGIN"]
    assert newest.split()[0] == str(bad)
    assert "logged out" in newest
    assert "newest" in newest
    assert "logged in" in first
    assert "restored first" in first
    assert "2.4 MB" in first
    listed = place.json("profiles", "snapshots", "shop_us")
    assert (listed["newest"], listed["restored_first"]) == (bad, good)
    assert [each["fencing_token"] for each in listed["items"]] == [bad, good]
    shown = place.json("profiles", "show", P)
    assert ([each["size_bytes"] for each in shown["sizes"]], shown["lane"]["size_bytes"]) == ([2_400_000], 2_400_000)
    assert "2.4 MB" in place.text("profiles", "show", P)


def test_a_profile_goes_back_to_its_last_good_state_or_to_the_one_that_is_named(place: Workplace) -> None:
    place.apply(STORED)
    good, bad = run(place, Verdict.LOGGED_IN), run(place, Verdict.LOGGED_OUT)
    place.text("profiles", "quarantine", P, "--note", "logged out")
    assert "restore" in place.text("why", "profile", P)
    said = place.text("profiles", "restore", P, "--note", "the shop logged us out")
    assert said == f"profile {P} goes back to its last good snapshot with its next run\n"
    newest = place.json("profiles", "snapshots", P)["items"][0]
    assert (newest["fencing_token"], newest["restored_from"]) == (bad + 1, good)
    assert f"from {good}" in place.text("profiles", "snapshots", P)
    assert f"snapshot {bad + 1}" in place.text("why", "profile", P)
    assert str(bad) in place.text("profiles", "restore", P, "--to", str(bad), "--note", "it was right after all")
    assert "has no snapshot of token 99" in place.fails(3, "profiles", "restore", P, "--to", "99", "--note", "x")
    (event, _) = place.json("events", "--type", "profile_restored")["items"]
    assert event["data"]["restored_from"] == bad


def test_a_profile_that_could_not_be_saved_is_named_with_the_reason(place: Workplace) -> None:
    place.apply(STORED)
    run(place)
    assert place.json("profiles", "--unsaved")["items"] == []
    run(place, problem="the bucket did not answer")
    assert [each["profile_id"] for each in place.json("profiles", "--unsaved")["items"]] == [P]
    for words in (("why", "profile", P), ("profiles", "show", P), ("profiles", "snapshots", P)):
        assert "the bucket did not answer" in place.text(*words), words


def test_doctor_counts_the_snapshots_that_need_a_key_which_is_not_set(place: Workplace) -> None:
    place.apply(FLEET.replace("proxies:", f"profile_store: file://{place.directory}/shared\nproxies:", 1))
    run(place, key_id="0123456789ab")
    assert "0123456789ab" in place.text("profiles", "snapshots", P)
    (place.directory / "shared").mkdir()
    env = {"LEASEKEEPER_SECRET_KEY": new_key(), "LEASEKEEPER_DATA_DIR": str(place.directory / "data")}
    checks = json.loads(place.cli("doctor", "--only", "profile_store", "--json", env=env).stdout)["findings"]
    (found,) = checks
    assert found["status"] == "warn"
    assert "1 snapshots need key 0123456789ab, which is not set here" in found["found"]
