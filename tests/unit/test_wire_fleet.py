"""fleet.yaml at the edge: every field, every fault of a record, and every fault of a file."""

import os
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.core.accounts import Account, Limit, Proxy, Routing
from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, LauncherId, ProfileId, ProxyId
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import ManualUse, Profile, ReleasePolicy
from leasekeeper.errors import InputError
from leasekeeper.wire import load_fleet, parse_fleet
from leasekeeper.wire.fleet import ACCOUNT, LAUNCHER_RECORD, PROFILE, PROXY, timezone_fault

EXAMPLE = """\
version: 1
profile_store: s3://acme-profiles/leasekeeper
proxies:
  dallas:
    server: socks5://proxy.example:1080
    region: US
    credentials: env:DALLAS_PROXY
accounts:
  store_us_018:
    routing: account
    url: https://shop.example/login
    login_canary: {url: "https://shop.example/me", selector: "#sign-out"}
    labels: {tier: gold}
    notes: |
      two
      lines
  store_us_019:
profiles:
  profile_018:
    account: store_us_018
    pool: multilogin
    tier: gold
    driver: "null"
    user_data_dir: profiles/018
    proxy: dallas
    language: en-US
    timezone: America/Chicago
    window: 1280x800
    max_active_runs: 2
    disposable: true
    warm: false
    record: true
    release_policy: recover
    manual_use: accept
    keep_snapshots: 3
    max_size_mb: 500
    labels: {"018": "on"}
    notes: the big one
  profile_019: {account: store_us_019, launcher: mlx, launcher_profile: 5f1c}
launchers:
  mlx:
    driver: multilogin
    url: https://launcher.example:45001
    token: env:MLX_TOKEN
    folder: f1
    max_running: 100
    calls_per_minute: 60
    start_timeout_seconds: 120
    calls: {}
limits: {multilogin: 100}
"""


def faults(data: object) -> dict[str, str]:
    """Where each problem is, and what is said about it."""
    with pytest.raises(InputError) as caught:
        parse_fleet(data)
    return {problem.where: problem.message for problem in caught.value.problems}


def with_profile(**fields: Any) -> dict[str, Any]:
    return {"profiles": {"p": {"account": "a", **fields}}}


def with_proxy(**fields: Any) -> dict[str, Any]:
    return {"proxies": {"x": {"server": "http://h:1", **fields}}}


