"""The seal against a real browser: closing keeps it, opening breaks it, and company is noticed."""

from pathlib import Path

import pytest

from leasekeeper.browsers.finding import find_browser
from leasekeeper.browsers.keeper.directory import locked_database
from leasekeeper.browsers.keeper.seal import fingerprint
from leasekeeper.browsers.profile_directory import Condition, accept_changes, claim_directory, inspect
from leasekeeper.errors import Fail
from tests.browsers.sites import answer, browser, gone, open_page, serving


def condition(directory: Path) -> Condition:
    return inspect(directory, engine=find_browser().engine).condition


async def locked(directory: Path) -> None:
    """Until an open browser has locked one of its databases: it opens them beside its first page."""
    while locked_database(str(directory)) is None:
        pass


async def test_a_close_is_sealed_and_a_visit_by_hand_breaks_the_seal(tmp_path: Path) -> None:
    directory = claim_directory(tmp_path / "p")
    assert condition(directory) is Condition.NEW
    async with serving(answer()) as port:
        async with browser(directory) as context:
            await open_page(context, f"http://127.0.0.1:{port}/")
        await gone(directory)
        assert condition(directory) is Condition.ADOPTED
        accept_changes(directory, token=1, run_id="run_1")
        found = inspect(directory, engine=find_browser().engine)
        assert (found.condition, found.engine) == (Condition.SEALED, find_browser().engine)
        async with browser(directory):
            pass
        await gone(directory)
    assert condition(directory) is Condition.CHANGED


async def test_a_browser_of_somebody_else_is_noticed_before_the_launch(tmp_path: Path) -> None:
    directory = claim_directory(tmp_path / "p")
    async with browser(directory):
        with pytest.raises(Fail) as raised:
            condition(directory)
    await gone(directory)
    assert raised.value.reason == "PROFILE_IN_USE_ELSEWHERE"
    assert condition(directory) is Condition.ADOPTED


async def test_a_live_browser_has_its_databases_locked(tmp_path: Path) -> None:
    directory = claim_directory(tmp_path / "p")
    async with browser(directory):
        await locked(directory)
    await gone(directory)
    assert locked_database(str(directory)) is None


async def test_a_real_profile_has_the_files_of_the_fingerprint(tmp_path: Path) -> None:
    directory = claim_directory(tmp_path / "p")
    async with serving(answer()) as port, browser(directory) as context:
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        await page.evaluate("document.cookie = 'a=b; max-age=1000'; localStorage.a = 1")
        await page.evaluate("new Promise(done => { indexedDB.open('shop').onsuccess = () => done(true) })")
    await gone(directory)
    seen = fingerprint(str(directory))
    assert {"Local State", "Last Version", "Default/Preferences", "Default/Web Data"} <= set(seen)
    assert {"Default/Cookies", "Default/Network/Cookies"} & set(seen)
    assert {"Default/Local Storage/leveldb", "Default/IndexedDB"} <= set(seen)
    inspect(directory, engine=find_browser().engine)
