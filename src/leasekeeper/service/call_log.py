"""Logs what callers of the server did: one line for each submitted job, ended run, lease without a job, decision and
configuration change; a late write is a warning. Reads leave no line. No payload, note or secret is in one.

The store's events have all of it too; this is for people who read the server's log.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.calls import Request
from leasekeeper.core.decisions import Decision
from leasekeeper.core.fleet import Change
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.secrets import Secret
from leasekeeper.core.settle import Ending
from leasekeeper.core.tokens import ApiToken
from leasekeeper.errors import LeaseLost
from leasekeeper.ports import Decided, Grant, HandedOver, Settled, Store, Submitted
from leasekeeper.runtime.log_fields import ids_of
from leasekeeper.wording import REFUSALS

_LOG = logging.getLogger(__name__)

MAX_LINES: Final = 50  # of one call
# Their refusals are late writes too; their success is not logged.
_UNDER_A_LEASE: Final = frozenset({"checkpoint", "enter_section", "leave_section", "write_note", "lease_secrets"})


class LoggedStore:
    """A store whose calls are logged. All other attributes are the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        write = _LINES.get(name)
        return operation if write is None and name not in _UNDER_A_LEASE else partial(_call, name, operation, write)

    def once(self, request: Request) -> Store:
        return logged(self._store.once(request))


def logged(store: Store) -> Store:
    """The store, wrapped so that its calls are logged."""
    return cast(Store, LoggedStore(store))


async def _call(name: str, operation: Any, write: Callable[..., None] | None, /, *given: Any, **named: Any) -> Any:
    try:
        value = await operation(*given, **named)
    except LeaseLost as lost:
        ids = {"lease_id": lost.lease_id, "profile_id": lost.profile_id, "reason": lost.refusal}
        _LOG.warning("a late %s was refused: %s", name, lost.message, extra=ids)
        raise
    if write is not None:
        write(value, *given, **named)
    return value


def _submitted(answers: Sequence[Submitted], *_given: object, **_named: object) -> None:
    for answer in answers[:MAX_LINES]:
        job = answer.job
        known = "was known already by its key" if answer.already_handled else f"was submitted and is {job.state}"
        ids = {"job_id": job.job_id, "account_id": job.account_id, "profile_id": job.profile_id, "task": job.task}
        _LOG.info("job %s %s: task %s, profile %s", job.job_id, known, job.task, job.profile_id, extra=ids)
    _rest("jobs submitted", answers)


def _granted(grant: Grant, *_given: object, **_named: object) -> None:
    lease = grant.lease
    _LOG.info(
        "lease %s granted: profile %s, worker %s, purpose %s", lease.lease_id, lease.profile_id, lease.worker_id,
        lease.purpose, extra=ids_of(lease),
    )  # fmt: skip


def _claimed(grants: Sequence[Grant], *_given: object, **_named: object) -> None:
    for grant in grants[:MAX_LINES]:
        lease = grant.lease
        _LOG.debug(
            "lease %s granted: job %s, worker %s", lease.lease_id, lease.job_id, lease.worker_id, extra=ids_of(lease)
        )


def _settled(answers: Sequence[Settled], endings: Sequence[Ending]) -> None:
    for settled, ending in list(zip(answers, endings, strict=True))[:MAX_LINES]:
        _ended(settled, ending.ref)
    _rest("runs ended", answers)


def _handed_over(answer: HandedOver | None, ending: Ending, *_given: object, **_named: object) -> None:
    if answer is not None:
        _ended(answer.settled, ending.ref)
        _claimed([] if answer.grant is None else [answer.grant])


def _ended(settled: Settled, ref: LeaseRef) -> None:
    ids: dict[str, object] = {
        "run_id": ref.run_id, "profile_id": ref.profile_id, "lease_id": ref.lease_id, "token": ref.token
    }  # fmt: skip
    settlement = settled.settlement
    if settled.refused is not None or settlement is None:
        why = "" if settled.refused is None else REFUSALS[settled.refused]
        _LOG.warning("run %s: its ending was refused: %s", ref.run_id, why, extra=ids)
        return
    job = "" if settled.job_state is None else f", its job is {settled.job_state}"
    _LOG.info(
        "run %s ended: %s%s; profile %s is %s%s", ref.run_id, settlement.result,
        f" ({settlement.stop_reason})" if settlement.stop_reason else "", ref.profile_id, settled.profile_state, job,
        extra={**ids, "result": settlement.result, "reason": settlement.stop_reason},
    )  # fmt: skip


def _decided(done: Decided, decision: Decision) -> None:
    _LOG.info(
        "%s: %s %s %s, which is now %s", decision.actor, decision.action, decision.target, decision.id, done.state,
        extra={f"{decision.target}_id": decision.id},
    )  # fmt: skip


def _applied(
    changes: Sequence[Change],
    *_given: object,
    actor: str,
    prune: bool = False,
    dry_run: bool = False,
    **_named: object,
) -> None:
    if changes and not dry_run:
        _LOG.info("%s: a fleet was applied, %d changes%s", actor, len(changes), ", pruned" if prune else "")


def _token(token: ApiToken, *_given: object, actor: str, **_named: object) -> None:
    _LOG.info("%s: token %s (%s) was created: %s", actor, token.token_id, token.name, ", ".join(token.scopes))


def _endpoint(endpoint: Endpoint, *_given: object, actor: str, **_named: object) -> None:
    _LOG.info("%s: endpoint %s was added", actor, endpoint.endpoint_id, extra={"endpoint_id": endpoint.endpoint_id})


def _secret(secret: Secret, *_given: object, actor: str, **_named: object) -> None:
    _LOG.info("%s: secret %s was stored", actor, secret.name)


def _secret_removed(_none: None, name: str, *, actor: str, **_named: object) -> None:
    _LOG.info("%s: secret %s was removed", actor, name)


def _rest(what: str, items: Sequence[object]) -> None:
    if len(items) > MAX_LINES:
        _LOG.info("%d more %s: the events have them all", len(items) - MAX_LINES, what)


# How the line of an operation is written: from its answer and the arguments of the port.
_LINES: Final[dict[str, Callable[..., None]]] = {
    "submit": _submitted,
    "acquire": _granted,
    "claim": _claimed,
    "settle": _settled,
    "hand_over": _handed_over,
    "decide": _decided,
    "apply": _applied,
    "create_token": _token,
    "add_endpoint": _endpoint,
    "put_secret": _secret,
    "remove_secret": _secret_removed,
}
