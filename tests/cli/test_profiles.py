"""`leasekeeper profiles`, `accounts` and `reviews`."""

import sqlite3
from typing import Any, TypeVar, cast

import pytest

from leasekeeper.cli import login
from leasekeeper.cli.reviews import decide_in
from leasekeeper.core.decisions import Action, Decision, Review, Target
from leasekeeper.core.profiles import Lane
from leasekeeper.errors import Conflict, InputError, VersionConflict
from leasekeeper.ports import Store
from tests.cli.workplace import FLEET, Workplace

T = TypeVar("T")


def test_empty_lists_say_what_to_do(empty: Workplace) -> None:
    assert "leasekeeper apply fleet.yaml" in empty.text("profiles")
    assert "leasekeeper apply fleet.yaml" in empty.text("accounts")
    assert empty.text("reviews") == "no reviews: nothing waits for a person\n"
    for noun in ("profiles", "accounts", "reviews"):
        assert empty.json(noun) == {"items": [], "after": None}


def test_profiles_are_listed_with_their_state(place: Workplace) -> None:
    place.reviewed_profile()
    lines = place.text("profiles").splitlines()
    assert lines[0].split()[:4] == ["PROFILE", "ACCOUNT", "STATE", "SINCE"]
    assert [line.split()[0] for line in lines[1:]] == ["shop_de_main", "shop_us_main", "twin_a", "twin_b"]
    assert "the run stopped with LOGIN_REQUIRED" in lines[2]
    states = {item["profile_id"]: item["state"] for item in place.json("profiles")["items"]}
    assert states["shop_us_main"] == "review_required"
    assert states["twin_a"] == "available"


def test_profiles_are_filtered_and_paged(place: Workplace) -> None:
    assert len(place.json("profiles", "--account", "twins")["items"]) == 2
    assert len(place.json("profiles", "--state", "available")["items"]) == 4
    assert place.text("profiles", "--state", "stale") == "no profiles match\n"
    page = place.json("profiles", "--limit", "3")
    assert [p["profile_id"] for p in place.json("profiles", "--after", page["after"])["items"]] == ["twin_b"]


def test_one_profile_with_state_configuration_and_holder(place: Workplace) -> None:
    grant = place.lease("shop_us_main")
    text = place.text("profiles", "show", "shop_us_main")
    assert "now\n" in text
    assert "configured\n" in text
    assert "held by\n" in text
    assert grant.lease.lease_id in text
    document = place.json("profiles", "show", "shop_us_main")
    assert document["profile"]["proxy_id"] == "us-1"
    assert document["lane"]["state"] == "leased"
    assert [lease["lease_id"] for lease in document["leases"]] == [grant.lease.lease_id]


def test_a_person_decides_about_a_profile(place: Workplace) -> None:
    place.reviewed_profile()
    for verb, state in (
        ("quarantine", "quarantined"),
        ("review", "review_required"),
        ("disable", "disabled"),
        ("enable", "review_required"),
        ("clear", "available"),
    ):
        text = place.text("profiles", verb, "shop_us_main", "--note", f"because of {verb}", "--by", "ada")
        assert text.startswith(f"profile shop_us_main is now {state}")
        assert place.json("profiles", "show", "shop_us_main")["lane"]["state"] == state
    events = place.json("events", "--profile", "shop_us_main", "--type", "profile_decided")["items"]
    assert events[0]["data"]["note"] == "because of clear"
    assert {event["actor"] for event in events} == {"ada"}


def test_disabling_a_profile_in_use_drains_it(place: Workplace) -> None:
    grant = place.lease("twin_a")
    text = place.text("profiles", "disable", "twin_a", "--note", "retired")
    assert text == "profile twin_a is in use: it leaves the rotation when its present lease ends\n"
    place.end(grant)
    assert place.json("profiles", "show", "twin_a")["lane"]["state"] == "disabled"
    assert place.text("profiles", "enable", "twin_a", "--note", "back") == "profile twin_a is now available\n"


