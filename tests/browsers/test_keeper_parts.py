"""The keeper's small parts, each alone: what passes through a relay, what is seen of it, who lives in a directory."""

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.directory import clear_singletons
from leasekeeper.browsers.keeper.fast_imports import from_json, to_json
from leasekeeper.browsers.keeper.features import merge_features
from leasekeeper.browsers.keeper.internal_pages import may_open
from leasekeeper.browsers.keeper.orders import Orders, Refused, orders_of
from leasekeeper.browsers.keeper.pages import Pages, plain_url
from leasekeeper.browsers.keeper.processes import has_files_in, is_alive, users_of
from leasekeeper.browsers.keeper.proof import prove
from leasekeeper.browsers.keeper.reached import Channel
from leasekeeper.browsers.keeper.relay import BEGINNING, Flow, Messages
from leasekeeper.browsers.keeper.sharing import Sharing
from leasekeeper.browsers.keeper.watch import Watch


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    ends = (*os.pipe(), *os.pipe())
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        os.close(end)


def orders_in(folder: Path, **changes: Any) -> Orders:
    given: dict[str, Any] = {
        "browser": "/bin/true",
        "user_data_dir": str(folder),
        "profile_id": "p",
        "lease_id": "p:1",
        "token": 1,
        "run_id": "r",
        "folder": str(folder),
        "deadline": math.inf,
        "kill_at": math.inf,
    }
    return Orders(**{**given, **changes})


def test_a_flow_holds_one_piece_and_reads_no_more_until_it_is_written(pipes: tuple[int, int, int, int]) -> None:
    source, writer, reader, sink = pipes
    seen: list[bytes] = []
    flow = Flow(Channel(source), Channel(sink), seen.append)
    block = b"x" * 4096
    total = 0
    for _ in range(200):  # nobody reads at the other end: the flow fills up and stands
        try:
            total += os.write(writer, block)
        except BlockingIOError:
            break
        flow.take()
        flow.give()
    assert total < 10 * 65536
    got = b""
    while len(got) < total:
        try:
            got += os.read(reader, 65536)
        except BlockingIOError:
            flow.take()
            flow.give()
    assert got == b"x" * total
    assert b"".join(seen) == got


def test_a_flow_knows_whether_it_stopped_inside_a_message(pipes: tuple[int, int, int, int]) -> None:
    source, writer, reader, sink = pipes
    flow = Flow(Channel(source), Channel(sink), lambda _: None)
    for content, between in ((b'{"id":1}\0', True), (b'{"id":2}\0{"i', False), (b'd":3}\0', True)):
        os.write(writer, content)
        flow.take()
        flow.give()
        assert flow.between_messages is between
    assert os.read(reader, 100) == b'{"id":1}\0{"id":2}\0{"id":3}\0'


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100_000])
def test_messages_are_cut_the_same_however_they_arrive(size: int) -> None:
    long = b"a" * 70_000 + b"the end"
    stream = b"one\0\0" + long + b"\0last\0rest"
    seen: list[tuple[bytes, bytes]] = []
    messages = Messages(lambda begin, end: seen.append((begin, end)))
    for start in range(0, len(stream), size):
        messages.feed(stream[start : start + size])
    assert [begin for begin, _ in seen] == [b"one", b"", long[:BEGINNING], b"last"]
    assert [end for _, end in seen] == [b"one", b"", long[-128:], b"last"]


def attach(session: str, target: str, url: str, kind: str = "page", parent: str = "") -> bytes:
    info = f'{{"targetId":"{target}","type":"{kind}","url":"{url}"}}'
    outer = f',"sessionId":"{parent}"' if parent else ""
    text = f'{{"method":"Target.attachedToTarget","params":{{"sessionId":"{session}","targetInfo":{info}}}{outer}}}'
    return text.encode() + b"\0"


def command(method: str, session: str = "", params: str = "{}") -> bytes:
    outer = f',"sessionId":"{session}"' if session else ""
    return f'{{"id":1,"method":"{method}","params":{params}{outer}}}'.encode() + b"\0"


