"""How a message is written and signed, and what a secret may look like."""

import base64
import json
from datetime import UTC, datetime

import pytest

from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.ids import JobId
from leasekeeper.errors import InputError
from leasekeeper.webhooks.message import Keys, body_of, new_secret, read_keys, signature_headers
from tests.webhooks.receiver import SECRET, Message

AT = datetime(2031, 5, 6, 7, 8, 9, 250_000, tzinfo=UTC)


def keys(text: str) -> Keys:
    found = read_keys(text)
    assert found is not None
    return found


def test_the_signature_is_the_one_of_the_specifications_example() -> None:
    secret, message = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    headers = signature_headers(keys(secret), message, datetime.fromtimestamp(1614265330, UTC), b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": message,
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_message_says_what_happened_when_and_to_what() -> None:
    delivery = Delivery(
        delivery_id="d1",
        job_id=JobId("j1"),
        type="job.completed",
        url="https://hook.test/",
        host="hook.test",
        body={"job_id": "j1", "task": "größe"},
        created_at=AT,
        due_at=AT,
    )
    assert json.loads(body_of(delivery)) == {
        "type": "job.completed",
        "timestamp": "2031-05-06T07:08:09.250000Z",
        "data": {"job_id": "j1", "task": "größe"},
    }


def test_while_one_secret_replaces_another_both_can_check_the_message() -> None:
    first, second, other = new_secret(), new_secret(), new_secret()
    message = Message("POST /", signature_headers(keys(f"{first}  {second}"), "d1", AT, b"{}"), b"{}")
    assert message.signed_with(first)
    assert message.signed_with(second)
    assert not message.signed_with(other)
    message.body = b"[]"
    assert not message.signed_with(first)


def test_secrets_are_long_and_never_the_same() -> None:
    made = {new_secret() for _ in range(50)}
    assert len(made) == 50
    assert all(len(base64.b64decode(secret.removeprefix("whsec_"))) == 32 for secret in made)


@pytest.mark.parametrize("text", ["", "  ", "\t\n"])
def test_no_secret_is_none(text: str) -> None:
    assert read_keys(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("hunter2", 1),
        ("whsec_hunter2!", 1),
        ("whsec_" + base64.b64encode(b"hunter2" * 3).decode(), 1),
        ("whsec_" + base64.b64encode(b"h" * 65).decode(), 1),
        (f"{SECRET} hunter2", 2),
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(text: str, number: int) -> None:
    with pytest.raises(InputError) as refused:
        read_keys(text)
    assert f"secret {number} of LEASEKEEPER_WEBHOOK_SECRET" in refused.value.message
    assert refused.value.code == "WEBHOOK_SECRET_NEEDED"
    assert not any(word in str(refused.value) for word in text.split())


def test_there_are_not_many_secrets_at_once() -> None:
    with pytest.raises(InputError, match="the maximum is 8"):
        read_keys(" ".join([SECRET] * 9))


def test_a_secret_shows_in_no_repr() -> None:
    assert str(bytes(range(32))) not in repr(keys(SECRET))
    assert repr(keys(SECRET)) == "Keys()"
