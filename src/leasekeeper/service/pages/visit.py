"""One request to a page: its token, its filters, and the store as that token may use it.

Every read and every decision of a page goes through here, so a page cannot show or do what the API would refuse.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import Request

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.tokens import DECISIONS, OPERATIONS, ApiToken, Scope, has_scope
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Why
from leasekeeper.errors import AccessDenied, BodyTooLarge, NotFound
from leasekeeper.lists import LISTS
from leasekeeper.ports import Decided, Page, Stats, Submitted
from leasekeeper.service.state import Service

T = TypeVar("T")

PER_PAGE: Final = 50
MAX_FORM_BYTES: Final = 1024**2
MAX_FIELDS: Final = 5_000
FLASH: Final = "leasekeeper_flash"
# Filter of a list → the restriction of the token, and the cookie with the person's choice.
CHOICES: Final[Mapping[str, tuple[str, str]]] = {
    "account_id": ("accounts", "leasekeeper_account"),
    "pool": ("pools", "leasekeeper_pool"),
}


@dataclass(frozen=True, slots=True)
class Flash:
    """The outcome of the last action, shown once on the next page."""

    text: str
    good: bool = True

    def write(self) -> str:
        return base64.urlsafe_b64encode(json.dumps([self.text[:1_500], self.good]).encode()).decode()

    @classmethod
    def read(cls, text: str | None) -> "Flash | None":
        try:
            said, good = json.loads(base64.urlsafe_b64decode(text or ""))
        except (ValueError, binascii.Error):
            return None
        return cls(str(said), bool(good))


class Visit:
    """One request by somebody who is signed in."""

    def __init__(self, request: Request, service: Service, token: ApiToken) -> None:
        self.request = request
        self.service = service
        self.token = token
        # A token for several accounts or pools shows one at a time: the one that the person chose, else the first.
        self.only = {
            field: _chosen(request.cookies.get(cookie), getattr(token, names))
            for field, (names, cookie) in CHOICES.items()
            if getattr(token, names)
        }
        self.position = service.signals.position  # position in the event log, before anything is read for the page
        self._stats: Stats | None = None
        self.counted = True  # whether the counts of the fleet may be shown

    @property
    def path(self) -> Mapping[str, str]:
        """The names in the path."""
        return self.request.path_params

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def actor(self) -> str:
        """The actor in the audit log: as in the API, the token's name with its id."""
        return f"{self.token.name} ({self.token.token_id})"

    async def _call(self, operation: str, **arguments: Any) -> Any:
        await self.service.permissions.check(self.token, operation, arguments)
        return await getattr(self.service.store, operation)(**arguments)

    async def find(
        self, kind: type[T], where: Mapping[str, str] | None = None, *, after: str | None = None, limit: int = PER_PAGE
    ) -> Page[T]:
        """A page of a list. A restricted token needs no filter by account or pool: see `only`."""
        asked = await self._within(kind, where or {})
        found: Page[T] = await self._call("find", kind=kind, where=asked, after=after, limit=limit)
        return found

    async def _within(self, kind: type, where: Mapping[str, str]) -> dict[str, str]:
        """The filters, with an account and pool of the token: those of the named record, if the token has them."""
        missing = {name: own for name, own in self.only.items() if name in LISTS[kind].names and name not in where}
        if not missing:
            return dict(where)
        place = await self.service.permissions.place_of_filter(where)
        of_record = {"account_id": place.account, "pool": place.pool}
        for name in missing:
            if of_record[name] in getattr(self.token, CHOICES[name][0]):
                missing[name] = str(of_record[name])
        return {**where, **missing}

    async def find_if_allowed(
        self, kind: type[T], where: Mapping[str, str] | None = None, *, limit: int = PER_PAGE
    ) -> Sequence[T]:
        """The same; empty if the token may not see such records."""
        try:
            return (await self.find(kind, where, limit=limit)).items
        except AccessDenied:
            return ()

    async def find_all(self, kind: type[T], where: Mapping[str, str] | None = None, *, maximum: int) -> list[T]:
        """All that match, up to a limit."""
        found: list[T] = []
        after = None
        while len(found) < maximum:
            page = await self.find(kind, where, after=after, limit=min(1_000, maximum - len(found)))
            found += page.items
            after = page.after
            if after is None:
                break
        return found

    async def get(self, kind: type[T], record_id: str) -> T:
        found: T = await self._call("get", kind=kind, record_id=record_id)
        return found

    async def get_if_there(self, kind: type[T], record_id: str | None) -> T | None:
        """One record; None if it does not exist, or if the token may not see it."""
        try:
            return await self.get(kind, record_id) if record_id else None
        except (NotFound, AccessDenied):
            return None

    async def why(self, **about: str) -> Why:
        return explain(await self._call("why", **about))

    async def stats(self) -> Stats:
        """Current counts. A restricted token gets none, only the time."""
        if self._stats is None:
            try:
                self._stats = await self._call("stats")
            except AccessDenied:
                self.counted = False
                self._stats = Stats(now=(await self._call("check")).now)
        return self._stats

    async def decide(self, decision: Decision) -> Decided:
        decided: Decided = await self._call("decide", decision=decision)
        return decided

    async def submit(self, specs: Sequence[JobSpec]) -> list[Submitted]:
        submitted: list[Submitted] = await self._call("submit", specs=specs)
        return submitted

    def may(self, target: Target | str, action: Action | str) -> bool:
        """Whether to offer an action. It is checked again when it is sent."""
        needs = DECISIONS.get((Target(target), Action(action)), OPERATIONS["decide"])
        return has_scope(self.token, needs.scope)

    def has(self, scope: str) -> bool:
        return has_scope(self.token, Scope(scope))

    async def form(self) -> dict[str, str]:
        """The fields of a form that was sent, the last of each name."""
        return dict(await self.fields())

    async def fields(self) -> list[tuple[str, str]]:
        """The fields of a form that was sent, in their order."""
        return await read_form(self.request)


def _chosen(wanted: str | None, allowed: Sequence[str]) -> str:
    return wanted if wanted is not None and wanted in allowed else allowed[0]


async def read_form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, up to a limit."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise BodyTooLarge(f"the form is larger than {MAX_FORM_BYTES:,} bytes", max_bytes=MAX_FORM_BYTES)
    text = body.decode("utf-8", "replace")
    return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
