"""Drivers by name: which class opens a profile's browser. A driver is imported when it is first needed."""

from importlib import import_module
from typing import Final, cast

from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import LAUNCHER, LOCAL, NULL, driver_fault
from leasekeeper.driver_port import Driver
from leasekeeper.errors import InputError, Problem

_CLASSES: Final = {
    LOCAL: ("leasekeeper.browsers.local", "LocalDriver"),
    LAUNCHER: ("leasekeeper.browsers.launcher", "LauncherDriver"),
    NULL: ("leasekeeper.browsers.null", "NullDriver"),
}


def create_driver(name: str, config: BrowserConfig) -> Driver:
    """The driver of this name, for one worker. Raises InputError if there is none."""
    fault = driver_fault(name)
    if fault is not None:
        raise InputError("there is no such driver", [Problem("driver", fault)])
    module, kind = _CLASSES[name]
    return cast(Driver, getattr(import_module(module), kind)(config))
