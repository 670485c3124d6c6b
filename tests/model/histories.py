"""What histories are made of: a universe small enough that everything collides with everything."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis.strategies import SearchStrategy

from leasekeeper.core.accounts import Account, Limit, Proxy, Routing
from leasekeeper.core.failures import BelongsTo, Failure, ProfileRule, RetryRule
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, LeaseId, ProfileId, ProxyId, RunId, Token
from leasekeeper.core.jobs import Backoff, JobSpec, OnConflict, Retry, Risk
from leasekeeper.core.leases import LeaseRef, Mode
from leasekeeper.core.profiles import Profile, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from tests.model.tables import FAILURES

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
WORKERS: Final = ("w1", "w2", "w3")
POOLS: Final = ("default", "vendor")
TASKS: Final = ("read", "buy")
REGIONS: Final = ("us", "de", None)
LANGUAGES: Final = ("en", "fr", None)
OWNERS: Final = {"a1": "anna", "a2": "anna", "a3": "anna", "b1": "bert", "c1": "carl", "c2": "carl"}
ACCOUNTS: Final = tuple(sorted(set(OWNERS.values())))
PROFILES: Final = tuple(OWNERS)
STARTERS: Final = ("a1", "a2", "b1", "c1")
NOBODY: Final = LeaseRef(
    lease_id=LeaseId(""), profile_id=ProfileId(""), run_id=RunId(""), token=Token(0), routing_key=""
)
CAPTCHA: Final = Failure("CAPTCHA", BelongsTo.ACCOUNT, RetryRule.YES, ProfileRule.REVIEW_REQUIRED)

OWN_RETRY: Final = Retry(reasons=("TIMEOUT", "LOGIN_REQUIRED"), backoff=Backoff(first=timedelta(seconds=1)))

FleetChange = tuple[str, str, str, Any]


def task_sets() -> SearchStrategy[tuple[str, ...]]:
    return st.sampled_from([TASKS, TASKS, ("read",), ("buy",), ("buy", "report")])


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Three accounts, four profiles, two proxies; the pool of a vendor with few places."""
    accounts = {name: Account(account_id=AccountId(name), routing=draw(st.sampled_from(Routing))) for name in ACCOUNTS}
    proxies = {
        name: Proxy(proxy_id=ProxyId(name), server=f"http://{name}.example:8080", region=region)
        for name, region in (("x1", "us"), ("x2", "de"))
    }
    limits = {"vendor": Limit(pool="vendor", max_leases=draw(st.integers(1, 2)))}
    return Fleet(
        accounts=accounts, proxies=proxies, limits=limits, profiles={name: draw(_profiles(name)) for name in STARTERS}
    )


def _profiles(name: str) -> SearchStrategy[Profile]:
    return st.builds(
        Profile,
        profile_id=st.just(ProfileId(name)),
        account_id=st.just(AccountId(OWNERS[name])),
        pool=st.sampled_from(["default", "default", "vendor"]),
        proxy_id=st.sampled_from([None, ProxyId("x1"), ProxyId("x2")]),
        language=st.sampled_from(LANGUAGES),
        max_active_runs=st.sampled_from([1, 2, 3]),
        disposable=st.sampled_from([False, False, False, True]),
        release_policy=st.sampled_from([ReleasePolicy.RECOVER, *ReleasePolicy]),
    )


def changes() -> SearchStrategy[FleetChange]:
    """One edit of a fleet file: what, which one, which setting, its new value."""
    profile = st.sampled_from(PROFILES)
    return st.one_of(
        st.tuples(st.just("proxies"), st.sampled_from(["x1", "x2"]), st.just("region"), st.sampled_from(REGIONS)),
        st.tuples(st.just("accounts"), st.sampled_from(ACCOUNTS), st.just("routing"), st.sampled_from(Routing)),
        st.tuples(st.just("limits"), st.sampled_from(POOLS), st.just("max_leases"), st.integers(1, 3)),
        st.tuples(st.just("profiles"), profile, st.just("proxy_id"), st.sampled_from([None, "x1", "x2"])),
        st.tuples(st.just("profiles"), profile, st.just("language"), st.sampled_from(LANGUAGES)),
        st.tuples(st.just("profiles"), profile, st.just("max_active_runs"), st.integers(1, 3)),
        st.tuples(st.just("profiles"), profile, st.just("disposable"), st.booleans()),
        st.tuples(st.just("profiles"), profile, st.just("release_policy"), st.sampled_from(ReleasePolicy)),
        st.tuples(st.just("profiles"), profile, st.just("pool"), st.sampled_from(POOLS)),
    )