@pytest.mark.parametrize(
    ("verb", "state", "words"),
    [("quarantine", "quarantined", "it is quarantined"), ("review", "review_required", "it goes to review")],
)
def test_a_profile_is_sent_to_a_person_at_once_or_at_the_end_of_its_lease(
    place: Workplace, verb: str, state: str, words: str
) -> None:
    grant = place.lease("twin_a")
    text = place.text("profiles", verb, "twin_a", "--note", "odd orders")
    assert text == f"profile twin_a is in use: {words} when its present lease ends\n"
    assert f"will be {state} when" in place.text("profiles", "show", "twin_a")
    assert f"will be {state} when" in place.text("why", "profile", "twin_a")
    place.end(grant)
    assert place.json("profiles", "show", "twin_a")["lane"]["state"] == state
    assert place.text("profiles", verb, "twin_b", "--note", "odd too") == f"profile twin_b is now {state}\n"
    assert "odd too" in place.text("reviews")


@pytest.mark.parametrize("verb", ["clear", "enable"])
def test_a_move_that_does_not_exist_is_a_conflict(place: Workplace, verb: str) -> None:
    assert "allowed now" in place.fails(4, "profiles", verb, "twin_a", "--note", "x")
    assert place.json("profiles", "show", "twin_a")["lane"]["state"] == "available"


def test_profiles_that_do_not_exist(place: Workplace) -> None:
    assert "nowhere" in place.fails(3, "profiles", "show", "nowhere")
    assert "nowhere" in place.fails(3, "profiles", "disable", "nowhere", "--note", "x")
    place.fails(2, "profiles", "--state", "asleep")
    place.fails(2, "profiles", "disable", "twin_a")


def test_a_decision_on_another_version_is_refused(place: Workplace) -> None:
    version = place.json("profiles", "show", "twin_a")["lane"]["version"]
    place.fails(4, "profiles", "disable", "twin_a", "--note", "x", "--if-version", str(version + 7))
    assert place.json("profiles", "show", "twin_a")["lane"]["version"] == version


def test_accounts_are_listed_paused_and_resumed(place: Workplace) -> None:
    job_id = place.submit()
    assert place.text("accounts", "pause", "shop_us", "--note", "audit") == "account shop_us is now paused\n"
    assert "paused  profile" in place.text("accounts")
    assert "audit" in place.text("accounts")
    paused = {item["account_id"]: item["paused"] for item in place.json("accounts")["items"]}
    assert paused == {"shop_us": True, "shop_de": False, "twins": False}
    assert place.json("jobs", "show", job_id)["blocked_reason"] == "blocked_by_account_pause"
    assert place.json("accounts", "resume", "shop_us", "--note", "done")["state"] == "active"
    assert place.json("jobs", "show", job_id)["state"] == "queued"
    place.fails(3, "accounts", "pause", "nobody", "--note", "x")
    place.fails(2, "accounts", "pause", "shop_us")


def review_of(place: Workplace, target: str) -> str:
    (review,) = [item for item in place.json("reviews")["items"] if item["target"] == target]
    review_id: str = review["review_id"]
    return review_id


def test_reviews_are_listed_until_they_are_decided(place: Workplace) -> None:
    job_id = place.reviewed_profile()
    text = place.text("reviews")
    assert "  profile  shop_us_main  " in text
    assert f"  job      shop_us_main  {job_id}" in text
    assert {item["target"] for item in place.json("reviews")["items"]} == {"job", "profile"}
    review_id = review_of(place, "profile")
    assert "  summary     the run stopped with LOGIN_REQUIRED\n" in place.text("reviews", "show", review_id)
    assert place.json("reviews", "show", review_id)["target"] == "profile"
    assert place.text("reviews", "decide", review_id, "clear", "--note", "logged in") == (
        "profile shop_us_main is now available\n"
    )
    assert [item["target"] for item in place.json("reviews")["items"]] == ["job"]
    decided = {item["review_id"]: item for item in place.json("reviews", "--all")["items"]}[review_id]
    assert (decided["decision"], decided["note"]) == ("clear", "logged in")
    assert "logged in" in place.text("reviews", "--all")


@pytest.mark.parametrize(("action", "state"), [("requeue", "blocked"), ("cancel", "cancelled")])
def test_the_review_of_a_job_is_decided(place: Workplace, action: str, state: str) -> None:
    job_id = place.reviewed_profile()
    answer = place.json("reviews", "decide", review_of(place, "job"), action, "--note", "x")
    assert (answer["target"], answer["id"], answer["state"]) == ("job", job_id, state)
    assert place.json("jobs", "show", job_id)["state"] == state


