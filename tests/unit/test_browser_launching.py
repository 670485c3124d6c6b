"""Launch options as data: what reaches the browser, and what is refused. What pages see is in tests/browsers."""

import json
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.browsers.keeper.directory import forbid_debugging, forget_tabs
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.launching import launch_options
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.ids import AccountId, ProfileId, ProxyId
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError

LOGIN = Credentials(username="user", password="hunter-2-secret")  # noqa: S106 - nobody's password


def made(run_mode: RunMode = RunMode.HEADLESS, **changes: Any) -> dict[str, Any]:
    settings = {name: changes.pop(name) for name in ("language", "timezone", "window") if name in changes}
    arguments: dict[str, Any] = {"environ": {"PATH": "/bin"}, "root": False, **changes}
    return launch_options(
        Profile(profile_id=ProfileId("p"), account_id=AccountId("a"), **settings),
        directory=Path("/data/p"),
        executable=Path("/data/bin/keeper"),
        run_mode=run_mode,
        **arguments,
    )


def test_the_keeper_is_what_is_started_on_the_profiles_directory() -> None:
    options = made()
    assert (options["executable_path"], options["user_data_dir"]) == ("/data/bin/keeper", "/data/p")


def test_headless_is_the_new_headless() -> None:
    options = made()
    assert options["headless"] is True
    assert "--headless=new" in options["args"]


def test_a_visible_browser_has_a_window_that_a_person_may_resize() -> None:
    options = made(RunMode.VISIBLE, window="1280x800")
    assert (options["headless"], options["no_viewport"]) == (False, True)
    assert "viewport" not in options
    assert "--window-size=1280,800" in options["args"]
    assert not any(arg.startswith("--headless") for arg in options["args"])


def test_the_profiles_environment_is_the_browsers() -> None:
    options = made(language="de-AT", timezone="Asia/Tokyo", window="1280x800")
    assert (options["locale"], options["timezone_id"]) == ("de-AT", "Asia/Tokyo")
    assert options["viewport"] == {"width": 1280, "height": 800}
    assert options["env"]["TZ"] == "Asia/Tokyo"


def test_a_profile_that_says_nothing_leaves_it_to_the_browser() -> None:
    options = made()
    assert not {"locale", "timezone_id", "viewport", "proxy", "downloads_path"} & set(options)


def test_the_sandbox_is_on_unless_root_cannot_have_it() -> None:
    assert made(root=False)["chromium_sandbox"] is True
    assert made(root=True)["chromium_sandbox"] is False


def test_a_proxys_password_is_in_no_argument_and_no_environment() -> None:
    options = made(proxy=Proxy(proxy_id=ProxyId("x"), server="http://proxy.test:8080"), credentials=LOGIN)
    assert options["proxy"] == {
        "server": "http://proxy.test:8080",
        "username": "user",
        "password": "hunter-2-secret",
    }
    assert "hunter-2-secret" not in str([options["args"], options["env"]])


def test_a_socks_proxy_with_a_password_is_refused_in_words() -> None:
    proxy = Proxy(proxy_id=ProxyId("x"), server="socks5://proxy.test:1080")
    assert made(proxy=proxy)["proxy"] == {"server": "socks5://proxy.test:1080"}
    with pytest.raises(InputError, match="Chromium cannot log in to a SOCKS proxy"):
        made(proxy=proxy, credentials=LOGIN)


def test_the_browser_gets_what_it_needs_of_the_environment_and_no_more() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/home",
        "DISPLAY": ":1",
        "LC_ALL": "C.UTF-8",
        "LEASEKEEPER_STORE": "postgresql://user:password@db/x",
        "PROXY_LOGIN": "user:password",
        "HTTPS_PROXY": "http://elsewhere",
        "LD_PRELOAD": "/x.so",
        "TZ": "UTC",
    }
    env = made(environ=environ, extra_env={"LEASEKEEPER_KEEPER": "/runs/r/keeper.json"})["env"]
    assert set(env) == {"PATH", "HOME", "DISPLAY", "LC_ALL", "LEASEKEEPER_KEEPER"}


@pytest.mark.parametrize(
    "arg",
    [
        "--",
        "--remote-debugging-port=9222",
        "--user-data-dir=/x",
        "--proxy-server=x:1",
        "--headless",
        "--incognito",
        "shop.test",
    ],
)
def test_arguments_that_would_go_around_the_lease_are_refused(arg: str) -> None:
    with pytest.raises(InputError, match="is set by Leasekeeper or would go around it"):
        made(extra_args=["--mute-audio", arg])


def test_the_folder_of_the_directory_is_always_the_same() -> None:
    assert "--profile-directory=Default" in made()["args"]
    with pytest.raises(InputError):
        made(extra_args=["--profile-directory=Profile 1"])


def test_other_arguments_are_passed_on() -> None:
    assert "--force-dark-mode" in made(extra_args=["--force-dark-mode"])["args"]


def test_a_window_that_is_no_size_is_refused() -> None:
    with pytest.raises(InputError, match="must be a size as 1280x800"):
        made(window="big")


def test_signals_are_the_workers_business() -> None:
    options = made()
    assert not any(options[f"handle_{name}"] for name in ("sigint", "sigterm", "sighup"))


def test_only_open_tabs_are_forgotten(tmp_path: Path) -> None:
    sessions = tmp_path / "Default" / "Sessions"
    sessions.mkdir(parents=True)
    for path in (sessions / "Session_1", sessions / "Tabs_1", tmp_path / "Default" / "Cookies"):
        path.write_text("x")
    forget_tabs(str(tmp_path))
    forget_tabs(str(tmp_path))
    forget_tabs(str(tmp_path / "new"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["Cookies"]


def test_tabs_are_not_searched_for_behind_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.write_text("x")
    (tmp_path / "profile" / "Default").mkdir(parents=True)
    (tmp_path / "profile" / "Default" / "Sessions").symlink_to(precious.parent)
    forget_tabs(str(tmp_path / "profile"))
    assert precious.exists()


def test_remote_debugging_is_taken_back_and_all_else_stays(tmp_path: Path) -> None:
    state = tmp_path / "Local State"
    forbid_debugging(str(tmp_path))
    assert not state.exists()
    for text in ('{"a":[1]}', "not JSON"):
        state.write_text(text)
        forbid_debugging(str(tmp_path))
        assert state.read_text() == text
    state.write_text('{"a":"ä","devtools":{"remote_debugging":{"user-enabled":true,"b":2}}}')
    forbid_debugging(str(tmp_path))
    assert json.loads(state.read_text()) == {"a": "ä", "devtools": {"remote_debugging": {"b": 2}}}
    state.write_text('{"devtools":{"remote_debugging":{"user-enabled":true}')
    with pytest.raises(Refused, match="cannot be taken back"):
        forbid_debugging(str(tmp_path))
