"""Each launcher has a page, which names every call that its driver makes and every answer that it understands."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from leasekeeper.browsers.launchers import STEPS, vendor
from leasekeeper.core.launchers import CDP, HTTP, VENDORS
from leasekeeper.wire import parse_fleet
from tests.launchers.stage import RECIPE

PAGES = Path(__file__).parents[2] / "docs" / "howto"
NAMED = [name for name in VENDORS if name not in (HTTP, CDP)]


def fleet_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    return found


@pytest.mark.parametrize("driver", NAMED)
def test_a_page_names_every_call_of_its_driver(driver: str) -> None:
    page = (PAGES / "launchers" / f"{driver}.md").read_text()
    described = vendor(driver)
    assert described["url"] in page
    assert "The vendor's own program was not run" in page
    for condition in described.get("limited", []):
        assert all(f"`{path}`" in page for path in condition)
        assert all(f"`{str(wanted).removeprefix('~')}`" in page for wanted in condition.values())
    for step in STEPS:
        call = described.get(step)
        if call is None:
            assert f"| {step} | " not in page
            continue
        assert f"| {step} | `{call.get('method', 'GET')} {call.get('url', '')}{call['path']}" in page
        for paths in (call.get(kind) for kind in ("busy", "running", "idle", "ok")):
            for path in (name for condition in paths or [] for name in condition):
                assert f"`{path}`" in page
        for name in (*call.get("query", {}), *call.get("body", {})):
            assert name in page


@pytest.mark.parametrize("driver", NAMED)
def test_the_fleet_of_a_page_can_be_applied(driver: str) -> None:
    found = fleet_of((PAGES / "launchers" / f"{driver}.md").read_text())
    accounts: dict[str, Any] = {profile["account"]: {} for profile in found["profiles"].values()}
    (launcher,) = parse_fleet({"accounts": accounts, **found}).launchers.values()
    assert launcher.driver == driver


def test_the_recipe_of_the_page_is_the_one_that_is_tested() -> None:
    page = (PAGES / "write-your-own-driver.md").read_text()
    (launcher,) = parse_fleet(fleet_of(page)).launchers.values()
    assert launcher.calls == RECIPE
