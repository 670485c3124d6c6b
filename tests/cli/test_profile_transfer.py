"""`leasekeeper profiles import` and `export`: whole or not at all, never into a profile that somebody has."""

import asyncio
import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from leasekeeper.browsers.keeper.seal import seal_directory
from leasekeeper.browsers.profile_directory import Condition, inspect
from leasekeeper.encryption import new_key
from leasekeeper.snapshots.trimming import size_of
from tests.browsers.sites import answer, browser, gone, open_page, serving
from tests.cli.workplace import Workplace
from tests.unit.used_profiles import make_used

READ = """async () => ({
  cookie: document.cookie,
  stored: localStorage.getItem('who'),
  database: (await indexedDB.databases()).map(each => each.name),
  worker: (await navigator.serviceWorker.getRegistrations()).length,
})"""
WRITE = """async () => {
  document.cookie = 'who=ann; max-age=99999'; localStorage.setItem('who', 'ann');
  await new Promise(done => { indexedDB.open('orders', 1).onsuccess = done });
  await navigator.serviceWorker.register('/worker.js');
  await navigator.serviceWorker.ready;
}"""
ANN = {"cookie": "who=ann", "stored": "ann", "database": ["orders"], "worker": 1}


def used(place: Workplace, name: str = "chrome") -> Path:
    """A directory as a browser leaves it, without a browser."""
    directory = place.directory / name
    make_used(directory)
    (directory / "Default/Cookies").unlink()
    with sqlite3.connect(directory / "Default/Cookies") as database:
        database.execute("CREATE TABLE cookies (name TEXT, encrypted_value BLOB)")
    database.close()
    return directory


def add_cookie(directory: Path, value: bytes) -> None:
    with sqlite3.connect(directory / "Default/Cookies") as database:
        database.execute("INSERT INTO cookies VALUES ('sid', ?)", (value,))
    database.close()


def as_on_linux(value: bytes, password: bytes = b"peanuts", rounds: int = 1) -> bytes:
    """A value as Chromium encrypts it on Linux; with another password and 1003 rounds, as on macOS."""
    key = hashlib.pbkdf2_hmac("sha1", password, b"saltysalt", rounds, 16)
    padding = 16 - len(value) % 16
    sealing = Cipher(algorithms.AES(key), modes.CBC(b" " * 16)).encryptor()
    return b"v10" + sealing.update(value + bytes([padding]) * padding) + sealing.finalize()


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEASEKEEPER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def home_of(place: Workplace, profile: str = "shop_de_main") -> Path:
    return place.directory / "data" / "profiles" / profile


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".leasekeeper" not in path.parts
    }


def lane(place: Workplace, profile: str = "shop_de_main") -> Any:
    return place.json("profiles", "show", profile)["lane"]


def left_over(place: Workplace) -> list[str]:
    folder = place.directory / "data" / "profiles"
    return [path.name for path in folder.iterdir() if path.name.startswith(".")] if folder.exists() else []


@pytest.mark.browser
def test_a_login_made_elsewhere_is_there_in_a_real_browser(place: Workplace) -> None:
    """Cookie, localStorage, IndexedDB and service worker: imported, exported, imported again, read by a browser."""
    chrome = place.directory / "chrome"

    async def write(port: int) -> None:
        async with browser(chrome) as context:
            page = await open_page(context, f"http://localhost:{port}/")
            await page.evaluate(WRITE)
        await gone(chrome)

    async def read(port: int, directory: Path) -> Any:
        async with browser(directory) as context:
            page = await open_page(context, f"http://localhost:{port}/")
            return await page.evaluate(READ)

    async def work() -> Any:
        async with serving(answer("onfetch = () => {}", headers="Content-Type: text/javascript\r\n")) as port:
            await write(port)
            before = files_of(chrome)
            text = await asyncio.to_thread(place.text, "profiles", "import", str(chrome), "--account", "shop_de")
            assert files_of(chrome) == before
            assert "imported" in text
            archive = str(place.directory / "taken.zip")
            await asyncio.to_thread(place.text, "profiles", "export", "shop_de_main", archive)
            await asyncio.to_thread(place.text, "profiles", "import", archive, "--account", "shop_us")
            return [await read(port, home_of(place, each)) for each in ("shop_de_main", "shop_us_main")]

    assert asyncio.run(work()) == [ANN, ANN]


