"""What a token may do with one operation of the store: its scope, the accounts and pools it is restricted to, and the
leases that are its own. Reads the records that it needs; none if the token is unrestricted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from leasekeeper.core.control import TransferRequest
from leasekeeper.core.decisions import Decision, Target
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Profile
from leasekeeper.core.tokens import (
    DECISIONS,
    OPERATIONS,
    ApiToken,
    Needs,
    Reach,
    Scope,
    bound_incarnation,
    denial,
    has_scope,
    to_acquire,
    to_read,
)
from leasekeeper.core.workers import Worker, WorkerReport
from leasekeeper.errors import AccessDenied, LeaseOfAnotherToken, NotFound
from leasekeeper.ports import ClaimRequest, LeaseRequest, Store

MAX_HOLDERS: Final = 50_000
_TARGETS: Final[Mapping[Target, type]] = {
    Target.PROFILE: Profile,
    Target.JOB: Job,
    Target.LEASE: Lease,
    Target.WEBHOOK: Delivery,
}


def refuse(denied: AccessDenied | None) -> None:
    """Raise the denial, if there is one."""
    if denied is not None:
        raise denied


@dataclass(frozen=True, slots=True)
class Place:
    """The account and the pool of one record. None: it has none, or they are unknown."""

    account: str | None = None
    pool: str | None = None


class Permissions:
    """Checks calls against one store. The holder of a lease never changes, so it is read once per lease."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holders: dict[str, str] = {}

    async def check(self, token: ApiToken, operation: str, arguments: Mapping[str, Any]) -> None:
        """Raise Forbidden unless the token allows this call."""
        needs = needs_of(operation, arguments)
        refuse(denial(token, Needs(needs.scope, Reach.NOTHING)))
        match needs.reach:
            case Reach.NOTHING:
                return
            case Reach.OWN_LEASES:
                await self._check_own(token, operation, arguments)
            case Reach.FLEET:
                refuse(denial(token, needs))
            case Reach.POOL:
                refuse(denial(token, needs, pool=_pool(arguments)))
            case Reach.TARGET:
                if token.accounts or token.pools:
                    for place in await self.places(operation, arguments):
                        refuse(denial(token, needs, account=place.account, pool=place.pool))

    async def places(self, operation: str, arguments: Mapping[str, Any]) -> list[Place]:
        """The account and pool of each record that a call is about."""
        match operation:
            case "submit":
                return [await self._place_of_spec(spec) for spec in arguments["specs"]] or [Place()]
            case "find":
                where = arguments.get("where") or {}
                return [await self.place_of_filter(where)]
            case "get":
                return [await self.place_of(arguments["kind"], arguments["record_id"])]
            case "why" if arguments.get("job_id") is not None:
                return [await self.place_of(Job, arguments["job_id"])]
            case "why" if arguments.get("profile_id") is not None:
                return [await self.place_of(Profile, arguments["profile_id"])]
            case "acquire":
                return [await self.place_of(Profile, arguments["request"].profile_id)]
            case "decide":
                decision: Decision = arguments["decision"]
                if decision.target is Target.ACCOUNT:
                    return [Place(account=decision.id)]
                kind = _TARGETS.get(decision.target)
                return [await self.place_of(kind, decision.id) if kind else Place()]
            case _:
                return [Place()]

    async def place_of(self, kind: type, record_id: str) -> Place:
        """The place of one record. A missing record has none."""
        try:
            return await self.place(await self._store.get(kind, record_id))
        except NotFound:
            return Place()

    async def place(self, record: object) -> Place:
        """The place of a record, by its own fields, else by those of its profile or job."""
        account, pool = getattr(record, "account_id", None), getattr(record, "pool", None)
        profile_id, job_id = getattr(record, "profile_id", None), getattr(record, "job_id", None)
        if account is not None and pool is not None:
            return Place(account, pool)
        if profile_id is not None and not isinstance(record, Profile):
            found = await self.place_of(Profile, profile_id)
            return Place(account or found.account, pool or found.pool)
        if job_id is not None and not isinstance(record, Job):
            found = await self.place_of(Job, job_id)
            return Place(account or found.account, pool or found.pool)
        return Place(account, pool)

    async def _place_of_spec(self, spec: JobSpec) -> Place:
        account: str | None = spec.account_id
        if account is None and spec.profile_id is not None:
            account = (await self.place_of(Profile, spec.profile_id)).account
        return Place(account, spec.pool)

    async def place_of_filter(self, where: Mapping[str, str]) -> Place:
        """A list is about the account and the pool that it is filtered by; a profile or a job names both."""
        for name, kind in (("profile_id", Profile), ("job_id", Job), ("run_id", RunRecord), ("lease_id", Lease)):
            if name in where:
                found = await self.place_of(kind, where[name])
                return Place(where.get("account_id", found.account), where.get("pool", found.pool))
        return Place(where.get("account_id"), where.get("pool"))

    async def _check_own(self, token: ApiToken, operation: str, arguments: Mapping[str, Any]) -> None:
        """A worker may use only its own leases. A housekeeper, who may expire any lease, may also resolve it."""
        if operation in ("unresolved", "reserve_launcher_checks", "resolve") and is_housekeeper(token):
            return
        if operation == "record":
            await self._check_event(token, arguments["event"])
            return
        for lease_id in _leases(operation, arguments):
            holder = await self.holder(lease_id)
            if holder is not None:
                refuse(denial(token, OPERATIONS[operation], incarnation=holder))

    async def holder(self, lease_id: str) -> str | None:
        """The incarnation that a lease was granted to; None if there is no such lease."""
        known = self._holders.get(lease_id)
        if known is None:
            try:
                known = (await self._store.get(Lease, lease_id)).incarnation
            except NotFound:
                return None
            self.remember(lease_id, known)
        return known

    def remember(self, lease_id: str, incarnation: str) -> None:
        """Remember the holder of a lease that was just granted."""
        if len(self._holders) >= MAX_HOLDERS:
            self._holders.clear()
        self._holders[lease_id] = incarnation

    async def _check_event(self, token: ApiToken, event: Event) -> None:
        """An event must be about a run of the token; without a run it needs the right to decide."""
        if event.run_id is None:
            refuse(denial(token, Needs(Scope.OPERATE), account=event.account_id))
            return
        run = (await self._store.find(Lease, {"run_id": event.run_id}, limit=1)).items
        if not run or not _holds(token, run[0]):
            raise LeaseOfAnotherToken(f"token {token.token_id} does not hold that lease", token_id=token.token_id)