@pytest.mark.parametrize("action", ["quarantine", "disable"])
def test_the_review_of_a_profile_is_decided_otherwise(place: Workplace, action: str) -> None:
    place.reviewed_profile()
    answer = place.json("reviews", "decide", review_of(place, "profile"), action, "--note", "x")
    assert answer["state"] == {"quarantine": "quarantined", "disable": "disabled"}[action]


def test_a_review_shows_what_can_be_decided_about_it(place: Workplace) -> None:
    place.reviewed_profile()
    for target, actions in (("profile", ("clear", "quarantine", "disable")), ("job", ("requeue", "cancel"))):
        review = review_of(place, target)
        run = place.json("reviews", "show", review)["run_id"]
        wanted = [f"  leasekeeper reviews decide {review} {action} --note …" for action in actions]
        assert place.text("reviews", "show", review).splitlines()[-len(actions) - 2 :] == [
            "what you can do",
            f"  leasekeeper runs show {run}",
            *wanted,
        ]
    decided = review_of(place, "job")
    place.text("reviews", "decide", decided, "cancel", "--note", "x")
    assert "what you can do" not in place.text("reviews", "show", decided)


def test_an_action_that_does_not_fit_says_which_do(place: Workplace) -> None:
    place.reviewed_profile()
    reported = place.fails(2, "reviews", "decide", review_of(place, "profile"), "requeue", "--note", "x")
    assert "one can clear, quarantine, disable\n" in reported
    reported = place.fails(2, "reviews", "decide", review_of(place, "job"), "clear", "--note", "x")
    assert "one can requeue, cancel\n" in reported
    place.fails(2, "reviews", "decide", review_of(place, "job"), "explode", "--note", "x")
    assert len(place.json("reviews")["items"]) == 2


def test_a_review_is_decided_once(place: Workplace) -> None:
    place.reviewed_profile()
    review_id = review_of(place, "profile")
    place.do(lambda store: store.decide(CLEARED))
    reported = place.fails(4, "reviews", "decide", review_id, "clear", "--note", "was second")
    assert "decided already: clear by bob (was first)" in reported


class Meddled:
    """The store, with somebody else who decides at the worst moment: right after the n-th read of a kind."""

    def __init__(self, store: Store, kind: type, reads: int) -> None:
        self.store, self.kind, self.reads = store, kind, reads

    async def get(self, kind: type[T], record_id: str) -> T:
        record = await self.store.get(kind, record_id)
        self.reads -= kind is self.kind
        if kind is self.kind and self.reads == 0:
            await self.store.decide(CLEARED)
        return record

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


CLEARED = Decision(target=Target.PROFILE, id="shop_us_main", action=Action.CLEAR, note="was first", actor="bob")


@pytest.mark.parametrize(
    ("kind", "reads", "refusal"),
    [(Review, 1, Conflict), (Lane, 1, Conflict), (Review, 2, VersionConflict)],
    ids=["before the version is read", "before the review is read again", "before the decision"],
)
def test_whoever_decides_in_between_wins(place: Workplace, kind: type, reads: int, refusal: type[Exception]) -> None:
    place.reviewed_profile()
    review_id = review_of(place, "profile")

    async def decide(store: Store) -> object:
        meddled = cast(Store, Meddled(store, kind, reads))
        return await decide_in(meddled, review_id, Action.DISABLE, "was second", "ada")

    with pytest.raises(refusal):
        place.do(decide)
    assert place.json("profiles", "show", "shop_us_main")["lane"]["state"] == "available"


def test_a_review_that_does_not_exist(place: Workplace) -> None:
    place.fails(3, "reviews", "decide", "nothing", "clear", "--note", "x")
    place.fails(2, "reviews", "decide", "nothing", "clear")
    place.fails(3, "reviews", "show", "nothing")