def test_every_field_of_a_fleet_is_read(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(EXAMPLE, encoding="utf-8")
    assert load_fleet(file) == Fleet(
        profile_store="s3://acme-profiles/leasekeeper",
        proxies={
            "dallas": Proxy(
                proxy_id=ProxyId("dallas"),
                server="socks5://proxy.example:1080",
                region="US",
                credentials="env:DALLAS_PROXY",
            )
        },
        accounts={
            "store_us_018": Account(
                account_id=AccountId("store_us_018"),
                routing=Routing.ACCOUNT,
                url="https://shop.example/login",
                canary_url="https://shop.example/me",
                canary_selector="#sign-out",
                labels={"tier": "gold"},
                notes="two\nlines\n",
            ),
            "store_us_019": Account(account_id=AccountId("store_us_019")),
        },
        profiles={
            "profile_018": Profile(
                profile_id=ProfileId("profile_018"),
                account_id=AccountId("store_us_018"),
                pool="multilogin",
                tier="gold",
                driver="null",
                user_data_dir=str(tmp_path / "profiles/018"),
                proxy_id=ProxyId("dallas"),
                language="en-US",
                timezone="America/Chicago",
                window="1280x800",
                max_active_runs=2,
                disposable=True,
                warm=False,
                record=True,
                release_policy=ReleasePolicy.RECOVER,
                manual_use=ManualUse.ACCEPT,
                keep_snapshots=3,
                max_size_mb=500,
                labels={"018": "on"},
                notes="the big one",
            ),
            "profile_019": Profile(
                profile_id=ProfileId("profile_019"),
                account_id=AccountId("store_us_019"),
                driver="launcher",
                launcher_id=LauncherId("mlx"),
                launcher_profile="5f1c",
            ),
        },
        launchers={
            "mlx": Launcher(
                launcher_id=LauncherId("mlx"),
                driver="multilogin",
                url="https://launcher.example:45001",
                api_token="env:MLX_TOKEN",  # noqa: S106 - this reference
                folder="f1",
                max_running=100,
                calls_per_minute=60,
                start_timeout_seconds=120,
            )
        },
        limits={
            "multilogin": Limit(pool="multilogin", max_leases=100),
            "default": Limit(pool="default", max_leases=100),
        },
    )


def test_the_example_names_every_field() -> None:
    names = [field.name for record in (PROXY, LAUNCHER_RECORD, ACCOUNT, PROFILE) for field in record.table]
    assert [name for name in names if f"{name}: " not in EXAMPLE] == []


def test_a_fleet_may_be_given_as_text_or_as_plain_types() -> None:
    assert (
        parse_fleet("accounts: {a: {}}")
        == parse_fleet({"accounts": {"a": {}}})
        == parse_fleet({"accounts": {"a": None}})
    )
    assert parse_fleet({}) == parse_fleet({"accounts": None, "profiles": None}) == Fleet()


SERVER = "must be scheme://host:port, with http, https or socks5 as the scheme"
ID_RULE = "must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"
KEY_RULE = f"the key must be an id: {ID_RULE[8:]}"
QUOTE = "; put it in quotes"

WRONG: list[tuple[dict[str, Any], str, str]] = [
    (with_proxy(server="proxy.example:8080"), "proxies.x.server", SERVER),
    (with_proxy(server="http://proxy.example"), "proxies.x.server", SERVER),
    (with_proxy(server="http://:8080"), "proxies.x.server", SERVER),
    (with_proxy(server="ftp://h:1"), "proxies.x.server", SERVER),
    (with_proxy(server="http://h:1/path"), "proxies.x.server", SERVER),
    (with_proxy(server="http://h:99999"), "proxies.x.server", SERVER),
    (with_proxy(server="http://h h:1"), "proxies.x.server", SERVER),
    (with_proxy(region=""), "proxies.x.region", "must be text of 1 to 128 printable characters"),
    (
        with_proxy(region=False),
        "proxies.x.region",
        f"must be text of 1 to 128 printable characters, not a boolean{QUOTE}",
    ),
    (
        with_proxy(credentials="bob:hunter2"),
        "proxies.x.credentials",
        "must be env:NAME, file:PATH or secret:NAME: where the secret is, never the secret itself",
    ),
    (
        with_proxy(credentials="env:NOT A NAME"),
        "proxies.x.credentials",
        "must be env:NAME, file:PATH or secret:NAME: where the secret is, never the secret itself",
    ),
    ({"proxies": {"x": {}}}, "proxies.x.server", "is required: the network exit"),
    ({"proxies": {"x/y": {"server": "http://h:1"}}}, "proxies.'x/y'", KEY_RULE),
    ({"proxies": []}, "proxies", "must be at most 1,000,000 proxies by id, not a list"),
    ({"accounts": {"a": []}}, "accounts.a", "must be an object, not a list"),
    ({"accounts": {18: {}}}, "accounts.18", f"{KEY_RULE}{QUOTE}"),
    (
        {"accounts": {"a": {"routing": "task"}}},
        "accounts.a.routing",
        "must be one of profile, account, account_task",
    ),
    (
        {"accounts": {"a": {"paused": True}}},
        "accounts.a.paused",
        "no such field; there are: routing, url, login_canary, labels, notes",
    ),
    ({"profiles": {"p": None}}, "profiles.p.account", "is required: the account it belongs to; cannot be changed"),
    (with_profile(account=18), "profiles.p.account", f"{ID_RULE}, not a number{QUOTE}"),
    (with_profile(pool="a b"), "profiles.p.pool", ID_RULE),
    (with_profile(driver=""), "profiles.p.driver", "must be a driver: local, launcher, null"),
    (
        with_profile(driver="lokal"),
        "profiles.p.driver",
        "no driver lokal; there are: local, launcher, null; did you mean local?",
    ),
    (with_profile(driver=None), "profiles.p.driver", 'has no value; for the driver null write "null"'),
    (with_profile(proxy="../x"), "profiles.p.proxy", ID_RULE),
    (
        with_profile(user_data_dir=""),
        "profiles.p.user_data_dir",
        "must be a path of at most 4096 printable characters",
    ),
    (
        with_profile(user_data_dir="a\0b"),
        "profiles.p.user_data_dir",
        "must be a path of at most 4096 printable characters",
    ),
    (
        with_profile(user_data_dir="~nobody_here/x"),
        "profiles.p.user_data_dir",
        "begins with '~', but that home directory is not known",
    ),
    (with_profile(language="english please"), "profiles.p.language", "must be a language as en-US"),
    (with_profile(timezone="@@@"), "profiles.p.timezone", "must be a time zone as Europe/Berlin"),
    (with_profile(window="1280"), "profiles.p.window", "must be a size as 1280x800"),
    (with_profile(window="0x800"), "profiles.p.window", "must be a size as 1280x800"),
    (with_profile(window=[1280, 800]), "profiles.p.window", f"must be a size as 1280x800, not a list{QUOTE}"),
    (with_profile(max_active_runs=0), "profiles.p.max_active_runs", "must be a whole number from 1 to 1000"),
    (
        with_profile(max_active_runs=1001),
        "profiles.p.max_active_runs",
        "must be a whole number from 1 to 1000",
    ),
    (with_profile(disposable="yes"), "profiles.p.disposable", "must be true or false, not text"),
    (
        with_profile(release_policy="free"),
        "profiles.p.release_policy",
        "must be one of recover, restore, review, quarantine",
    ),
    (with_profile(manual_use="ignore"), "profiles.p.manual_use", "must be one of accept, review"),
    (
        with_profile(labels={"tier": 1}),
        "profiles.p.labels.tier",
        f"must be text of at most 256 printable characters, not a number{QUOTE}",
    ),
    (with_profile(notes="x" * 4097), "profiles.p.notes", "must be text of at most 4096 bytes"),
    (with_profile(timezon="UTC"), "profiles.p.timezon", "no such field; did you mean timezone?"),
    (with_profile(userDataDir="x"), "profiles.p.userDataDir", "no such field; did you mean user_data_dir?"),
    ({"limits": {"pool": 0}}, "limits.pool", "must be a whole number from 1 to 1000000"),
    ({"limits": {"pool": 1_000_001}}, "limits.pool", "must be a whole number from 1 to 1000000"),
    ({"limits": {"pool": None}}, "limits.pool", "must be a whole number from 1 to 1000000, not nothing"),
    ({"limits": {"a b": 1}}, "limits.'a b'", f"the key {ID_RULE}"),
    ({"profils": {}}, "profils", "no such field; did you mean profiles?"),
]


@pytest.mark.parametrize(("data", "where", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_entry_is_refused_with_its_place_and_what_is_allowed(
    data: dict[str, Any], where: str, message: str
) -> None:
    assert faults(data) == {where: message}


@pytest.mark.parametrize("server", ["http://bob:hunter2@h:1", "bob:hunter2@h:1", "socks5://bob@h:1"])
def test_credentials_in_a_proxy_s_address_are_refused_with_a_hint_and_not_repeated(server: str) -> None:
    message = faults(with_proxy(server=server))["proxies.x.server"]
    assert "credentials: env:NAME, file:PATH or secret:NAME" in message
    assert "hunter2" not in message


def test_a_time_zone_is_checked_if_the_machine_knows_any() -> None:
    known = frozenset({"Europe/Berlin", "UTC"})
    rule = "must be a time zone as Europe/Berlin"
    assert timezone_fault("Europe/Berlin", known) is None
    assert timezone_fault("Europe/Berln", known) == f"{rule}; did you mean Europe/Berlin?"
    assert timezone_fault("Moon/Crater", known) == rule
    assert timezone_fault("Moon/Crater", frozenset()) is None


@pytest.mark.parametrize("version", [0, 2, "1", True, [1]])
def test_an_unknown_version_is_refused_before_anything_else_is_checked(version: object) -> None:
    found = faults({"version": version, "a_field_of_the_future": 1})
    assert found == {"version": "must be 1, the one this program knows; for a newer one upgrade it"}


@pytest.mark.parametrize("data", [None, [], 7])
def test_a_fleet_is_an_object(data: object) -> None:
    assert "must be an object" in faults(data)[""]


def test_all_problems_are_reported_at_once() -> None:
    data = {**with_proxy(region=1, server="x"), **with_profile(window="x", language="!"), "limits": {"p": -1}}
    assert list(faults(data)) == [
        "proxies.x.server",
        "proxies.x.region",
        "profiles.p.window",
        "profiles.p.language",
        "limits.p",
    ]


RIGHT: list[dict[str, Any]] = [
    with_proxy(server="https://10.0.0.1:3128/"),
    with_proxy(server="http://[::1]:8080"),
    with_proxy(credentials="file:/run/secrets/proxy"),
    with_profile(language="no"),
    with_profile(language="zh-Hant-TW"),
    with_profile(timezone="UTC"),
    with_profile(window="99x10000"),
    with_profile(max_active_runs=1000),
    {"limits": {"pool": 1_000_000}},
]


@pytest.mark.parametrize("data", RIGHT)
def test_entries_on_the_edge_of_what_is_allowed_are_accepted(data: dict[str, Any]) -> None:
    assert isinstance(parse_fleet(data), Fleet)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("p018", "{folder}/p018"),
        ("./a/../b", "{folder}/b"),
        ("../018", "{parent}/018"),
        ("/var/profiles//018/", "/var/profiles/018"),
        ("~/018", "{home}/018"),
    ],
)
def test_directories_become_absolute_and_start_at_the_fleet_file(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "fleet"
    folder.mkdir()
    file = folder / "fleet.yaml"
    file.write_text(f"profiles: {{p: {{account: a, user_data_dir: {given}}}}}", encoding="utf-8")
    directory = load_fleet(str(file)).profiles["p"].user_data_dir
    assert directory == expected.format(folder=folder, parent=tmp_path, home=tmp_path / "home")


def test_a_fleet_file_may_be_named_relative_to_where_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text("profiles: {p: {account: a, user_data_dir: x}}", encoding="utf-8")
    assert load_fleet("fleet.yaml").profiles["p"].user_data_dir == str(tmp_path / "x")


# Texts that are no fleet, and words of what is said about each.
BAD_TEXTS: list[tuple[str, str]] = [
    ("", "is empty"),
    ("# only a comment\n", "is empty"),
    ("---\n...\n", "is empty"),
    ("- a\n- b\n", "must hold a mapping with version, profile_store, proxies, launchers, accounts"),
    ("just words", "must hold a mapping"),
    ("accounts: {a: {}", "line [12], column 1?[17]: not YAML"),
    ("accounts:\n\ta: 1\n", "line 2, column 1: not YAML"),
    ("accounts: [1, 2\nprofiles: }", "not YAML"),
    ("a: b\x07", "not YAML: character 4 is not allowed"),
    ("accounts: {}\n---\naccounts: {}\n", "line 2, column 1: a second document begins"),
    ("accounts: !!python/object:os.system {}", "line 1, column 11: tags are not used"),
    ("accounts: {a: {notes: !secret x}}", "tags are not used"),
    ("accounts: {? [a, b] : 1}", "line 1, column 14: a key must be a word"),
    ("accounts: &a\n  b: *a\n", "line 2, column 6: cyclic: \\*a is inside of the value that it refers to"),
    ("accounts: &a [*a]\n", "cyclic"),
    ("accounts: {a: &x {}, b: &x {c: *x}}", "cyclic"),
    ("accounts: *nothing\n", "line 1, column 11: \\*nothing refers to nothing"),
    ("accounts: {a: {<<: 7}}", "'<<' takes a mapping, or a list of mappings"),
    ("accounts: {a: {<<: [{}, 7]}}", "'<<' takes a mapping, or a list of mappings"),
    ("accounts: " + "[" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH} levels"),
    ("accounts: " + "[" * 200_000, f"nested deeper than {MAX_DEPTH} levels"),
]


@pytest.mark.parametrize(("text", "words"), BAD_TEXTS, ids=[row[1][:40] for row in BAD_TEXTS])
def test_a_text_that_is_no_fleet_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words) as caught:
        load_fleet(file)
    assert str(file) in str(caught.value)
    with pytest.raises(InputError, match=words):
        parse_fleet(text)


def test_keys_that_are_there_twice_are_all_named_with_their_lines() -> None:
    text = "accounts:\n  a: {}\n  b: {}\n  a: {routing: account}\nlimits: {x: 1, x: 2}\n'accounts': {}\n"
    assert faults(text) == {
        "line 4, column 3": "key 'a' is there twice, first on line 2",
        "line 5, column 16": "key 'x' is there twice, first on line 5",
        "line 6, column 1": "key 'accounts' is there twice, first on line 1",
    }


def test_an_alias_bomb_is_defused() -> None:
    lines = ["accounts:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(InputError, match="more than 5,000,000 values, counting what aliases repeat"):
        parse_fleet("\n".join(lines))


def test_aliases_and_merge_keys_save_repetition() -> None:
    fleet = parse_fleet(
        """
        profiles:
          p1: &usual {account: a, pool: multilogin, language: de-DE}
          p2: {<<: *usual, account: b}
          p3: {pool: own, <<: [{pool: first, window: 800x600}, *usual]}
          p4: *usual
        """
    )
    shown = {key: (p.account_id, p.pool, p.language, p.window) for key, p in fleet.profiles.items()}
    assert shown == {
        "p1": ("a", "multilogin", "de-DE", None),
        "p2": ("b", "multilogin", "de-DE", None),
        "p3": ("a", "own", "de-DE", "800x600"),
        "p4": ("a", "multilogin", "de-DE", None),
    }


def test_an_anchor_may_be_used_again_for_something_else() -> None:
    fleet = parse_fleet("accounts: {a: &x {notes: one}, b: *x, c: &x {notes: two}, d: *x}")
    assert [account.notes for account in fleet.accounts.values()] == ["one", "one", "two", "two"]


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "2026-05-01", "12:30:00", "1_000", "=", "0x1F", "NaN"])
def test_words_that_older_yaml_reads_as_something_else_are_text(word: str) -> None:
    assert parse_fleet(f"accounts: {{a: {{notes: {word}}}}}").accounts["a"].notes == word