def test_commands_are_distinguished_by_the_page_they_go_to() -> None:
    pages = Pages()
    pages.from_browser.feed(attach("S1", "T1", "https://a.test/x?q=1") + attach("S2", "T2", "https://b.test/"))
    pages.from_browser.feed(attach("S3", "T3", "https://frame.test/", kind="iframe", parent="S1"))
    pages.to_browser.feed(command("Page.enable", "S2") + command("Input.dispatchMouseEvent", "S1"))
    assert pages.last_used == "T1"
    pages.to_browser.feed(command("Input.dispatchKeyEvent", "S2"))
    assert (pages.last_used, pages.last_url) == ("T2", "https://b.test/")
    pages.to_browser.feed(command("Input.dispatchMouseEvent", "S3"))
    assert (pages.last_used, pages.last_url) == ("T1", "https://a.test/x")
    moved = (
        b'{"method":"Page.frameNavigated","params":{"frame":{"id":"T1","url":"https://a.test/y#z"}},"sessionId":"S1"}\0'
    )
    pages.from_browser.feed(moved)
    assert pages.last_url == "https://a.test/y"
    pages.to_browser.feed(command("Target.detachFromTarget", params='{"sessionId":"S2"}'))
    assert pages.commands[-1][1:] == ("Target.detachFromTarget", "")


def test_a_closed_page_is_forgotten_but_not_the_last() -> None:
    pages = Pages()
    pages.from_browser.feed(attach("S1", "T1", "https://a.test/") + attach("S2", "T2", "https://b.test/"))
    pages.to_browser.feed(command("Input.dispatchMouseEvent", "S2"))
    for session, left in (("S2", "https://a.test/"), ("S1", "https://a.test/")):
        gone = f'{{"method":"Target.detachedFromTarget","params":{{"sessionId":"{session}"}}}}'
        pages.from_browser.feed(gone.encode() + b"\0")
        assert pages.last_url == left


def test_the_page_that_was_used_before_a_closed_one_is_the_last_used() -> None:
    pages = Pages()
    for number in (1, 2, 3):
        pages.from_browser.feed(attach(f"S{number}", f"T{number}", f"https://{number}.test/"))
    pages.to_browser.feed(command("Page.navigate", "S1") + command("Page.navigate", "S3"))
    pages.from_browser.feed(b'{"method":"Target.detachedFromTarget","params":{"sessionId":"S3"}}\0')
    assert (pages.last_used, pages.last_url) == ("T1", "https://1.test/")


@pytest.mark.parametrize("number", [None, True, "5", math.nan])
def test_orders_without_a_real_deadline_are_refused(number: object) -> None:
    good = dict.fromkeys(("browser", "user_data_dir", "profile_id", "lease_id", "run_id", "control", "secret"), "x")
    orders: dict[str, object] = {**good, "folder": "x", "version": 1, "token": 1, "worker_pid": 1, "kill_at": math.inf}
    orders |= {"close_seconds": 5, "max_message_bytes": 9, "interrupt_seconds": 5.0, "deadline": 1}
    assert orders_of(orders).kill_at == math.inf
    with pytest.raises(Refused, match="deadline"):
        orders_of({**orders, "deadline": number})


def test_a_payload_that_looks_like_a_command_is_not_taken_for_one() -> None:
    pages = Pages()
    pages.to_browser.feed(command("Runtime.evaluate", params='{"expression":"{\\"method\\":\\"Browser.close\\"}"}'))
    assert not pages.asked_to_close
    pages.to_browser.feed(b'{"method":"Browser.close","id":-9999,"params":{}}\0')
    assert pages.asked_to_close