def test_a_login_without_a_display_opens_nothing_and_says_what_to_do(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    result = place.cli("login", "twin_a")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "in the dashboard" in result.stderr
    assert "ssh -X" in result.stderr
    assert place.json("leases") == {"items": [], "after": None}


@pytest.mark.parametrize("then", ["clear", "requeue"])
def test_a_login_asks_for_its_note_before_the_browser_opens_where_no_terminal_is(place: Workplace, then: str) -> None:
    result = place.cli("login", "twin_a", "--then", then, env={"DISPLAY": ":99"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "needs --note" in result.stderr
    assert place.json("leases") == {"items": [], "after": None}


def test_a_login_begins_at_the_url_of_the_account_or_where_one_says(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    async def visit(_store: object, _config: object, profile: str, url: str | None) -> None:
        begun.append((profile, url))
        raise InputError("seen enough")

    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setattr(login, "visit", visit)
    place.apply(FLEET.replace("twins: {", "twins: {url: 'https://shop.test/login', "))
    for more in ((), ("--url", "https://shop.test/other")):
        assert place.cli("login", "twin_a", *more).exit_code == 2
    assert begun == [("twin_a", "https://shop.test/login"), ("twin_a", "https://shop.test/other")]


def test_bans_are_marked_listed_and_explained(place: Workplace) -> None:
    text = place.text("accounts", "ban", "twins", "--note", "the site says so")
    assert text == "account twins has ban status banned; the account is paused\n"
    assert place.text("profiles", "suspect", "twin_a", "--note", "odd") == "profile twin_a has ban status suspected\n"
    assert [each["account_id"] for each in place.json("accounts", "--ban-status", "banned")["items"]] == ["twins"]
    assert [each["profile_id"] for each in place.json("profiles", "--ban-status", "suspected")["items"]] == ["twin_a"]
    assert "account banned, profile suspected" in place.text("why", "profile", "twin_a")
    assert "suspected" in place.text("profiles")
    assert "banned" in place.text("accounts")
    place.text("accounts", "unban", "twins", "--note", "a mistake")
    assert place.json("accounts", "--ban-status", "banned")["items"] == []


def test_profiles_are_listed_by_tier(place: Workplace) -> None:
    place.text("apply", "-", "--yes", stdin="profiles: {twin_a: {account: twins, tier: gold}}")
    assert [each["profile_id"] for each in place.json("profiles", "--tier", "gold")["items"]] == ["twin_a"]
    assert "gold" in place.text("profiles")


def test_a_program_reads_as_a_code_what_put_a_profile_into_its_state(place: Workplace) -> None:
    place.text("profiles", "quarantine", "twin_a", "--note", "odd orders")
    (found,) = place.json("profiles", "--cause", "decided")["items"]
    data = {"action": "quarantine", "actor": found["state_data"]["actor"]}
    assert (found["profile_id"], found["state_cause"], found["state_data"]) == ("twin_a", "decided", data)
    assert place.json("profiles", "--cause", "open_section")["items"] == []
    assert place.json("why", "profile", "twin_a")["profile"]["state_cause"] == "decided"
    assert place.json("profiles", "show", "twin_a")["lane"]["state_cause"] == "decided"


def test_any_profile_is_opened_instead_of_a_named_one_never_both(place: Workplace) -> None:
    for arguments in (("open",), ("open", "twin_a", "--any"), ("open", "--any", "--label", "gold")):
        assert place.cli(*arguments).exit_code == 2


def test_if_no_profile_is_free_open_any_says_why(place: Workplace) -> None:
    for profile in ("shop_us_main", "shop_de_main", "twin_a"):
        place.lease(profile)
    none = place.cli("open", "--any")
    assert none.exit_code == 4
    assert "no profile of pool default is free" in none.stderr
    assert "3 blocked_by_profile_lease" in none.stderr
    nowhere = place.cli("open", "--any", "--pool", "nowhere")
    assert (nowhere.exit_code, "no profile of pool nowhere is declared" in nowhere.stderr) == (3, True)


def test_a_holder_that_is_not_heard_of_is_shown_as_silent(place: Workplace) -> None:
    place.lease("twin_a")
    assert "script" in place.text("profiles")
    assert "silent" not in place.text("profiles")
    with sqlite3.connect(place.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE runs SET heartbeat_at = heartbeat_at - 50000000")
    connection.close()
    assert "script, silent for 5" in place.text("profiles")
    assert "silent for 5" in place.text("leases")
    assert "silent for 5" in place.text("why", "profile", "twin_a")


def test_a_login_that_is_missing_is_answered_with_the_command_that_logs_in(place: Workplace) -> None:
    job = place.reviewed_profile()
    for words in (("profile", "shop_us_main"), ("job", job)):
        assert "  leasekeeper login shop_us_main  # by hand, in a window; then decide\n" in place.text("why", *words)
    place.text("profiles", "quarantine", "twin_a", "--note", "x")
    assert "leasekeeper login" not in place.text("why", "profile", "twin_a")