def test_an_imported_profile_is_sealed_at_home_here_and_available(place: Workplace) -> None:
    chrome = used(place)
    done = place.json("profiles", "import", str(chrome), "--account", "shop_de", "--by", "ann")
    assert done["profile_state"] == "available"
    assert inspect(home_of(place), engine=200).condition is Condition.SEALED
    assert home_of(place).stat().st_mode & 0o777 == 0o700
    found = lane(place)
    assert (found["state"], found["engine"], found["clean"]) == ("available", 150, True)
    assert found["home"] == (place.directory / "data/machine").read_text().strip()
    (event,) = place.json("events", "--type", "profile_imported")["items"]
    assert (event["actor"], event["data"]["source"], event["data"]["engine"]) == ("ann", str(chrome), 150)
    assert left_over(place) == []


def test_a_session_that_is_there_is_replaced_only_if_said(place: Workplace) -> None:
    chrome = used(place)
    place.text("profiles", "import", str(chrome), "--account", "shop_de")
    add_cookie(chrome, as_on_linux(b"new"))
    before = files_of(home_of(place))
    assert "--replace" in place.fails(4, "profiles", "import", str(chrome), "--account", "shop_de")
    assert files_of(home_of(place)) == before
    assert inspect(home_of(place), engine=200).condition is Condition.SEALED
    place.text("profiles", "import", str(chrome), "--account", "shop_de", "--replace")
    assert files_of(home_of(place)) == {name: data for name, data in files_of(chrome).items() if "Cache" not in name}
    assert left_over(place) == []


@pytest.mark.parametrize(("mark", "says"), [(b"v11", "keyring"), (b"v20", "Windows")])
def test_cookies_that_only_another_keyring_opens_are_refused(place: Workplace, mark: bytes, says: str) -> None:
    chrome = used(place)
    add_cookie(chrome, as_on_linux(b"fine"))
    add_cookie(chrome, mark + b"secret-of-the-keyring")
    text = place.fails(2, "profiles", "import", str(chrome), "--account", "shop_de")
    assert says in text
    assert "storage_state" in text
    assert "secret-of-the-keyring" not in text
    assert not (home_of(place) / "Default").exists()
    assert left_over(place) == []
    assert lane(place)["state"] == "available"


def test_cookies_of_a_mac_are_refused_although_they_are_marked_as_those_of_linux(place: Workplace) -> None:
    chrome = used(place)
    for number in range(4):
        add_cookie(chrome, as_on_linux(b"session %d" % number, b"of the keychain", 1003))
    assert "keychain" in place.fails(2, "profiles", "import", str(chrome), "--account", "shop_de")
    assert left_over(place) == []
    # One value that cannot be read among others that can costs that one.
    chrome = used(place, "linux")
    for value in (as_on_linux(b"a"), as_on_linux(b"b", b""), b"v10broken"):
        add_cookie(chrome, value)
    place.text("profiles", "import", str(chrome), "--account", "shop_de")


def test_a_windows_key_in_local_state_is_refused(place: Workplace) -> None:
    chrome = used(place)
    (chrome / "Local State").write_text(json.dumps({"os_crypt": {"encrypted_key": "RFBBUEk"}}))
    assert "Windows" in place.fails(2, "profiles", "import", str(chrome), "--account", "shop_de")


def test_a_profile_newer_than_the_browser_is_refused(place: Workplace) -> None:
    chrome = used(place)
    (chrome / "Last Version").write_text("9999.0")
    assert "9999" in place.fails(2, "profiles", "import", str(chrome), "--account", "shop_de")
    assert not (home_of(place) / "Default").exists()


def test_nothing_is_imported_into_a_profile_that_somebody_has(place: Workplace) -> None:
    chrome = used(place)
    grant = place.lease("shop_de_main")
    assert "lease" in place.fails(4, "profiles", "import", str(chrome), "--account", "shop_de")
    assert "lease" in place.fails(4, "profiles", "export", "shop_de_main", str(place.directory / "x.zip"))
    assert not home_of(place).exists()
    place.end(grant)
    place.text("profiles", "import", str(chrome), "--account", "shop_de")


