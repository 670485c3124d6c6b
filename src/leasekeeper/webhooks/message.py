"""A message as its receiver gets it, signed as Standard Webhooks says. Pure: the time is an argument.

The id of a message is the same at every attempt, so that a receiver can tell what it has had already. A key never
shows in a repr or an error.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from leasekeeper.core.deliveries import Delivery
from leasekeeper.errors import InputError
from leasekeeper.wire.encoding import encode_time

PREFIX: Final = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
MOST_KEYS: Final = 8


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that messages are signed with, all of them at once: that is how one is replaced by the next."""

    keys: tuple[bytes, ...] = field(repr=False)


def read_keys(text: str) -> Keys | None:
    """The keys in a setting: `whsec_…`, several separated by spaces. None if there are none."""
    words = text.split()
    if not words:
        return None
    if len(words) > MOST_KEYS:
        raise InputError(f"LEASEKEEPER_WEBHOOK_SECRET has {len(words)} secrets, at most {MOST_KEYS} are used at once")
    return Keys(tuple(_key(number, word) for number, word in enumerate(words, 1)))


def _key(number: int, word: str) -> bytes:
    wrong = InputError(
        f"secret {number} of LEASEKEEPER_WEBHOOK_SECRET must be written as {PREFIX} and the base64 of {LEAST_BYTES} to "
        f"{MOST_BYTES} bytes; 'leasekeeper webhooks secret' makes one"
    )
    if not word.startswith(PREFIX):
        raise wrong
    try:
        key = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise wrong
    return key


def new_secret() -> str:
    """A fresh secret, to be set here and at the receiver."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def body_of(delivery: Delivery) -> bytes:
    """What is sent: the same bytes at every attempt."""
    message = {"type": delivery.type, "timestamp": encode_time(delivery.created_at), "data": dict(delivery.body)}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def signed(keys: Keys, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers that let a receiver see who sent the message, and that it is not an old one sent again."""
    seconds = str(int(at.timestamp()))
    content = f"{message_id}.{seconds}.".encode() + body
    marks = (hmac.new(key, content, hashlib.sha256).digest() for key in keys.keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": seconds,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(mark).decode()}" for mark in marks),
    }
