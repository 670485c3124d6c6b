"""The difference between fleets, and which fleets hold together."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.fleet import Change, ChangeKind, Fleet, affected, check_fleet, configured, diff, merged
from leasekeeper.core.ids import AccountId, ProfileId, ProxyId
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError
from tests.unit.records import a_profile, a_proxy, an_account

ACCOUNT, PROXY, PROFILE = an_account(), a_proxy(), a_profile()
FLEET = Fleet(
    accounts={ACCOUNT.account_id: ACCOUNT},
    proxies={PROXY.proxy_id: PROXY},
    profiles={PROFILE.profile_id: PROFILE},
    limits={"multilogin": Limit(pool="multilogin", max_leases=100)},
)

IDS = st.sampled_from(["a", "b", "c"])


def accounts() -> st.SearchStrategy[Mapping[str, Account]]:
    made = st.builds(lambda name, notes: Account(account_id=AccountId(name), notes=notes), IDS, st.sampled_from("xy"))
    return st.lists(made, max_size=3).map(lambda records: {record.account_id: record for record in records})


def proxies() -> st.SearchStrategy[Mapping[str, Proxy]]:
    made = st.builds(lambda name, region: Proxy(proxy_id=ProxyId(name), server="http://h:1", region=region), IDS, IDS)
    return st.lists(made, max_size=3).map(lambda records: {record.proxy_id: record for record in records})


def profiles() -> st.SearchStrategy[Mapping[str, Profile]]:
    made = st.builds(
        lambda name, owner, pool: Profile(profile_id=ProfileId(name), account_id=AccountId(owner), pool=pool),
        IDS,
        IDS,
        IDS,
    )
    return st.lists(made, max_size=3).map(lambda records: {record.profile_id: record for record in records})


def limits() -> st.SearchStrategy[Mapping[str, Limit]]:
    made = st.builds(lambda pool, limit: Limit(pool=pool, max_leases=limit), IDS, st.integers(1, 3))
    return st.lists(made, max_size=3).map(lambda records: {record.pool: record for record in records})


FLEETS = st.builds(Fleet, accounts=accounts(), profiles=profiles(), proxies=proxies(), limits=limits())


def problems(current: Fleet, desired: Fleet, *, prune: bool = False) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        check_fleet(current, desired, prune=prune)
    return {problem.where: problem.message for problem in caught.value.problems}


def test_everything_in_a_first_fleet_is_added() -> None:
    added = diff(Fleet(), FLEET, prune=False)
    assert {change.kind for change in added} == {ChangeKind.ADD}
    assert [(change.what, change.id) for change in added] == [
        ("proxy", "dallas"),
        ("account", "store_us_018"),
        ("profile", "profile_018"),
        ("limit", "multilogin"),
    ]


def test_applying_the_same_fleet_again_changes_nothing() -> None:
    assert diff(FLEET, FLEET, prune=False) == []
    assert diff(FLEET, FLEET, prune=True) == []


def test_a_change_shows_each_field_as_it_was_and_as_it_will_be() -> None:
    other = replace(PROFILE, language="de-DE", max_active_runs=2)
    desired = Fleet(profiles={other.profile_id: other})
    assert diff(FLEET, desired, prune=False) == [
        Change(
            kind=ChangeKind.CHANGE,
            what="profile",
            id="profile_018",
            fields={"language": ("en-US", "de-DE"), "max_active_runs": (1, 2)},
        )
    ]


def test_what_a_file_does_not_name_stays_unless_pruned() -> None:
    assert diff(FLEET, Fleet(), prune=False) == []
    removed = diff(FLEET, Fleet(), prune=True)
    assert {change.kind for change in removed} == {ChangeKind.REMOVE}
    assert {change.what for change in removed} == {"proxy", "account", "profile", "limit"}


OTHER = replace(PROFILE, profile_id=ProfileId("other"), account_id=AccountId("elsewhere"), proxy_id=None)
BOTH = replace(FLEET, profiles={**FLEET.profiles, "other": OTHER}, profile_store="file:///a")


@pytest.mark.parametrize(
    ("desired", "profiles"),
    [
        (Fleet(profiles={PROFILE.profile_id: replace(PROFILE, language="de-DE")}), ["profile_018"]),
        (Fleet(proxies={PROXY.proxy_id: replace(PROXY, region="FR")}), ["profile_018"]),
        (Fleet(accounts={ACCOUNT.account_id: replace(ACCOUNT, notes="new")}), ["profile_018"]),
        (Fleet(limits={"multilogin": Limit(pool="multilogin", max_leases=1)}), []),
        (Fleet(profiles={"third": replace(OTHER, profile_id=ProfileId("third"))}), []),
        (Fleet(profile_store="file:///b"), ["profile_018", "other"]),
    ],
)
def test_what_changes_is_checked_again_where_it_counts(desired: Fleet, profiles: list[str]) -> None:
    changes = diff(BOTH, desired, prune=False)
    assert changes
    assert affected(BOTH, merged(BOTH, desired, prune=False), changes) == profiles


def test_runtime_state_is_no_part_of_a_fleet() -> None:
    running = replace(ACCOUNT, paused=True, pause_note="ban wave", version=9)
    assert configured(running) == configured(ACCOUNT)
    assert diff(Fleet(accounts={"store_us_018": running}), Fleet(accounts={"store_us_018": ACCOUNT}), prune=True) == []


@given(FLEETS, FLEETS, st.booleans())
def test_after_applying_a_fleet_nothing_is_left_to_do(current: Fleet, desired: Fleet, prune: bool) -> None:
    assert diff(merged(current, desired, prune=prune), desired, prune=prune) == []


@given(FLEETS, FLEETS, st.booleans())
def test_the_difference_names_exactly_what_will_be_other(current: Fleet, desired: Fleet, prune: bool) -> None:
    final = merged(current, desired, prune=prune)
    named = {(change.what, change.id): change.kind for change in diff(current, desired, prune=prune)}
    for what, old, new in (
        ("account", current.accounts, final.accounts),
        ("profile", current.profiles, final.profiles),
        ("proxy", current.proxies, final.proxies),
        ("limit", current.limits, final.limits),
    ):
        for key in old.keys() | new.keys():
            kind = ChangeKind.REMOVE if key not in new else ChangeKind.ADD if key not in old else ChangeKind.CHANGE
            same = key in old and key in new and old[key] == new[key]
            assert named.pop((what, key), None) == (None if same else kind)
    assert named == {}


def test_a_fleet_that_holds_together_is_accepted() -> None:
    check_fleet(Fleet(), FLEET, prune=False)
    check_fleet(FLEET, FLEET, prune=True)


def test_a_profile_may_belong_to_an_account_that_was_applied_before() -> None:
    another = a_profile(profile_id="profile_019")
    check_fleet(FLEET, Fleet(profiles={"profile_019": another}), prune=False)


def test_a_profile_of_an_unknown_account_or_proxy_is_refused_with_those_that_exist() -> None:
    lost = a_profile(account_id="nobody", proxy_id="nowhere")
    found = problems(Fleet(), replace(FLEET, profiles={"profile_018": lost}))
    assert found == {
        "profiles.profile_018.account": "no account nobody; declared: store_us_018",
        "profiles.profile_018.proxy": "no proxy nowhere; declared: dallas",
    }


def test_the_list_of_what_exists_is_short_and_may_be_empty() -> None:
    lost = Fleet(profiles={"profile_018": a_profile(proxy_id=None)})
    assert problems(Fleet(), lost)["profiles.profile_018.account"].endswith("none is declared")
    many = {f"a{n}": an_account(account_id=f"a{n}") for n in range(7)}
    message = problems(Fleet(), replace(lost, accounts=many))["profiles.profile_018.account"]
    assert message.endswith("declared: a0, a1, a2, a3, a4 and 2 more")


def test_an_account_cannot_be_pruned_from_under_its_profile() -> None:
    desired = replace(FLEET, accounts={}, proxies={})
    check_fleet(FLEET, desired, prune=False)
    assert set(problems(FLEET, desired, prune=True)) == {
        "profiles.profile_018.account",
        "profiles.profile_018.proxy",
    }


def test_a_profile_belongs_to_one_account_for_life() -> None:
    sold = a_profile(account_id="other")
    desired = Fleet(accounts={"other": an_account(account_id="other")}, profiles={"profile_018": sold})
    found = problems(FLEET, desired)
    assert "is store_us_018 and cannot become other" in found["profiles.profile_018.account"]


@pytest.mark.parametrize(
    ("desired", "where"),
    [
        (Fleet(accounts={"../x": an_account(account_id="../x")}), "accounts"),
        (Fleet(proxies={"": Proxy(proxy_id=ProxyId(""), server="http://h:1", region=None)}), "proxies"),
        (Fleet(accounts={"other": an_account()}), "accounts.other.account_id"),
        (Fleet(limits={"a": Limit(pool="b", max_leases=1)}), "limits.a.pool"),
        (Fleet(limits={"a": Limit(pool="a", max_leases=0)}), "limits.a.max_leases"),
        (Fleet(profiles={"profile_018": a_profile(max_active_runs=-1)}), "profiles.profile_018.max_active_runs"),
    ],
)
def test_what_cannot_be_is_refused_wherever_the_fleet_comes_from(desired: Fleet, where: str) -> None:
    assert list(problems(FLEET, desired)) == [where]


def test_two_profiles_cannot_live_in_one_directory() -> None:
    desired = Fleet(
        profiles={
            "profile_018": a_profile(user_data_dir="/profiles/x"),
            "profile_019": a_profile(profile_id="profile_019", user_data_dir="/profiles/x"),
        }
    )
    assert problems(FLEET, desired) == {"profiles.profile_019.user_data_dir": "is used by profile profile_018 already"}


@pytest.mark.parametrize(
    ("one", "other", "inside"),
    [
        ("/profiles/x", "/profiles/x/y/z", "19"),
        ("/profiles/x/y", "/profiles/x", "18"),
        ("/profiles/x", "/profiles/xy", ""),
    ],
)
def test_no_profile_lives_inside_the_directory_of_another(one: str, other: str, inside: str) -> None:
    desired = Fleet(
        profiles={
            "profile_018": a_profile(user_data_dir=one),
            "profile_019": a_profile(profile_id="profile_019", user_data_dir=other),
        }
    )
    if inside:
        around = "profile_018" if inside == "19" else "profile_019"
        reported = f"lies inside that of profile {around}"
        assert problems(FLEET, desired) == {f"profiles.profile_0{inside}.user_data_dir": reported}
    else:
        check_fleet(FLEET, desired, prune=False)