def test_a_profile_in_review_can_get_a_new_session_and_stays_in_review(place: Workplace) -> None:
    place.text("profiles", "review", "shop_de_main", "--note", "logged out")
    done = place.json("profiles", "import", str(used(place)), "--account", "shop_de")
    assert done["profile_state"] == "review_required"
    assert (home_of(place) / "Default/Cookies").exists()


def test_a_directory_that_is_open_is_refused(place: Workplace) -> None:
    chrome = place.directory / "chrome"

    async def work() -> str:
        async with browser(chrome) as context:
            await context.new_page()
            return await asyncio.to_thread(place.fails, 2, "profiles", "import", str(chrome), "--account", "shop_de")

    assert "close it first" in asyncio.run(work())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.mkdir(), "no user data directory"),
        (lambda path: path.write_text("hello"), "storage state"),
        (lambda path: path.write_text('{"cookies": 1}'), "storage state"),
        (lambda path: path.write_text(state_of(cookie(path=None))), "cookie 1 of 1 has no path"),
        (lambda path: path.write_text(state_of(cookie(), origins=[{"origin": "shop"}])), "origin 1 of 1 has no origin"),
        (lambda _path: None, "there is no"),
    ],
)
def test_what_is_no_profile_is_refused_before_anything_is_leased(place: Workplace, make: Any, says: str) -> None:
    make(place.directory / "thing")
    assert says in place.fails(2, "profiles", "import", str(place.directory / "thing"), "--account", "shop_de")
    assert place.json("runs")["items"] == []


def test_one_profile_inside_a_user_data_directory_names_the_folder_around_it(place: Workplace) -> None:
    chrome = used(place)
    text = place.fails(2, "profiles", "import", str(chrome / "Default"), "--account", "shop_de")
    assert str(chrome) in text


def test_an_account_with_no_or_several_profiles_says_what_there_is(place: Workplace) -> None:
    chrome = str(used(place))
    assert "twin_a, twin_b" in place.fails(2, "profiles", "import", chrome, "--account", "twins")
    assert "fleet.yaml" in place.fails(2, "profiles", "import", chrome, "--account", "nobody")
    place.text("profiles", "import", chrome, "--account", "twins", "--profile", "twin_b")
    assert (home_of(place, "twin_b") / "Default").is_dir()


def zipped(target: Path, members: dict[str, bytes]) -> str:
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return str(target)


def test_a_zip_with_a_folder_around_the_profile_is_taken(place: Workplace) -> None:
    members = {f"my chrome/{name}": data for name, data in files_of(used(place)).items()}
    archive = zipped(place.directory / "a.zip", members)
    place.text("profiles", "import", archive, "--account", "shop_de")
    assert (home_of(place) / "Default/Cookies").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_zip_that_leads_elsewhere_is_refused(place: Workplace, name: str) -> None:
    archive = zipped(place.directory / "a.zip", {**files_of(used(place)), name: b"x"})
    assert "leads out" in place.fails(2, "profiles", "import", archive, "--account", "shop_de")
    assert not list(place.directory.rglob("evil"))


def test_an_export_is_the_owners_alone_and_never_over_a_file(place: Workplace) -> None:
    place.text("profiles", "import", str(used(place)), "--account", "shop_de")
    target = place.directory / "taken.zip"
    result = place.cli("profiles", "export", "shop_de_main", str(target), "--by", "ann")
    assert "login" in result.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(target) as archive:
        assert set(archive.namelist()) == set(files_of(home_of(place)))
    assert "exists" in place.fails(2, "profiles", "export", "shop_de_main", str(target))
    (event,) = place.json("events", "--type", "profile_exported")["items"]
    assert (event["actor"], event["profile_id"]) == ("ann", "shop_de_main")
    assert inspect(home_of(place), engine=200).condition is Condition.SEALED