def changed(fleet: Fleet, change: FleetChange) -> Fleet:
    """The record that the edit changes or adds, alone."""
    what, name, setting, value = change
    match what:
        case "proxies":
            return Fleet(proxies={name: replace(fleet.proxies[name], **{setting: value})})
        case "accounts":
            return Fleet(accounts={name: replace(fleet.accounts[name], **{setting: value})})
        case "limits":
            return Fleet(limits={name: Limit(pool=name, max_leases=value)})
        case _:
            fresh = Profile(profile_id=ProfileId(name), account_id=AccountId(OWNERS[name]))
            return Fleet(profiles={name: replace(fleet.profiles.get(name, fresh), **{setting: value})})


def plain_specs() -> SearchStrategy[JobSpec]:
    """Jobs that run as soon as their lane lets them. The machine names them."""
    return st.builds(
        JobSpec,
        task=st.sampled_from(["read", "buy", "buy"]),
        profile_id=st.sampled_from(STARTERS).map(ProfileId),
        priority=st.sampled_from([0, 0, 0, 5]),
        mode=st.sampled_from(Mode),
        max_attempts=st.sampled_from([1, 2, 3]),
    )


def specs() -> SearchStrategy[JobSpec]:
    """Jobs of all kinds."""
    rarely = st.sampled_from([None, None, None, None, "us"])
    later = st.sampled_from([None, None, None, START + timedelta(seconds=30), START + timedelta(seconds=3000)])
    picky = st.builds(
        JobSpec,
        task=st.sampled_from(["read", "buy", "buy", "report"]),
        profile_id=st.sampled_from([*STARTERS, *STARTERS, "a3"]).map(ProfileId),
        priority=st.sampled_from([0, 0, 0, 5]),
        mode=st.sampled_from(Mode),
        run_at=later,
        on_conflict=st.sampled_from(OnConflict),
        max_attempts=st.sampled_from([1, 2, 3]),
    )
    particular = st.builds(
        JobSpec,
        task=st.sampled_from(TASKS),
        profile_id=st.sampled_from([*STARTERS, *STARTERS, "c2"]).map(ProfileId),
        pool=st.sampled_from([None, None, "vendor"]),
        expected_proxy_region=rarely,
        expected_language=st.sampled_from([None, None, "en", "fr"]),
        proxy_id=st.sampled_from([None, None, None, ProxyId("x1")]),
        risk_level=st.sampled_from([Risk.LOW, Risk.LOW, Risk.REVIEW_REQUIRED]),
        lock_timeout_seconds=st.sampled_from([None, 10, 900]),
        release_policy=st.sampled_from([None, None, None, "quarantine", "review"]),
        retry=st.sampled_from([None, None, OWN_RETRY]),
        callback_url=st.just("https://hooks.example/done"),
    )
    keyed = st.builds(
        JobSpec,
        task=st.just("buy"),
        profile_id=st.sampled_from([ProfileId("a1"), ProfileId("b1")]),
        idempotency_key=st.sampled_from(["k1", "k2", "k3"]),
        priority=st.sampled_from([0, 0, 0, 1]),
        on_conflict=st.sampled_from([OnConflict.WAIT, OnConflict.WAIT, OnConflict.SKIP]),
    )
    return st.one_of(plain_specs(), picky, particular, keyed)


DONE: Final = Ending(ref=NOBODY, facts=EndFacts(browser=Browser.CLOSED, final_url="https://shop.example/end"))


def endings() -> SearchStrategy[Ending]:
    """Every outcome class; clean ones more often, so that profiles come back."""
    clean = st.just(EndFacts(browser=Browser.CLOSED, final_url="https://shop.example/end"))
    facts = st.builds(
        EndFacts,
        browser=st.sampled_from(Browser),
        final_url=st.sampled_from([None, "https://shop.example/end"]),
        proxy_changed=st.sampled_from([False, False, True]),
        evidence_saved=st.sampled_from([True, True, False]),
    )
    reasons = st.sampled_from([None, None, None, "TIMEOUT", "TIMEOUT", "CAPTCHA", "SOMETHING_ELSE", *FAILURES])
    return st.builds(
        Ending,
        ref=st.just(NOBODY),
        reason=reasons,
        retry=st.booleans(),
        not_started=st.sampled_from([False, False, False, False, True]),
        facts=st.one_of(clean, clean, facts),
        registered=st.just(CAPTCHA),
    )


def writes() -> SearchStrategy[list[str]]:
    """What a holder does: safe steps (`place` knows the URL too), sections entered and left."""
    return st.lists(
        st.sampled_from(
            ["checkpoint", "place", "place", "enter pay", "enter post", "leave pay", "enter sync", "leave sync"]
        ),
        max_size=3,
    )


def lost_facts() -> SearchStrategy[LostFacts]:
    """What a keeper may have left behind, or not."""
    known = LostFacts(final_url="https://shop.example/last", browser_dead=True, reported_by="keeper")
    return st.one_of(
        st.just(known),
        st.builds(
            LostFacts,
            final_url=st.sampled_from([None, "https://shop.example/last"]),
            browser_dead=st.booleans(),
            proxy_changed=st.sampled_from([False, False, True]),
        ),
    )
