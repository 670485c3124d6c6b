"""The part of the Store port about webhooks: messages, endpoints, and workers that became silent. See ports.Store."""

from collections.abc import Sequence
from datetime import timedelta

from leasekeeper.core.alerts import Endpoint, NewEndpoint, problems_of, secret_of
from leasekeeper.core.deliveries import Attempt, Delivery, DeliveryRequest
from leasekeeper.core.secrets import SealedSecret
from leasekeeper.core.workers import Worker
from leasekeeper.errors import InputError, Problem
from leasekeeper.ports import MAX_IN_BATCH, Page
from leasekeeper.stores.sql import deciding, endpoints, sending
from leasekeeper.stores.sql.access import check_actor
from leasekeeper.stores.sql.checks import check_batch
from leasekeeper.stores.sql.repeated_calls import NOTHING, RepeatableOperations
from leasekeeper.wire.jobs import web_address_fault


class OutboxOperations(RepeatableOperations):
    """Webhook messages and the endpoints that get them. A part of `SqlStore`."""

    async def take_deliveries(
        self, request: DeliveryRequest, reserve_for: timedelta, *, after: str = ""
    ) -> Page[Delivery]:
        if not 1 <= request.limit <= MAX_IN_BATCH or request.each < 1:
            raise InputError(f"`limit` must be between 1 and {MAX_IN_BATCH}, `each` at least 1")
        ids, more = await self._engine.view(lambda tx: sending.due(tx, after, request))
        if not ids:
            return Page(items=[], after=more)
        taken = await self._change(
            lambda tx: sending.take(tx, self._ctx, ids, reserve_for), answer=lambda taken: Page(items=taken, after=more)
        )
        return Page(items=taken, after=more)

    async def settle_deliveries(self, attempts: Sequence[Attempt]) -> list[Delivery]:
        check_batch(attempts, "attempts")
        if not attempts:
            return []
        return await self._change(lambda tx: sending.settle(tx, self._ctx, attempts))

    async def add_endpoint(self, new: NewEndpoint, sealed: SealedSecret, *, actor: str) -> Endpoint:
        problems = problems_of(new)
        if (fault := web_address_fault(new.url)) is not None:
            problems.append(Problem("url", fault))
        if sealed.name != secret_of(new.endpoint_id):
            problems.append(Problem("sealed.name", f"must be {secret_of(new.endpoint_id)}"))
        if problems:
            raise InputError("no endpoint was added", problems)
        who = check_actor(actor)
        return await self._change(lambda tx: endpoints.add(tx, self._ctx, new, sealed, who))

    async def mark_silent(self, limit: int = MAX_IN_BATCH) -> list[Worker]:
        return await self._change(
            lambda tx: deciding.mark_silent(tx, self._ctx, limit), answer=lambda found: found or NOTHING
        )