def test_an_encrypted_export_is_worth_nothing_without_its_key(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    chrome, target = used(place), place.directory / "taken.profile"
    add_cookie(chrome, as_on_linux(b"the-login"))
    place.text("profiles", "import", str(chrome), "--account", "shop_de")
    before = files_of(home_of(place))
    export = ("profiles", "export", "shop_de_main", str(target), "--encrypted")
    assert "LEASEKEEPER_SECRET_KEY" in place.fails(2, *export)
    assert not target.exists()
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", new_key())
    assert place.cli(*export).stderr == ""
    assert as_on_linux(b"the-login") not in target.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o600
    assert "one of shop_de_main" in place.fails(2, "profiles", "import", str(target), "--account", "shop_us")
    (home_of(place) / "Default/Cookies").write_bytes(b"spoiled")
    place.text("profiles", "import", str(target), "--account", "shop_de", "--replace")
    assert files_of(home_of(place)) == before
    again = ("profiles", "import", str(target), "--account", "shop_de", "--replace")
    whole = target.read_bytes()
    target.write_bytes(whole[:-1])
    assert "end is missing" in place.fails(2, *again)
    target.write_bytes(whole)
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", new_key())
    assert "not set here" in place.fails(2, *again)
    assert files_of(home_of(place)) == before
    assert left_over(place) == []


def test_a_trimmed_profile_is_smaller_in_lists_and_as_its_last_run_left_it(place: Workplace) -> None:
    place.text("profiles", "import", str(used(place)), "--account", "shop_de")
    for name in ("Default/Cache/Cache_Data/f_1", "Default/Local Storage/leveldb/LOG"):
        path = home_of(place) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 3_000_000)
    assert seal_directory(str(home_of(place)), 1)
    before = size_of(home_of(place))
    assert "3.0 MB" in place.text("profiles", "trim", "shop_de_main")
    assert lane(place)["size_bytes"] == size_of(home_of(place)) == before - 3_000_000
    assert lane(place)["state"] == "available"
    assert inspect(home_of(place), engine=200).condition is Condition.SEALED


def test_an_empty_profile_has_nothing_to_export(place: Workplace) -> None:
    target = place.directory / "taken.zip"
    assert "nothing to export" in place.fails(2, "profiles", "export", "shop_de_main", str(target))
    assert not target.exists()
    assert lane(place)["state"] == "available"


def start_child(place: Workplace, chrome: Path, at: str) -> subprocess.CompletedProcess[str]:
    """An import by a process of its own, which ends as `at` says."""
    command = [
        sys.executable,
        "-m",
        "tests.cli.dying_import",
        place.url,
        str(place.directory / "data"),
        str(chrome),
        at,
    ]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("at", ["interrupt", pytest.param("filled", marks=pytest.mark.browser)])
def test_ctrl_c_leaves_the_profile_as_it_was(place: Workplace, at: str) -> None:
    chrome, state = used(place), place.directory / "state.json"
    place.text("profiles", "import", str(chrome), "--account", "shop_de")
    before = files_of(home_of(place))
    add_cookie(chrome, as_on_linux(b"new"))
    state.write_text(state_of(cookie()))
    ended = start_child(place, state if at == "filled" else chrome, at)
    assert ended.returncode == 130, ended.stderr
    assert files_of(home_of(place)) == before
    assert left_over(place) == []
    found = lane(place)
    assert (found["state"], found["clean"]) == ("available", True)
    assert inspect(home_of(place), engine=200).condition is Condition.SEALED


@pytest.mark.parametrize("at", ["copied", "exchange", "exchanged"])
def test_a_killed_import_leaves_the_old_session_or_the_new_one_whole(place: Workplace, at: str) -> None:
    chrome = used(place)
    place.text("profiles", "import", str(chrome), "--account", "shop_de")
    before = files_of(home_of(place))
    add_cookie(chrome, as_on_linux(b"new"))
    ended = start_child(place, chrome, at)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert files_of(home_of(place)) == (files_of(chrome) if at == "exchanged" else before)
    assert left_over(place) == [".shop_de_main.incoming"]
    assert lane(place)["state"] == "leased"  # until its lease expires: then its release policy decides


def cookie(**changes: Any) -> dict[str, Any]:
    sid = {"name": "who", "value": "ann-s3cret", "domain": "localhost", "path": "/", "expires": -1, **changes}
    return {name: value for name, value in sid.items() if value is not None}


