"""The pytest plugin: the fixture `leasekeeper_browser`, a leased profile with its browser open, for one test.

Installed with Leasekeeper, and loaded by pytest itself: it must cost nothing where nobody uses it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from leasekeeper.sync_browser import SyncBrowser

MARKER: Final = "leasekeeper"
_FAILED: Final = pytest.StashKey[str]()
_OPTIONS: Final = ("pool", "labels", "wait", "ttl", "headless", "max_duration", "store")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leasekeeper", "browsers of leased profiles")
    group.addoption("--leasekeeper-profile", metavar="PROFILE", help="the profile of leasekeeper_browser")
    group.addoption("--leasekeeper-pool", metavar="POOL", help="instead: any free profile of this pool")
    group.addoption("--leasekeeper-wait", metavar="SECONDS", type=float, help="seconds to wait for it [default: 60]")
    parser.addini("leasekeeper_profile", "the profile of leasekeeper_browser")
    parser.addini("leasekeeper_pool", "instead: any free profile of this pool")
    parser.addini("leasekeeper_wait", "seconds to wait for it", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "leasekeeper(profile=None, *, pool=None, labels=None, wait=60, ttl=None, headless=True, max_duration=None, "
        "store=None): what the fixture leasekeeper_browser opens for this test",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Remember why a test failed: its browser's run is recorded as failed too."""
    report = yield
    if call.when == "call" and report.failed and call.excinfo is not None:
        item.stash[_FAILED] = f"{item.nodeid}: {call.excinfo.typename}"
    return report


@pytest.fixture
def leasekeeper_browser(request: pytest.FixtureRequest) -> "Iterator[SyncBrowser]":
    """A leased profile with its browser open: `leasekeeper_browser.page` is a page of Playwright's sync API.

    A test that fails leaves a failed run with its name, screenshot and console; the profile stays in rotation.
    """
    import leasekeeper
    from leasekeeper.core.failures import Reason

    profile, options = _asked_for(request)
    with leasekeeper.browser(profile, **options) as browser:
        yield browser
        failed = request.node.stash.get(_FAILED, None)
        if failed is not None:
            browser.release(Reason.TASK_ERROR, failed)


def _asked_for(request: pytest.FixtureRequest) -> tuple[str | None, dict[str, Any]]:
    """The marker's arguments; where it names neither profile nor pool, those of the command line or the ini file."""
    marker = request.node.get_closest_marker(MARKER)
    args, options = (marker.args, dict(marker.kwargs)) if marker else ((), {})
    profile = args[0] if args else options.pop("profile", None)
    unknown = sorted(options.keys() - set(_OPTIONS))
    if len(args) > 1 or unknown:
        raise pytest.UsageError(f"the marker leasekeeper takes a profile, {', '.join(_OPTIONS)}; not {unknown or args}")
    if profile is None and options.get("pool") is None:
        profile = _setting(request.config, "profile")
        options["pool"] = None if profile else _setting(request.config, "pool")
    if profile is None and options["pool"] is None:
        raise pytest.UsageError(
            "leasekeeper_browser needs a profile: @pytest.mark.leasekeeper('qa_01'), --leasekeeper-profile, or "
            "leasekeeper_profile in the ini file; or a pool in the same ways"
        )
    options.setdefault("wait", float(_setting(request.config, "wait") or 60))
    return profile, options


def _setting(config: pytest.Config, name: str) -> Any:
    given = config.getoption(f"leasekeeper_{name}")
    return given if given is not None else config.getini(f"leasekeeper_{name}") or None
