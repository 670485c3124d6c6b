"""Webhook deliveries: the outbox, written in the same commit as the change that it tells of."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from leasehold.core.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message that is owed to a webhook."""

    seq: int = 0
    delivery_id: str
    job_id: JobId
    type: str
    url: str
    body: Mapping[str, object]
    created_at: datetime
    due_at: datetime
    attempts: int = 0
    delivered_at: datetime | None = None
