"""Which alerts the events and reviews of one operation cause, and which registered endpoints get them.

Endpoints are cached by the revision of the configuration: a process reads them once per change, and a commit without an
alert costs no statement.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from leasekeeper.core.alerts import REVIEW_OPENED, Endpoint, EndpointState, matches, names_of
from leasekeeper.stores.sql.codec import decoder, load
from leasekeeper.stores.sql.engine import Tx

_CACHED: Final = ":endpoints"  # no profile has such an id
_NEVER: Final = -1
_EVENT_FIELDS: Final = (
    "account_id", "profile_id", "job_id", "run_id", "worker_id", "actor", "job_state", "profile_state",
)  # fmt: skip
_REVIEW_FIELDS: Final = (
    "review_id", "target", "account_id", "profile_id", "job_id", "run_id", "reason", "summary",
)  # fmt: skip

read_endpoint = decoder(Endpoint)


class Alert(NamedTuple):
    """One alert. Its receivers are found later, see `receivers`."""

    name: str
    job_id: str | None
    body: dict[str, object]
    traceparent: str | None = None


def endpoints(tx: Tx) -> Sequence[Endpoint]:
    """Every endpoint, as of the last `clock`: from the cache, or read now."""
    known = tx.fresh.get(_CACHED) or tx.cached.get(_CACHED)
    if known is not None and known[0] == tx.revision:
        found: Sequence[Endpoint] = known[1]
        return found
    (rows,) = tx.read(("all_endpoints", {}))
    found = tuple(map(read_endpoint, rows))
    tx.fresh[_CACHED] = (tx.revision, found)
    return found


def forget(tx: Tx) -> None:
    """Discard the cached endpoints, because this transaction changes them."""
    tx.fresh[_CACHED] = (_NEVER, ())


def receivers(tx: Tx, names: Iterable[str]) -> dict[str, list[Endpoint]]:
    """The active endpoints that get each of these alerts, by its name."""
    active = [endpoint for endpoint in endpoints(tx) if endpoint.state is EndpointState.ACTIVE]
    return {name: [each for each in active if matches(each.events, name)] for name in set(names)} if active else {}


def of_events(rows: Sequence[dict[str, Any]]) -> list[Alert]:
    """The alerts that these rows of the event log cause."""
    return [
        Alert(name, row["job_id"], {"event": row["type"], **_only(row, _EVENT_FIELDS), "data": load(row["data"])})
        for row in rows
        for name in names_of(row["type"], row["profile_state"])
        if not _about_an_alert(name, row)
    ]


def of_reviews(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[Alert]:
    """The alerts for reviews that are about to be opened. A subject that has an open review causes none."""
    (found,) = tx.read(("open_reviews_about", {"subjects": sorted({row["subject"] for row in rows})}))
    known = {(row["target"], row["subject"]) for row in found}
    alerts = []
    for row in rows:
        about = row["target"], row["subject"]
        if about not in known:
            known.add(about)
            alerts.append(Alert(REVIEW_OPENED, row["job_id"], _only(row, _REVIEW_FIELDS)))
    return alerts


def _about_an_alert(name: str, row: dict[str, Any]) -> bool:
    """Whether the event says that a webhook about webhooks was given up: an alert about it could repeat for ever."""
    return name == "webhook.exhausted" and str(load(row["data"]).get("type", "")).startswith("webhook.")


def _only(row: dict[str, Any], names: Sequence[str]) -> dict[str, object]:
    return {name: row[name] for name in names if row[name] not in (None, "")}
