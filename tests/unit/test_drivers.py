"""Drivers by name: those that a fleet may name are those that a worker can make."""

import time
from pathlib import Path

import pytest

from leasekeeper import config
from leasekeeper.browsers import drivers
from leasekeeper.browsers.drivers import create_driver
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.core.browsers import DRIVERS, NULL, LeaseTerms, driver_fault, has_directory
from leasekeeper.core.jobs import RunMode
from leasekeeper.driver_port import OpenRequest, RunningBrowser
from leasekeeper.errors import Fail, InputError
from tests.unit.records import a_grant


def test_every_driver_that_a_fleet_may_name_can_be_made(tmp_path: Path) -> None:
    settings = config.load({}, data_dir=str(tmp_path), launch_together=3).browsers
    assert set(drivers._CLASSES) == set(DRIVERS)
    assert {create_driver(name, settings).capacity.launches for name in DRIVERS} == {3}
    with pytest.raises(InputError, match="no driver nul; there are: local, launcher, null; did you mean null"):
        create_driver("nul", settings)


def test_only_local_browsers_have_their_profiles_in_directories_of_a_machine() -> None:
    assert [name for name in DRIVERS if has_directory(name)] == ["local"]
    assert not has_directory("of a later version")


def test_a_name_that_is_near_nothing_gets_no_suggestion() -> None:
    assert driver_fault("multilogin-x") == "no driver multilogin-x; there are: local, launcher, null"
    assert driver_fault("null") is None


@pytest.mark.parametrize(
    ("value", "message"), [("", "must name a driver: local, launcher, null"), ("local x", "no driver x")]
)
def test_a_worker_is_for_drivers_that_exist(value: str, message: str) -> None:
    assert config.load({}, drivers="null local").browsers.drivers == ("null", "local")
    with pytest.raises(InputError, match=f"LEASEKEEPER_DRIVERS: {message}"):
        config.load({}, drivers=value)


async def started_without_a_browser(tmp_path: Path, *, lasts: float) -> RunningBrowser:
    driver = create_driver(NULL, config.load({}, data_dir=str(tmp_path)).browsers)
    request = OpenRequest(grant=a_grant(), run_mode=RunMode.HEADLESS)
    return await driver.start(request, terms_of(tmp_path, lasts))


def terms_of(folder: Path, lasts: float) -> LeaseTerms:
    deadline = boot_time() + lasts
    return LeaseTerms(
        lease_id="lease", token=1, run_id="run", folder=str(folder), deadline=deadline, kill_at=deadline + 60
    )


async def test_what_stands_for_a_browser_ends_at_its_deadline_by_itself(tmp_path: Path) -> None:
    browser = await started_without_a_browser(tmp_path, lasts=600)
    assert not browser.over
    browser.extend(boot_time() + 0.05, boot_time() + 60)
    report = await browser.ended(60)
    assert report is not None
    assert (report.cause, browser.over) == ("deadline", True)
    browser.extend(boot_time() + 600, boot_time() + 600)
    assert await browser.stop() is report
    with pytest.raises(Fail, match="nothing to hand over"):
        await browser.hand_over(terms_of(tmp_path, 600))


async def test_what_stands_for_a_browser_lives_on_while_its_lease_is_renewed_or_passed_on(tmp_path: Path) -> None:
    browser = await started_without_a_browser(tmp_path, lasts=1)
    browser.extend(boot_time() + 600, boot_time() + 600)
    await browser.hand_over(terms_of(tmp_path, 600))
    assert await browser.ended(1.2) is None
    report = await browser.stop()
    assert report is not None
    assert report.cause == "closed"


def stand_still() -> None:
    time.sleep(0.1)  # waits: the loop stands still past the deadline


async def test_a_deadline_that_passed_while_the_loop_stood_still_is_not_extended(tmp_path: Path) -> None:
    browser = await started_without_a_browser(tmp_path, lasts=0.05)
    stand_still()
    browser.extend(boot_time() + 600, boot_time() + 600)
    assert browser.over