def _holds(token: ApiToken, lease: Lease) -> bool:
    return lease.incarnation.startswith(bound_incarnation(token, ""))


def is_housekeeper(token: ApiToken) -> bool:
    """Whether the token may end leases of all others: it has the scope, and is not restricted."""
    return has_scope(token, Scope.OPERATE) and not token.accounts and not token.pools


def needs_of(operation: str, arguments: Mapping[str, Any]) -> Needs:
    """The scope that a call needs: for decisions and reads it depends on what they are about."""
    if operation == "decide":
        decision: Decision = arguments["decision"]
        # The store refuses an unknown kind, and lists the known ones.
        return DECISIONS.get((decision.target, decision.action), OPERATIONS["decide"])
    if operation in ("get", "find"):
        return to_read(arguments["kind"])
    if operation == "acquire":
        return to_acquire(arguments["request"].purpose)
    return OPERATIONS[operation]


def bind(token: ApiToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with the token's id put before every incarnation of the caller."""
    found = {name: _bound(token, value) for name, value in arguments.items()}
    if found.get("kind") is Worker and "/" not in found.get("record_id", "/"):
        found["record_id"] = bound_incarnation(token, found["record_id"])
    where = found.get("where") or {}
    if found.get("kind") is Worker and "/" not in where.get("prefix", "/"):
        found["where"] = {**where, "prefix": bound_incarnation(token, where["prefix"])}
    return found


def _bound(token: ApiToken, value: Any) -> Any:
    match value:
        case ClaimRequest() | LeaseRequest() | TransferRequest() | WorkerReport():
            return replace(value, incarnation=bound_incarnation(token, value.incarnation))
        case {"incarnation": str(text)} if "/" not in text:
            return {**value, "incarnation": bound_incarnation(token, text)}
        case _:
            return value


def _pool(arguments: Mapping[str, Any]) -> str | None:
    about = arguments.get("request") or arguments.get("report")
    pool: str | None = about.pool if about is not None else arguments.get("pool")
    return pool


def _leases(operation: str, arguments: Mapping[str, Any]) -> Iterable[str]:
    """The leases that a call is about."""
    match operation:
        case "renew":
            return {each.ref.lease_id for each in arguments["renewals"]}
        case "settle":
            return {each.ref.lease_id for each in arguments["endings"]}
        case "hand_over" | "transfer":
            return {arguments["ending"].ref.lease_id}
        case "reserve_launcher_checks":
            return set(arguments["lease_ids"])
        case "resolve":
            return {each.lease_id for each in arguments["resolutions"]}
        case _:
            return {arguments["ref"].lease_id} if "ref" in arguments else set()
