"""One browser and one furnished store for each module of tests: pages are cheap, starting Chromium is not.

Not for the whole session: Playwright's own loop would be in the way of tests of other folders in the same process.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from leasekeeper.browsers.finding import find_browser
from leasekeeper.encryption import new_key
from tests.dashboard.stage import Eyes, Stage, furnish, furnish_with_markup, looking
from tests.serving import ServerThread

FLAGS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_browser().path, args=["--no-sandbox", *FLAGS])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def empty(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A store in which nothing has happened yet."""
    yield from _stage(server, tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def stage(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A store with a fleet and some history; the tests of a module share it."""
    for made in _stage(server, tmp_path_factory.mktemp("stage")):
        furnish(made)
        yield made


def _stage(server: ServerThread, folder: Path) -> Iterator[Stage]:
    url, data = f"sqlite:///{folder}/leasekeeper.db", str(folder / "data")
    served = server.serve(url, data_dir=data, secret_key=new_key())
    yield Stage(served, folder / "data")
    served.close()


@pytest.fixture(scope="module")
def hostile(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A store whose every free text is markup that would run if a page showed it as markup."""
    for made in _stage(server, tmp_path_factory.mktemp("hostile")):
        furnish_with_markup(made)
        yield made


@pytest.fixture
def eyes(browser: Browser, stage: Stage) -> Iterator[Eyes]:
    """An admin who looks at the furnished store."""
    with looking(browser, stage.served.url, stage.served.token) as found:
        yield found
