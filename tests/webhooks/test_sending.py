"""One POST: to whom it may go, and what it makes of every kind of answer. Receivers are real, on this machine."""

import asyncio
import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest

from leasekeeper.errors import InputError
from leasekeeper.webhooks import sending
from leasekeeper.webhooks.sending import Answer, may_be_called, post, read_networks
from tests.browsers.sites import Handler, close_empty, hang, own_certificate, reset, serving
from tests.servers import closed_port
from tests.webhooks.receiver import SECRET, receiving

HERE = read_networks("127.0.0.0/8 ::1")
LONG = 60.0


async def sent(url: str, *, seconds: float = LONG) -> Answer:
    return await post(url, {"webhook-id": "d1"}, b'{"a":1}', seconds=seconds, networks=HERE)


def saying(*pieces: bytes) -> Handler:
    """A server that says this, whatever it is asked."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return handle


async def answer_to(handler: Handler, *, seconds: float = LONG) -> Answer:
    async with serving(handler) as port:
        return await sent(f"http://127.0.0.1:{port}/", seconds=seconds)


async def test_it_arrives_as_it_was_sent() -> None:
    async with receiving() as receiver:
        answer = await sent(receiver.url + "/x?key=1#top")
        (message,) = receiver.messages
    assert answer == Answer(status=204, message="HTTP 204")
    assert message.line == "POST /hook/x?key=1 HTTP/1.1"
    assert message.headers == {
        "host": receiver.url.split("/")[2],
        "content-type": "application/json",
        "content-length": "7",
        "user-agent": "leasekeeper",
        "accept": "*/*",
        "connection": "close",
        "webhook-id": "d1",
    }
    assert message.body == b'{"a":1}'


@pytest.mark.parametrize("status", ["200 OK", "202", "301 Elsewhere", "404 No", "410 Gone", "500 Broken"])
async def test_the_status_is_the_answer_and_no_redirect_is_followed(status: str) -> None:
    number = int(status[:3])
    answer = await answer_to(saying(f"HTTP/1.1 {status}\r\nlocation: /elsewhere\r\n\r\nhunter2".encode()))
    assert answer == Answer(status=number, message=f"HTTP {number}")


async def test_interim_answers_are_passed_over() -> None:
    answer = await answer_to(saying(b"HTTP/1.1 100 Continue\r\n\r\n" * 3, b"HTTP/1.1 200 OK\r\n\r\n"))
    assert answer.status == 200


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"7", 7), (b"  120 ", 120), (b"9" * 30, 7 * 86_400), (b"soon", None), (b"-1", None), (b"\xc2\xb2", None)],
)
async def test_a_receiver_may_ask_for_time(value: bytes, seconds: int | None) -> None:
    answer = await answer_to(saying(b"HTTP/1.1 503 Busy\r\nRetry-After: " + value + b"\r\n\r\n"))
    assert answer.status == 503
    asked = answer.retry_after
    assert (asked.total_seconds() if asked else None) == seconds


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (close_empty, "the receiver closed the connection without a response"),
        (reset, "connection failed: Connection reset by peer"),
        (saying(b"SSH-2.0-hunter2\r\n\r\n"), "the response is not HTTP"),
        (saying(b"HTTP/1.1 099 hunter2\r\n\r\n"), "the response is not HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\n" + b"x" * 200_000), "the response has more than 64 KB of headers"),
        (saying(b"HTTP/1.1 100 hunter2\r\n\r\n" * 20), "more than 8 interim (1xx) responses"),
    ],
    ids=["hangs_up", "resets", "not_http", "no_status", "endless_head", "endless_interim"],
)
async def test_what_is_no_answer_has_a_message_of_our_own(handler: Handler, message: str) -> None:
    assert await answer_to(handler) == Answer(message=message)


async def test_nobody_takes_longer_than_his_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while True:
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.01)  # waits: the pace of a receiver that never comes to an end

    for handler in (hang, drip):
        assert await answer_to(handler, seconds=0.3) == Answer(message="no response within 0.3 s")


async def test_nobody_there_is_an_answer_too() -> None:
    with closed_port() as port:
        answer = await sent(f"http://127.0.0.1:{port}/")
    assert answer == Answer(message="connection refused")


async def test_a_name_that_nobody_knows_is_an_answer_too() -> None:
    answer = await sent("http://nobody.invalid/")
    assert answer.message.startswith("DNS lookup failed: ")


@pytest.mark.parametrize("name", ["hooks..example", ".example", f"{'x' * 64}.example"])
async def test_what_is_no_name_is_an_answer_too(name: str) -> None:
    assert (await sent(f"http://{name}/")).message.startswith("DNS lookup failed: ")


class Names:
    """A name server that answers as it is set, and for one name not until it is let."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        self.known, self.asked = known, list[str]()
        self.answers = threading.Event()

    def __call__(self, host: str, port: int, **_: int) -> list[tuple[object, ...]]:
        self.asked.append(host)
        if host == "silent.example":
            self.answers.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.known[host]]


async def test_a_name_server_that_is_silent_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names({"silent.example": ["127.0.0.1"], "good.example": ["127.0.0.1"]})
    async with receiving() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        monkeypatch.setattr(socket, "getaddrinfo", names)
        silent = [asyncio.create_task(sent(f"http://silent.example:{port}/")) for _ in range(40)]
        late = await sent(f"http://silent.example:{port}/", seconds=0.2)
        assert late == Answer(message="DNS lookup failed: no response within 0.2 s")
        for name in ("127.0.0.1", "good.example"):
            assert (await sent(f"http://{name}:{port}/")).status == 204
        names.answers.set()
        assert {answer.status for answer in await asyncio.gather(*silent)} == {204}
    assert names.asked.count("silent.example") == 1


