"""Turns a message into a job: the usual JSON schema of a job, and an idempotency key that survives a second delivery.

The key is the message's own `idempotency_key`, else its `job_id`, else the broker's id for the message.
"""

from dataclasses import dataclass, replace
from hashlib import sha256

from leasekeeper.bridges.broker import Message
from leasekeeper.core.deliveries import bridge_url
from leasekeeper.core.jobs import JobSpec
from leasekeeper.errors import InputError, Problem
from leasekeeper.wire.jobs import MAX_KEY_LENGTH, load_json, parse_job

_NO_KEY = (
    "add idempotency_key or job_id to the message, or set the message id at the broker: "
    "without any of them a message that is delivered twice would run twice"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """How one bridge reads messages.

    `by_content`: a message without any id is identified by its content, so equal ones are one job. `replies`: results
    of jobs without a callback_url go back through this bridge.
    """

    bridge: str
    by_content: bool = False
    replies: bool = False

    def read(self, message: Message) -> JobSpec:
        """The job in a message. Raises InputError with its faults."""
        document = load_json(message.body)
        if not isinstance(document, dict):
            raise InputError("the message is not acceptable", [Problem("", "must be a JSON object: one job")])
        spec = parse_job(document)
        if self.replies and spec.callback_url is None:
            spec = replace(spec, callback_url=bridge_url(self.bridge))
        if spec.idempotency_key is not None:
            return spec
        key = spec.job_id or self._key(message)
        if key is None:
            raise InputError("the message is not acceptable", [Problem("idempotency_key", _NO_KEY)])
        return replace(spec, idempotency_key=key)

    def _key(self, message: Message) -> str | None:
        """The broker's id for the message, prefixed with the bridge's name."""
        if message.id is None and not self.by_content:
            return None
        key = f"{self.bridge}:{message.id or sha256(message.body).hexdigest()}"
        return key if len(key) <= MAX_KEY_LENGTH and key.isprintable() else sha256(key.encode()).hexdigest()
