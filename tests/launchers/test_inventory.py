"""What a launcher has: listed in each vendor's shape, imported as a fleet file that applies."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasekeeper.browsers.launchers import vendor
from tests.cli.workplace import Workplace
from tests.launchers.stage import TOKEN, Fake

LISTING = {
    "list": {"path": "/profiles", "items": "", "id": "id", "name": "name"},
}


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(url=f"sqlite:///{tmp_path}/leasekeeper.db", directory=tmp_path)


def declare(place: Workplace, fake: Fake, **more: Any) -> None:
    """The fleet has one of the launcher's three profiles. Its cloud is the fake as well."""
    record = fake.record
    calls: dict[str, Any] = {**record.calls, **(LISTING if record.driver == "http" else {})}
    listing = {**vendor(record.driver).get("list", {}), **calls.get("list", {}), "url": record.url}
    document = {
        "launchers": {
            "mlx": {
                "driver": record.driver, "url": record.url, "token": record.api_token, "folder": "f",
                "calls": {**calls, "list": listing}, **more,
            }
        },
        "accounts": {"a": {}},
        "profiles": {"p1": {"account": "a", "launcher": "mlx", "launcher_profile": "id-p1"}},
    }  # fmt: skip
    (place.directory / "fleet.yaml").write_text(yaml.safe_dump(document))
    place.text("apply", str(place.directory / "fleet.yaml"), "--yes")


def test_what_a_launcher_has_is_listed_imported_and_applied(place: Workplace, fake: Fake) -> None:
    declare(place, fake)
    items = place.json("launchers", "profiles", "mlx")["items"]
    assert [(item["launcher_profile"], item["name"], item["declared"]) for item in items] == [
        ("id-p1", "shop 1", "p1"), ("id-p2", "shop 2", None), ("id-p3", "shop 3", None),
    ]  # fmt: skip
    table = place.text("launchers", "profiles", "mlx", "--undeclared").splitlines()
    assert [line.split()[0] for line in table] == ["ID", "id-p2", "id-p3"]
    more = place.text("launchers", "import", "mlx")
    (place.directory / "more.yaml").write_text(more)
    place.text("apply", str(place.directory / "more.yaml"), "--yes")
    assert place.text("launchers", "profiles", "mlx", "--undeclared") == "launcher mlx lists no undeclared profiles\n"
    assert {item["profile_id"] for item in place.json("profiles")["items"]} == {"p1", "shop_2", "shop_3"}
    fleet = yaml.safe_load(more)
    assert fleet["profiles"]["shop_2"] == {
        "account": "shop_2", "launcher": "mlx", "launcher_profile": "id-p2", "pool": "mlx",
    }  # fmt: skip


def test_the_first_import_of_a_launcher_with_a_plan_applies(place: Workplace, recipe: Fake) -> None:
    """Its pool gets what the plan leaves, and ids that there are stay as they are."""
    declare(place, recipe, max_running=5)
    fleet = {"accounts": {"shop_2": {"routing": "account"}}, "profiles": {"local": {"account": "shop_2"}}}
    (place.directory / "local.yaml").write_text(yaml.safe_dump({**fleet, "limits": {"default": 2}}))
    place.text("apply", str(place.directory / "local.yaml"), "--yes")
    more = place.text("launchers", "import", "mlx")
    found = yaml.safe_load(more)
    assert (list(found["profiles"]), found["limits"]) == (["shop_2_2", "shop_3"], {"mlx": 3})
    (place.directory / "more.yaml").write_text(more)
    place.text("apply", str(place.directory / "more.yaml"), "--yes")
    (account,) = [each for each in place.json("accounts")["items"] if each["account_id"] == "shop_2"]
    assert account["routing"] == "account"
    assert "limits" not in yaml.safe_load(place.text("launchers", "import", "mlx", "--json"))


def test_an_import_that_the_plan_has_no_room_for_says_where_it_is(place: Workplace, recipe: Fake) -> None:
    declare(place, recipe, max_running=5)  # all for the pool of p1
    assert "import with --pool default" in place.fails(2, "launchers", "import", "mlx")
    (place.directory / "more.yaml").write_text(place.text("launchers", "import", "mlx", "--pool", "default"))
    place.text("apply", str(place.directory / "more.yaml"), "--yes")


def test_whoever_runs_a_profile_is_seen_where_the_launcher_says_it(place: Workplace, recipe: Fake) -> None:
    declare(place, recipe)
    assert place.text("launchers", "running", "p1") == "profile p1 is idle (launcher mlx)\n"
    recipe.ask("/profile/start", {"profile_id": "id-p1", "headless": True}, token=TOKEN)
    running = {"profile_id": "p1", "launcher_id": "mlx", "running": True, "users": []}
    assert place.json("launchers", "running", "p1") == running


@pytest.mark.parametrize("fake", ["adspower"], indirect=True)
def test_who_has_a_profile_open_is_named_where_the_launcher_says_so(place: Workplace, fake: Fake) -> None:
    declare(place, fake)
    assert place.text("launchers", "running", "p1") == "profile p1 is idle (launcher mlx)\n"
    start = {"profile_id": "id-p1", "headless": "1"}
    fake.ask("/api/v2/browser-profile/start", start, token=TOKEN)
    assert place.text("launchers", "running", "p1") == "profile p1 runs, opened by ann (launcher mlx)\n"


def test_a_launcher_that_is_away_is_named(place: Workplace, recipe: Fake) -> None:
    declare(place, recipe)
    recipe.kill()
    assert "launcher mlx: no response from http://127.0.0.1" in place.fails(2, "launchers", "profiles", "mlx")


def test_the_list_shows_each_launcher_and_never_a_token(place: Workplace, recipe: Fake) -> None:
    place.text("db", "migrate")
    assert "declare one under launchers:" in place.text("launchers")
    declare(place, recipe)
    (item,) = place.json("launchers")["items"]
    assert (item["launcher_id"], item["api_token"]) == ("mlx", "env:FAKE_LAUNCHER_TOKEN")
    assert TOKEN not in json.dumps(item)