def state_of(*cookies: dict[str, Any], origins: list[dict[str, Any]] | None = None) -> str:
    return json.dumps({"cookies": cookies, "origins": origins or []})


DATABASE = {"autoIncrement": False, "records": [{"key": 1, "value": "ann"}], "indexes": []}
STORED = """async () => [
  document.cookie, localStorage.getItem('who'), (await indexedDB.databases()).map(each => each.name)]"""


@pytest.mark.browser
def test_a_storage_state_replaces_a_session_only_if_said_and_only_as_a_whole(place: Workplace) -> None:
    """Cookies and localStorage into an empty profile; then others with IndexedDB, of which one is not taken."""
    state = place.directory / "state.json"
    command = ("profiles", "import", str(state), "--account", "shop_de")

    def origin(port: int, who: str, **more: Any) -> dict[str, Any]:
        pairs = [{"name": "who", "value": who}]
        return {"origin": f"http://localhost:{port}", "localStorage": pairs, **more}

    async def read(port: int) -> Any:
        async with browser(home_of(place)) as context:
            return await (await open_page(context, f"http://localhost:{port}/")).evaluate(STORED)

    async def work() -> tuple[Any, Any]:
        async with serving(answer()) as port:
            state.write_text(state_of(cookie(), origins=[origin(port, "ann")]))
            text = await asyncio.to_thread(place.text, *command)
            assert "1 cookies, storage of 1 origins" in text
            assert "s3cret" not in text
            assert inspect(home_of(place), engine=200).condition is Condition.SEALED
            first, before = await read(port), files_of(home_of(place))
            assert "--replace" in await asyncio.to_thread(place.fails, 4, *command)
            # A cookie that no browser takes, after one that it takes.
            state.write_text(state_of(cookie(), cookie(name="__Host-x", domain="shop.test")))
            refused = await asyncio.to_thread(place.cli, *command, "--replace")
            assert "cookie __Host-x of shop.test" in refused.stderr
            assert "s3cret" not in refused.stderr
            assert (files_of(home_of(place)), left_over(place)) == (before, [])
            database = {"name": "orders", "version": 1, "stores": [{"name": "list", **DATABASE}]}
            state.write_text(state_of(cookie(value="bob"), origins=[origin(port, "bob", indexedDB=[database])]))
            await asyncio.to_thread(place.text, *command, "--replace")
            return first, await read(port)

    assert asyncio.run(work()) == (["who=ann-s3cret", "ann", []], ["who=bob", "bob", ["orders"]])
    assert (lane(place)["state"], left_over(place)) == ("available", [])
    assert len(place.json("events", "--type", "profile_imported")["items"]) == 2


def test_a_session_is_taken_to_another_machine_as_the_guide_says(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two data directories are two machines: what is at home on one is refused on the other, by every command."""
    chrome, archive = used(place), str(place.directory / "taken.zip")
    place.text("profiles", "import", str(chrome), "--account", "shop_de")
    place.text("profiles", "export", "shop_de_main", archive)
    before, here = files_of(home_of(place)), lane(place)["home"]
    monkeypatch.setenv("LEASEKEEPER_DATA_DIR", str(place.directory / "elsewhere"))
    for command in (
        ("profiles", "export", "shop_de_main", str(place.directory / "other.zip")),
        ("profiles", "import", archive, "--account", "shop_de", "--replace"),
    ):
        assert here in place.fails(4, *command)
    result = place.cli("open", "shop_de_main")
    assert (result.exit_code, here in result.stderr) == (4, True)
    assert not (place.directory / "elsewhere/profiles/shop_de_main").exists()
    place.text("profiles", "move", "shop_de_main", "--to", "here", "--note", "new machine")
    place.text("profiles", "import", archive, "--account", "shop_de")
    there = (place.directory / "elsewhere/machine").read_text().strip()
    assert (lane(place)["home"], lane(place)["state"]) == (there, "available")
    assert files_of(place.directory / "elsewhere/profiles/shop_de_main") == before
    monkeypatch.setenv("LEASEKEEPER_DATA_DIR", str(place.directory / "data"))
    assert there in place.fails(4, "profiles", "export", "shop_de_main", str(place.directory / "late.zip"))