@pytest.mark.parametrize("word", ["018", "1.5", "-3", "1e3", "true", "False"])
def test_words_that_are_no_text_must_be_quoted(word: str) -> None:
    assert faults(f"accounts: {{a: {{notes: {word}}}}}")["accounts.a.notes"].endswith(QUOTE)
    assert parse_fleet(f"accounts: {{a: {{notes: '{word}'}}}}").accounts["a"].notes == word
    assert parse_fleet(f"accounts: {{a: {{notes: !!str {word}}}}}").accounts["a"].notes == word


def test_a_number_without_end_is_no_number() -> None:
    assert list(faults("limits: {x: " + "9" * 10_000 + "}")) == ["limits.x"]


def test_a_file_that_is_not_there_or_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*missing\.yaml: No such file"):
        load_fleet(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        load_fleet(tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*: embedded null"):
        load_fleet("a\0b")


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"accounts: {a: {notes: caf\xe9}}")
    with pytest.raises(InputError, match="byte 25 is not UTF-8"):
        load_fleet(file)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"\xef\xbb\xbfaccounts: {a: {}}")
    assert list(load_fleet(file).accounts) == ["a"]


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    with file.open("wb") as out:
        os.truncate(out.fileno(), 64 * 1024 * 1024 + 1)
    with pytest.raises(InputError, match="longer than 64 MiB"):
        load_fleet(file)
