"""The jobs of the demo, one of every kind. The shop and the scenario make some of them fail."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from leasekeeper.core.ids import ProfileId
from leasekeeper.core.jobs import JobSpec, OnConflict, Risk
from leasekeeper.core.leases import Mode

BUSY: Final = "books_us_1"  # another job becomes due while it is leased
LOGGED_OUT: Final = "books_us_3"
DOUBTED: Final = "books_us_4"
KILLED: Final = "books_us_5"  # its worker dies inside a mutating section
PAUSED: Final = "books_us_6"  # its worker sleeps until the lease is over, and wakes up
PAUSED_ACCOUNT: Final = "toys_fr"
LAPTOP: Final = "laptop"


def _job(profile: str, task: str, **fields: Any) -> JobSpec:
    return JobSpec(task=task, profile_id=ProfileId(profile), **fields)


FIRST: Final[Sequence[JobSpec]] = (
    _job(BUSY, "sign_in"),
    _job(BUSY, "export_orders", idempotency_key="orders-2026-01-31"),
    _job(BUSY, "monthly_report"),
    _job("books_us_2", "sign_in"),
    _job("books_us_2", "sync_stock"),
    _job(LOGGED_OUT, "sign_in"),
    _job(LOGGED_OUT, "read_orders"),
    _job(DOUBTED, "sign_in"),
    _job(DOUBTED, "read_orders"),
    # In the laptop's pool, the worker that is killed comes first.
    _job(KILLED, "sign_in", priority=1),
    _job(KILLED, "export_orders", priority=1),
    _job(PAUSED, "sign_in"),
    _job(PAUSED, "monthly_report"),
    _job("shoes_de_main", "sign_in"),
    _job("shoes_de_main", "export_orders"),
    _job("shoes_de_main", "read_orders", expected_language="en-US"),
    _job("shoes_de_backup", "sign_in"),
    _job("shoes_de_backup", "export_orders", allowed_actions=("read_orders",)),
    _job("shoes_de_backup", "export_orders", risk_level=Risk.REVIEW_REQUIRED),
    _job("toys_fr_1", "price_list"),
    # Connections to this address are refused, and it has one attempt: a dead job.
    _job("toys_fr_1", "price_list", max_attempts=1, payload={"shop": "http://127.0.0.1:47"}),
    _job("toys_fr_guest", "price_list", mode=Mode.SHARED),
    _job("toys_fr_guest", "price_list", mode=Mode.SHARED),
)
# The same key and the same job again: the first one comes back, and nothing runs twice.
AGAIN: Final = FIRST[1]
WHILE_TAKEN: Final = (
    _job(BUSY, "read_orders"),
    _job(BUSY, "read_orders", on_conflict=OnConflict.SKIP),
)


def for_shop(specs: Sequence[JobSpec], url: str) -> list[JobSpec]:
    """The jobs with the shop's URL, which is new each time, unless they have their own."""
    return [replace(spec, payload=spec.payload or {"shop": url}) for spec in specs]