def test_events_that_make_no_sense_are_passed_over() -> None:
    pages = Pages()
    pages.from_browser.feed(b'{"method":"Target.attachedToTarget","params":{}}\0{"method":"Target.\0')
    pages.from_browser.feed(b'{"method":"Target.attachedToTarget","params":{"targetInfo":3,"sessionId":4}}\0')
    pages.from_browser.feed(
        attach("S1", "T1", "https://a.test/" + "p" * 100_000) + attach("S2", "T2", "https://b.test/")
    )
    assert pages.last_url == "https://b.test/"


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://ada:secret@shop.test:8443/orders?token=1#part", "https://shop.test:8443/orders"),
        ("https://shop.test?token=1", "https://shop.test"),
        ("https://shop.test/a@b/c", "https://shop.test/a@b/c"),
        ("data:text/html,secret", "data:"),
        ("JavaScript:alert('secret')", "javascript:"),
        ("view-source:data:text/html,secret", "view-source:data:"),
        ("about:blank", "about:blank"),
        ("chrome-error://chromewebdata/", "chrome-error://chromewebdata/"),
        ("file:///tmp/page.html#x", "file:///tmp/page.html"),
        ("blob:https://ada:secret@shop.test/1-2?x", "blob:https://shop.test/1-2"),
        ("", ""),
    ],
)
def test_addresses_lose_what_must_not_be_stored(url: str, plain: str) -> None:
    assert plain_url(url) == plain


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://shop.test/#chrome://x", True),
        ("data:text/html,chrome://x", True),
        ("about:blank#x", True),
        ("view-source:https://shop.test", True),
        ("chrome://newtab/", True),
        ("shop.test", True),
        ("/path?a=chrome://x", True),
        ("", True),
        (None, True),
        ("chrome://extensions", False),
        ("CHROME:inspect/#remote-debugging", False),
        (" \x00chr\tome://version", False),
        ("chrome://newtab@extensions/", False),
        ("view-source:chrome://version", False),
        ("blob:chrome://extensions/1", False),
        ("chrome-untrusted://print", False),
        ("devtools://devtools/bundled/inspector.html", False),
        ("about:version", False),
        ("brave://settings", False),
    ],
)
def test_clients_go_to_pages_of_sites_and_files_only(url: str | None, allowed: bool) -> None:
    assert may_open(url) is allowed