async def test_an_address_that_swallows_everything_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names({"two.example": ["127.0.0.2", "127.0.0.1"]})
    async with receiving() as receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])
        with socket.socket() as deaf:
            # A listener whose queue is full answers nobody: as a network that drops what is sent.
            deaf.bind(("127.0.0.2", port))
            deaf.listen(0)
            with socket.socket() as first, socket.socket() as second:
                for link in (first, second):
                    link.setblocking(False)
                    link.connect_ex(("127.0.0.2", port))
                monkeypatch.setattr(socket, "getaddrinfo", names)
                answer = await sent(f"http://two.example:{port}/", seconds=3)
        assert answer.status == 204


async def test_a_receiver_may_finish_its_answer() -> None:
    ended: list[bool] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        for _ in range(5):
            await asyncio.sleep(0.01)  # waits: the pace of a receiver that has more to say
            writer.write(b"x" * 1000)
            await writer.drain()
        ended.append(True)

    assert (await answer_to(slow)).status == 200
    assert ended == [True]


async def test_an_answer_that_was_heard_counts_also_if_the_receiver_hangs_on() -> None:
    async def clinging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        await hang(reader, writer)

    assert await answer_to(clinging, seconds=0.5) == Answer(status=200, message="HTTP 200")


async def test_a_name_that_could_not_be_resolved_once_is_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver:
        by_name = receiver.url.replace("127.0.0.1", "localhost")
        with monkeypatch.context() as broken:

            def start(_: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            broken.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError):
                await sent(by_name)
        assert (await sent(by_name)).status == 204


async def test_private_addresses_are_not_called_unless_they_are_allowed() -> None:
    async with receiving() as receiver:
        by_name = receiver.url.replace("127.0.0.1", "localhost")
        for url in (receiver.url, by_name):
            answer = await post(url, {}, b"{}", seconds=LONG)
            assert answer.status is None
            assert "127.0.0.1" in answer.message or "::1" in answer.message
            assert "LEASEKEEPER_WEBHOOK_NETWORKS" in answer.message
        assert receiver.messages == []
        assert (await sent(by_name)).status == 204


async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads elsewhere the second time it is looked up."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def once(host: str, port: int, **kind: int) -> object:
        looked_up.append(host)
        return real("127.0.0.1", port, **kind)

    async with receiving() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        monkeypatch.setattr(socket, "getaddrinfo", once)
        assert (await sent(f"http://turns.example:{port}/")).status == 204
        (message,) = receiver.messages
    assert message.headers["host"] == f"turns.example:{port}"
    assert looked_up.count("turns.example") == 1


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - an address to refuse
        ("224.0.1.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
        ("2001:db8::1", False),
        ("fec0::1", False),
        ("192.0.0.0", False),
        ("192.0.0.9", False),
        ("192.0.0.100", False),
        ("192.0.1.0", True),
        ("192.88.99.1", False),
        ("198.19.255.255", False),
        ("64:ff9b::c000:64", False),
        ("64:ff9b:1::5db8:d822", False),
        ("100::1", False),
        ("2001::1", False),
        ("2001:20::1", False),
        ("2002:c000:64::", False),
        ("3fff::1", False),
        ("5f00::1", False),
        ("::5db8:d822", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    found = ipaddress.ip_address(address)
    assert may_be_called(found, ()) is public
    assert may_be_called(found, read_networks(f"{address}"))


def test_a_network_allows_what_lies_in_it_however_it_is_written() -> None:
    networks = read_networks("10.0.0.0/8  fd00::/8")
    for address in ("10.9.9.9", "::ffff:10.9.9.9", "fd12::1"):
        assert may_be_called(ipaddress.ip_address(address), networks)
    assert not may_be_called(ipaddress.ip_address("192.168.0.1"), networks)


def test_a_secret_in_the_wrong_setting_is_not_repeated() -> None:
    with pytest.raises(InputError, match="a secret is not a network") as refused:
        read_networks(SECRET)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "everywhere", "10.0.0.0/33", "127.0.0.1,127.0.0.2"])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="LEASEKEEPER_WEBHOOK_NETWORKS"):
        read_networks(text)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "http:///x",
        "http://user:hunter2@127.0.0.1/",
        "http://127.0.0.1/a\r\nx: y",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/ä",
    ],
)
async def test_an_address_that_cannot_be_sent_to_is_refused_without_repeating_it(url: str) -> None:
    answer = await sent(url)
    assert answer.status is None
    assert "URL" in answer.message
    assert "hunter2" not in answer.message


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(tls=own_certificate(tmp_path)) as receiver:
        by_name = receiver.url.replace("127.0.0.1", "localhost")
        answer = await sent(by_name)
        assert answer.message.startswith("TLS certificate invalid: self")
        assert receiver.messages == []
        trusting = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
        monkeypatch.setattr(sending, "_tls_context", lambda: trusting)
        assert (await sent(by_name)).status == 204
        wrong_name = await sent(receiver.url)
        assert wrong_name.message.startswith("TLS certificate invalid: ")
        assert len(receiver.messages) == 1


async def test_what_has_no_tls_is_reported() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with serving(plain) as port:
        answer = await sent(f"https://127.0.0.1:{port}/")
    assert answer.message.startswith("TLS handshake failed (")
