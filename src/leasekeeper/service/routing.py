"""The rows of the route table. Routing, authorization, reading of input and OpenAPI are all made of them.

A handler gets a `Call` whose caller is known and allowed and whose input is read, and answers with a value of the
declared shape, or with a response of Starlette's where JSON is not the answer.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from leasekeeper.core.tokens import ApiToken, Needs, Scope
from leasekeeper.wire.kinds import Kind

if TYPE_CHECKING:
    from leasekeeper.service.state import Service

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value of the query or of a header. It arrives as text; `kind` parses and describes it."""

    name: str
    doc: str
    kind: Kind
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request: `read` parses it or raises InputError, `schema` describes it."""

    read: Callable[[Any], Any]
    schema: Callable[[], Mapping[str, Any]]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about: the account and the pool, None for all of them; and the record that was read for it."""

    account: str | None = None
    pool: str | None = None
    record: Any = None


@dataclass(slots=True, kw_only=True)
class Call:
    """One request on its way to a handler. `token` is None only on routes that need none."""

    request: Request
    service: "Service"
    token: ApiToken | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    # The body as it came.
    content: bytes = b""
    record: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    status: int | None = None

    @property
    def path(self) -> Mapping[str, str]:
        """The names in the path."""
        return self.request.path_params

    @property
    def actor(self) -> str:
        """The actor in the audit log: the token's name, with its id."""
        return f"{self.token.name} ({self.token.token_id})" if self.token else "nobody"


async def about_all(_call: Call) -> Subject:
    """The call names no account: a token that is restricted may not make it."""
    return Subject()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row. `needs` None: no token is asked for. `about` says what the call touches, before anything is done.

    `answers` is the type of the answer; None: no content. With another `media` than JSON the handler answers itself.
    """

    method: str
    path: str
    summary: str
    handler: Callable[[Call], Awaitable[Any]]
    needs: Needs | None
    about: Callable[[Call], Awaitable[Subject]] = about_all
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: Any = None
    status: int = 200
    media: str = JSON
    tag: str = ""
    # With the setting `metrics_open`, callers on this machine need no token.
    open_to_this_machine: bool = False
    # Other scopes that are enough for some calls: the body decides which one is needed, and it is checked then.
    also: tuple[Scope, ...] = ()
    # Another proof that replaces an API token: whether the call has it. It then sets the call's record.
    admits: Callable[[Call], Awaitable[bool]] | None = None
    # Payloads of jobs are part of the answer.
    payload: bool = False
