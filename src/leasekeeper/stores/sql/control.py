"""The part of the Store port about people who take control of an open browser, on any SQL engine. See ports.Store."""

from leasekeeper.core.control import TransferRequest
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.settle import Ending
from leasekeeper.errors import InputError, Problem
from leasekeeper.ports import HandedOver
from leasekeeper.stores.sql import heartbeats, transferring
from leasekeeper.stores.sql.checks import check_endings
from leasekeeper.stores.sql.codec import clean
from leasekeeper.stores.sql.repeated_calls import NOTHING, RepeatableOperations

MAX_TEXT = 2_000


class ControlOperations(RepeatableOperations):
    """Transfers of an open browser, and requests for a person. A part of `SqlStore`."""

    async def transfer(self, ending: Ending, to: TransferRequest) -> HandedOver:
        check_endings([ending])
        if not to.incarnation or len(to.note) > MAX_TEXT:
            raise InputError(
                "nothing was transferred",
                [Problem("to", f"needs an incarnation, and a note of at most {MAX_TEXT} characters")],
            )
        handed = await self._change(lambda tx: transferring.transfer(tx, self._ctx, ending, to))
        self._engine.hint()
        return handed

    async def request_person(self, ref: LeaseRef, what: str | None) -> None:
        if what is not None and not 1 <= len(what.strip()) <= MAX_TEXT:
            raise InputError("nobody was asked", [Problem("what", f"must be 1 to {MAX_TEXT} characters")])
        said = what if what is None else clean(what)
        why = await self._change(
            lambda tx: heartbeats.request_person(tx, self._ctx, ref, said),
            answer=lambda why: why and NOTHING,
            brief=True,
        )
        heartbeats.lost(ref, why)
