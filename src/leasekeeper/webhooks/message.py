"""The body and the signature of a webhook, as Standard Webhooks specifies. Pure: the time is an argument.

The id of a message is the same at every attempt, so that a receiver can recognize duplicates. A key never appears in a
repr or an error.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from leasekeeper.core.deliveries import Delivery
from leasekeeper.errors import InputError, NoWebhookSecret
from leasekeeper.wire.encoding import encode_time

PREFIX: Final = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64
MAX_KEYS: Final = 8
MAX_DIGITS: Final = 12
TOLERANCE: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Keys:
    """The signing keys. Each message is signed with all of them, so that keys can be rotated."""

    keys: tuple[bytes, ...] = field(repr=False)


def read_keys(text: str, name: str = "LEASEKEEPER_WEBHOOK_SECRET") -> Keys | None:
    """Parse the value of setting `name`: `whsec_…`, several separated by spaces. None if it is empty."""
    words = text.split()
    if not words:
        return None
    if len(words) > MAX_KEYS:
        raise InputError(f"{name} has {len(words)} secrets; the maximum is {MAX_KEYS}")
    return Keys(tuple(_key(name, number, word) for number, word in enumerate(words, 1)))


def _key(name: str, number: int, word: str) -> bytes:
    wrong = NoWebhookSecret(
        f"secret {number} of {name} must be written as {PREFIX} and the base64 of {MIN_BYTES} to {MAX_BYTES} bytes"
    )
    if not word.startswith(PREFIX):
        raise wrong
    try:
        key = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise wrong
    return key


def new_secret() -> str:
    """A new random secret, for the sender and the receiver."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def body_of(delivery: Delivery) -> bytes:
    """The JSON body: the same bytes at every attempt."""
    message = {"type": delivery.type, "timestamp": encode_time(delivery.created_at), "data": dict(delivery.body)}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def signature_headers(keys: Keys, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers by which a receiver verifies sender and age of the message."""
    seconds = str(int(at.timestamp()))
    content = f"{message_id}.{seconds}.".encode() + body
    signatures = (hmac.new(key, content, hashlib.sha256).digest() for key in keys.keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": seconds,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(each).decode()}" for each in signatures),
    }


def verify(keys: Keys, headers: Mapping[str, str], body: bytes, now: datetime) -> str | None:
    """Why a received message is not valid; None if it is. Names of headers are lower case."""
    message_id, seconds = headers.get("webhook-id"), headers.get("webhook-timestamp", "")
    if not message_id or not seconds.isdecimal() or len(seconds) > MAX_DIGITS:
        return "it has no webhook-id or webhook-timestamp"
    if abs(now.timestamp() - int(seconds)) > TOLERANCE.total_seconds():
        return "its timestamp is more than 5 minutes off"
    at = datetime.fromtimestamp(int(seconds), UTC)
    expected = signature_headers(keys, message_id, at, body)["webhook-signature"].split()
    given = headers.get("webhook-signature", "").split()
    if not any(hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in given):
        return "its signature does not match the secret"
    return None
