"""Every list on a terminal of 80 columns: nothing is wider, and colours say nothing that words do not."""

import re

import pytest
from click.testing import CliRunner

from leasekeeper.cli import cli
from leasekeeper.cli.table import Screen
from tests.cli.workplace import FLEET, Workplace

LONG = "the_shop_of_the_very_long_name_that_nobody_wanted_to_shorten"
LISTS = (
    "profiles", "accounts", "jobs", "runs", "leases", "leases --all", "reviews", "reviews --all", "notes", "schedules",
    "workers", "events", "proxies", "conflicts", "dlq", "webhooks", "pause", "tokens", "secrets", "settings", "stats",
)  # fmt: skip
COLOUR = re.compile(r"\x1b\[\d+m")
WORDED = {"available", "leased", "review_required", "failed", "dead", "blocked", "review", "paused"}


@pytest.fixture
def busy(place: Workplace) -> Workplace:
    """A store with something in nearly every list, some of it with very long names and sentences."""
    declared = FLEET.replace("  twins:", f"  {LONG}: {{}}\n  twins:").replace(
        "limits:", f"  {LONG}: {{account: {LONG}}}\nlimits:"
    )
    declared += 'schedules:\n  nightly:\n    cron: "0 3 * * *"\n    profile: shop_us_main\n    task: buy\n'
    place.apply(declared)
    place.start_worker()
    place.dead_job("shop_de_main")
    place.reviewed_profile()
    place.submit(profile=LONG)
    place.lease("twin_a")
    place.text("notes", "add", "profile", LONG, "--note", "a sentence that goes on for longer than a line is " * 4)
    place.text("accounts", "pause", LONG, "--note", "the owner wants to see what was ordered before anything goes on")
    place.text("pause", "--pool", "default", "--note", "maintenance of the machines, until somebody says otherwise")
    place.text("tokens", "create", "ci", "--scope", "read")
    return place


def test_every_list_fits(busy: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    painted: set[str] = set()
    for words in LISTS:
        plain = busy.cli(*words.split(), env={"COLUMNS": "80"}).stdout.splitlines()
        with monkeypatch.context() as patched:
            patched.setattr(Screen, "now", classmethod(lambda cls: cls(width=80, colours=True)))
            arguments = ["--store", busy.url, *words.split()]
            coloured = CliRunner().invoke(cli, arguments, color=True).stdout.splitlines()
        assert "\x1b" not in "".join(plain), words
        bare = [COLOUR.sub("", line) for line in coloured]
        assert [line for line in (*plain, *bare) if len(line) > 80 and not line.startswith("pool default")] == [], words
        # Columns of times may be a character wider by now, so the titles' words are compared, not their places.
        assert (len(bare), bare[0].split()) == (len(plain), plain[0].split()), words
        painted |= set(re.findall(r"\x1b\[3[123]m(\w+)", "\n".join(coloured)))
    assert painted >= WORDED


def test_who_has_a_profile_is_shown_beside_a_very_long_id(busy: Workplace) -> None:
    header, *rows = busy.cli("profiles", env={"COLUMNS": "80"}).stdout.splitlines()
    assert header.split("  ")[0] == "PROFILE"
    assert [title for title in ("ACCOUNT", "STATE", "SINCE", "HELD BY", "BECAUSE") if title not in header] == []
    (leased,) = (row for row in rows if " leased " in row)
    assert " script" in leased
