"""Drivers by name: those that a fleet may name are those that a worker can make."""

from pathlib import Path

import pytest

from leasekeeper import config
from leasekeeper.browsers import drivers
from leasekeeper.browsers.drivers import create_driver
from leasekeeper.core.browsers import DRIVERS, driver_fault, has_directory
from leasekeeper.errors import InputError


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