@pytest.mark.parametrize("form", ["arguments", "one string"])
def test_the_users_of_a_directory_are_found_in_both_forms_of_a_command_line(tmp_path: Path, form: str) -> None:
    directory = tmp_path / "a profile"
    directory.mkdir()
    flags = ["--type=x", f"--user-data-dir={directory}", "--more"]
    other = [f"--user-data-dir={directory}2"]
    program = [sys.executable, "-c", "print(flush=True); input()"]
    given = flags if form == "arguments" else [" ".join(flags)]
    with (
        subprocess.Popen([*program, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user,
        subprocess.Popen([*program, *other], stdin=subprocess.PIPE),
    ):
        assert user.stdout is not None
        assert user.stdout.readline()  # a program that is only being started has no command line yet
        assert users_of(str(directory)) == [user.pid]
        assert is_alive(user.pid)
    assert not is_alive(user.pid)


def test_open_files_show_who_uses_a_directory(tmp_path: Path) -> None:
    assert not has_files_in(os.getpid(), str(tmp_path))
    with (tmp_path / "file").open("w"):
        assert has_files_in(os.getpid(), str(tmp_path))
    assert not has_files_in(4_000_000, str(tmp_path))


@pytest.mark.parametrize(
    ("folder", "name", "listens", "left"),
    [
        ("org.chromium.Chromium.", "SingletonSocket", False, False),
        (".com.google.Chrome.", "SingletonSocket", False, False),
        ("org.chromium.Chromium.", "SingletonSocket", True, True),
        ("org.chromium.Chromium.", "other.sock", False, True),
        ("service.", "SingletonSocket", False, True),
    ],
)
def test_of_sockets_only_the_dead_ones_of_browsers_are_removed(
    tmp_path: Path, folder: str, name: str, listens: bool, left: bool
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=folder, ignore_cleanup_errors=True) as place,
        socket.socket(socket.AF_UNIX) as server,
    ):
        path = Path(place) / name
        server.bind(str(path))
        if listens:
            server.listen()
        (Path(place) / "SingletonCookie").symlink_to("123")
        (tmp_path / "SingletonSocket").symlink_to(path)
        clear_singletons(str(tmp_path))
        assert Path(place).exists() is left
        assert path.exists() is left
    assert not (tmp_path / "SingletonSocket").is_symlink()


def test_the_lock_of_a_browser_that_has_a_database_open_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "Default" / "Session Storage" / "LOCK"
    database.parent.mkdir(parents=True)
    database.touch()
    (tmp_path / "SingletonLock").symlink_to("container-1")
    locks = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    program = [sys.executable, "-c", locks, str(database)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        clear_singletons(str(tmp_path))
        assert (tmp_path / "SingletonLock").is_symlink()
        holder.kill()
    clear_singletons(str(tmp_path))
    assert not (tmp_path / "SingletonLock").is_symlink()


def test_the_proof_names_the_clause_that_fails(tmp_path: Path) -> None:
    def clause(
        by: str = "Browser.close",
        code: int | None = 0,
        number: int | None = None,
        gone: bool = True,
        stored: bool = True,
    ) -> object:
        return prove(str(tmp_path), "Default", by, code, number, gone, stored=stored)["failing_clause"]

    assert clause() == "the profile does not say how the browser ended (no exit_type in its Preferences)"
    (tmp_path / "Default").mkdir()
    preferences = tmp_path / "Default" / "Preferences"
    preferences.write_text('{"profile": {"exit_type": "Crashed"}}')
    assert clause() == "the profile's exit_type is Crashed, not Normal"
    preferences.write_text('{"profile": {"exit_type": "Normal"}}')
    assert clause() == ""
    assert "local storage" in str(clause(stored=False))
    (tmp_path / "SingletonLock").symlink_to("host-1")
    assert clause() == "the browser left its lock behind (host-1)"
    assert clause(gone=False) == "processes of the browser are still alive"
    assert clause(code=3) == "the browser exited with code 3 while it was closing"
    assert clause(code=None, number=11) == "the browser was ended by signal 11 while it was closing"
    assert clause("SIGINT") == "the browser did not close when asked and was interrupted (SIGINT)"


@pytest.mark.parametrize("text", ["{", "", "nope", "[1]", '{"a": 1} {', '{"a": }', '"text"', "\ufeff{}"])
def test_what_is_not_one_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        from_json(text.encode())


@pytest.mark.parametrize(
    "fields", [{}, {"token": 12, "lease_id": 'p"1:\n\u00e9\ud800'}, {"deadline": 1e300, "below": -0.25, "big": 2**80}]
)
def test_the_keepers_own_json_is_json(fields: dict[str, str | int | float]) -> None:
    assert json.loads(to_json(fields)) == from_json(to_json(fields)) == fields
    assert from_json(json.dumps(fields, indent=1).encode()) == fields


UNSEEN = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup"


@pytest.mark.parametrize(
    ("given", "started"),
    [
        (["--mute-audio", "about:blank"], ["--mute-audio", "about:blank"]),
        (["--headless=new"], [f"--disable-features={UNSEEN}", "--headless=new"]),
        (
            [
                "--disable-features=A",
                "--enable-features=X",
                "--headless",
                "--disable-features=C",
                "--enable-features=Y",
            ],
            [f"--disable-features=A,C,{UNSEEN}", "--enable-features=X,Y", "--headless"],
        ),
        (["--disable-features=A", "--disable-features=B"], ["--disable-features=A,B"]),
    ],
)
def test_feature_switches_are_merged_as_the_browser_obeys_only_the_last(given: list[str], started: list[str]) -> None:
    assert merge_features(given) == started


@pytest.mark.parametrize(("waiting", "cause"), [(True, ""), (False, "deadline")])
def test_a_renewal_that_waited_while_the_keeper_was_stopped_still_counts(
    tmp_path: Path, waiting: bool, cause: str
) -> None:
    """What is ready was asked before the stop, and says nothing of the renewal that came during it."""
    now = boot_time()
    messages = [{"deadline": now + 60.0, "kill_at": now + 70.0}] if waiting else []
    stand: Any = SimpleNamespace(
        orders=orders_in(tmp_path, deadline=now - 5.0, kill_at=now - 1.0),
        control=SimpleNamespace(descriptor=-1, worker=-2, read=lambda: messages),
        browser=SimpleNamespace(watch=-3),
        revoke_reason="",
        close_requested=False,
        _signals=-4,
        _inward=SimpleNamespace(ended=False),
        _outward=SimpleNamespace(ended=False),
    )
    stand._obey = partial(Watch._obey, stand)
    assert Watch._over(stand, {}) == cause


@pytest.mark.parametrize(
    ("rest", "too_large"), [(b"x" * 400 + b"\0", False), (b"x" * 401, True), (b"x" * 401 + b"\0", True)]
)
def test_a_message_that_is_under_way_when_the_first_client_joins_has_a_limit(
    tmp_path: Path, rest: bytes, too_large: bool
) -> None:
    orders = orders_in(tmp_path, max_message_bytes=1000)
    sharing = Sharing(orders, Pages(), lambda _: None, inside=600)
    assert sharing.split(rest) == rest
    assert sharing.too_large is too_large


def test_the_limit_counts_for_each_message_anew(tmp_path: Path) -> None:
    sharing = Sharing(orders_in(tmp_path, max_message_bytes=1000), Pages(), lambda _: None, inside=600)
    pieces = [b"x" * 300 + b"\0", b"y" * 700 + b"\0"]
    assert [sharing.split(piece) for piece in pieces] == pieces
    assert not sharing.too_large
