"""Finding a browser: the order, the versions, and the words when there is none."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from leasekeeper.browsers.finding import find_browser, playwright_chromium, version_of
from leasekeeper.errors import BrowserNotFound


def program(path: Path, version: str = "Chromium 140.0.1.2 built on Debian", counter: Path | None = None) -> Path:
    """A program that tells a version, as noisily as Debian's does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = f"echo x >> {counter}\n" if counter else ""
    path.write_text(f"#!/bin/sh\n{count}echo noise >&2\necho '{version}'\n")
    path.chmod(0o755)
    return path


def environ(tmp_path: Path, *names: str) -> dict[str, str]:
    """An environment with these programs and nothing else; Playwright's browsers would be in `cache`."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    for name in names:
        program(tmp_path / "bin" / name)
    return {"PATH": str(tmp_path / "bin"), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "cache")}


def playwrights_own(tmp_path: Path) -> Path:
    spec = find_spec("playwright")
    assert spec is not None
    assert spec.origin is not None
    listed = json.loads((Path(spec.origin).parent / "driver/package/browsers.json").read_text())["browsers"]
    revision = next(each["revision"] for each in listed if each["name"] == "chromium")
    return program(tmp_path / "cache" / f"chromium-{revision}" / "chrome-linux64" / "chrome")


def test_a_real_browser_is_found_with_its_engine() -> None:
    found = find_browser(os.environ.get("LEASEKEEPER_BROWSER"))
    assert found.engine >= 120
    assert found.version.startswith(f"{found.engine}.")


def test_the_order_is_setting_playwright_chromium_chrome(tmp_path: Path) -> None:
    places = environ(tmp_path, "chromium", "google-chrome")
    own, chosen = playwrights_own(tmp_path), program(tmp_path / "chosen")
    assert find_browser(str(chosen), places).path == chosen
    assert find_browser(None, places).path == own
    own.unlink()
    assert find_browser(None, places).path == tmp_path / "bin" / "chromium"
    (tmp_path / "bin" / "chromium").unlink()
    found = find_browser(None, places)
    assert (found.path, found.source, found.engine) == (tmp_path / "bin" / "google-chrome", "google-chrome", 140)


def test_a_setting_may_be_a_name_on_the_path(tmp_path: Path) -> None:
    assert find_browser("brave", environ(tmp_path, "brave")).path == tmp_path / "bin" / "brave"


def test_a_setting_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(BrowserNotFound, match="LEASEKEEPER_BROWSER"):
        find_browser("/nowhere/chromium", environ(tmp_path, "chromium"))


def test_no_browser_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BrowserNotFound, match="playwright install chromium"):
        find_browser(None, environ(tmp_path))


def test_the_headless_shell_is_never_taken(tmp_path: Path) -> None:
    program(tmp_path / "cache" / "chromium_headless_shell-1" / "chrome-linux" / "headless_shell")
    assert playwright_chromium(environ(tmp_path)) is None


@pytest.mark.parametrize("text", ["hello", "", "version one"])
def test_a_program_that_is_no_browser_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrowserNotFound, match="is not Chromium or Chrome"):
        find_browser(str(program(tmp_path / "other", text)), environ(tmp_path))


def test_a_version_is_asked_once_until_the_file_changes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    path = program(tmp_path / "chromium", counter=counter)
    assert [version_of(path), version_of(path)] == ["140.0.1.2"] * 2
    program(path, "Chromium 141.0.1.2 after an upgrade", counter)
    assert version_of(path) == "141.0.1.2"
    assert counter.read_text() == "x\nx\n"


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    find_browser(str(program(tmp_path / "chromium")), environ(tmp_path))
    assert capfd.readouterr() == ("", "")
