"""Secrets and webhook endpoints over HTTP, for programs without the key: this server encrypts what they send.

Values are write-only: no answer contains them, except a signing secret that was made here, once.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from leasekeeper.core.alerts import MAX_DESCRIPTION, MAX_FILTERS, Endpoint, NewEndpoint, secret_of
from leasekeeper.core.secrets import MAX_BYTES, SealedSecret, Secret
from leasekeeper.core.tokens import OPERATIONS
from leasekeeper.encryption import read_keyring
from leasekeeper.service.routing import Body, Call, Parameter, Route
from leasekeeper.threads import run_in_thread
from leasekeeper.webhooks.message import new_secret, read_keys
from leasekeeper.wire.kinds import ID, Problems, Text
from leasekeeper.wire.records import Field, ListOf, Record

MAX_URL: Final = 2_000
MAX_ALERT: Final = 64
MAX_NOTE: Final = 2_000
_VALUE: Final = Text(f"1 to {MAX_BYTES} bytes in one line", maximum=MAX_BYTES)

_ENDPOINT: Final = Record(
    [
        Field(name="endpoint_id", kind=ID, doc="its name", required=True),
        Field(name="url", kind=Text("an address", maximum=MAX_URL), doc="where messages are sent", required=True),
        Field(
            name="events",
            kind=ListOf(Text("the name of an alert, as profile.*", maximum=MAX_ALERT), MAX_FILTERS),
            doc="what is sent: names of alerts, profile.* or * for all",
            required=True,
        ),
        Field(
            name="description",
            kind=Text("text", maximum=MAX_DESCRIPTION, minimum=0),
            doc="what it is for",
        ),
        Field(name="secret", kind=_VALUE, doc="the signing secret, whsec_…; without it one is made and answered once"),
    ]
)
_SECRET: Final = Record([Field(name="value", kind=_VALUE, doc="the secret; no answer ever has it", required=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointWithSecret:
    """A new endpoint. `secret` is shown this once, and only if it was made here."""

    endpoint: Endpoint
    secret: str | None = field(default=None, repr=False)


def _reading(record: Record, refused: str) -> Body:
    def read(data: object) -> dict[str, Any]:
        problems = Problems()
        values = record.read(data, "", problems)
        problems.raise_any(refused)
        return values

    return Body(read, record.schema)


async def _sealed(call: Call, name: str, value: str) -> SealedSecret:
    """In a thread: it reads the file of the key."""
    return await run_in_thread(lambda: read_keyring(call.service.config.secrets).seal(name, value))


async def add_endpoint(call: Call) -> EndpointWithSecret:
    """Register an endpoint."""
    given: str | None = call.body.get("secret")
    secret = given or new_secret()
    read_keys(secret, "the secret")
    new = NewEndpoint(
        endpoint_id=call.body["endpoint_id"],
        url=call.body["url"],
        events=tuple(call.body["events"]),
        description=call.body.get("description") or "",
    )
    sealed = await _sealed(call, secret_of(new.endpoint_id), secret)
    endpoint = await call.service.store.add_endpoint(new, sealed, actor=call.actor)
    return EndpointWithSecret(endpoint=endpoint, secret=None if given else secret)


async def put_secret(call: Call) -> Secret:
    """Store a value, encrypted with this server's current key."""
    return await call.service.store.put_secret(
        await _sealed(call, call.path["id"], call.body["value"]), actor=call.actor
    )


async def remove_secret(call: Call) -> None:
    await call.service.store.remove_secret(call.path["id"], actor=call.actor, note=call.query.get("note", ""))


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/endpoints",
        summary="Register an endpoint for alerts. Its signing secret is in this answer and nowhere else.",
        handler=add_endpoint,
        needs=OPERATIONS["add_endpoint"],
        body=_reading(_ENDPOINT, "no endpoint was added"),
        answers=EndpointWithSecret,
        status=201,
        tag="endpoints",
    ),
    Route(
        method="PUT",
        path="/v1/secrets/{id}",
        summary="Store a secret, encrypted by this server. Its value can be replaced and not be read.",
        handler=put_secret,
        needs=OPERATIONS["put_secret"],
        body=_reading(_SECRET, "the secret was not stored"),
        answers=Secret,
        tag="secrets",
    ),
    Route(
        method="DELETE",
        path="/v1/secrets/{id}",
        summary="Remove a secret. Refused while a proxy or an endpoint needs it.",
        handler=remove_secret,
        needs=OPERATIONS["remove_secret"],
        parameters=(
            Parameter("note", "why; a removal without a reason is refused", Text("text", maximum=MAX_NOTE, minimum=0)),
        ),
        tag="secrets",
    ),
)
