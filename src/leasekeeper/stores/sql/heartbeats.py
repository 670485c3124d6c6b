"""Writes of the holder of a live lease: heartbeats, safe steps, mutating sections, requests for a person."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from leasekeeper.core.control import answer_of
from leasekeeper.core.decisions import Decision, Target
from leasekeeper.core.deliveries import LONGEST_WAIT, SPREAD
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import LeaseId
from leasekeeper.core.leases import STEPS, Lease, LeaseRef, Refusal, renewed
from leasekeeper.core.records import evolve
from leasekeeper.core.sections import section_entered, section_left, step_reached
from leasekeeper.errors import LeaseExpired, LeaseLost
from leasekeeper.ports import Renewal, Renewed
from leasekeeper.stores.sql.codec import encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import leases, refused, writer_of
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.lost_grants import review_forgotten
from leasekeeper.wording import REFUSALS

_KEY = ("profile_id", "token")
renewal_row = encoder(Lease, (*_KEY, "heartbeat_at", "expires_at", "status"))
step_row = encoder(Lease, (*_KEY, *STEPS))


def renew(tx: Tx, ctx: Context, renewals: Sequence[Renewal]) -> list[Renewed]:
    """Renew each live lease for one TTL from now. Refused renewals are in the answer."""
    now, held = leases(tx, [renewal.ref for renewal in renewals])
    log = Log(ctx, now)
    answers = []
    changed: dict[LeaseId, Lease] = {}
    unknown = []
    for renewal in renewals:
        lease = held.get(renewal.ref.lease_id)
        why = refused(tx, lease, renewal.ref, now)
        if lease is None or why is not None:
            why = why or Refusal.NO_SUCH_LEASE
            log.refused(renewal.ref, "renew", why, lease or writer_of(tx, renewal.ref))
            answers.append(Renewed(lease_id=renewal.ref.lease_id, refused=why))
            if why is Refusal.NO_SUCH_LEASE:
                unknown.append(renewal.ref)
            continue
        after = held[lease.lease_id] = changed[lease.lease_id] = renewed(lease, renewal.status, now)
        answers.append(Renewed(lease_id=lease.lease_id, expires_at=after.expires_at, answer=answer_of(lease)))
    if changed:
        tx.write("renew_runs", [renewal_row(lease) for lease in changed.values()])
    review_forgotten(tx, log, unknown, now)
    log.save(tx)
    return answers


def checkpoint(tx: Tx, ctx: Context, ref: LeaseRef, step: str, url: str | None) -> Refusal | None:
    """Record a safe step. Returns why it was refused, or None."""
    lease, log, why = live_lease(tx, ctx, ref, "checkpoint")
    if lease is not None and why is None:
        tx.write("step_runs", [step_row(step_reached(lease, step, url, log.now))])
        log.event(EventType.CHECKPOINT_SAVED, lease=lease, data={"step": step})
    log.save(tx)
    return why


def enter_section(tx: Tx, ctx: Context, ref: LeaseRef, name: str, *, idempotent: bool) -> Refusal | None:
    """Open a mutating section; sections do not nest."""
    lease, log, why = live_lease(tx, ctx, ref, "enter_section")
    if lease is not None and why is None:
        disposable = lease.shared and _disposable(tx, lease)
        entered = section_entered(lease, name, idempotent=idempotent, disposable=disposable, now=log.now)
        tx.write("step_runs", [step_row(entered)])
        log.event(EventType.SECTION_ENTERED, lease=lease, data={"section": name, "idempotent": idempotent})
    log.save(tx)
    return why


def _disposable(tx: Tx, lease: Lease) -> bool:
    (rows,) = tx.read(("configs", {"ids": [lease.profile_id]}))
    return bool(rows and rows[0]["disposable"])


def leave_section(tx: Tx, ctx: Context, ref: LeaseRef, name: str) -> Refusal | None:
    """Close the open mutating section."""
    lease, log, why = live_lease(tx, ctx, ref, "leave_section")
    if lease is not None and why is None:
        tx.write("step_runs", [step_row(section_left(lease, name))])
        log.event(EventType.SECTION_LEFT, lease=lease, data={"section": name})
    log.save(tx)
    return why


def request_person(tx: Tx, ctx: Context, ref: LeaseRef, what: str | None) -> Refusal | None:
    """Say that the run waits for a person, who has to do `what`. None: it no longer waits. Opens or closes a review."""
    lease, log, why = live_lease(tx, ctx, ref, "request_person")
    if lease is None or why is not None or lease.asks_person == what:
        log.save(tx)
        return why
    tx.write("step_runs", [step_row(evolve(lease, asks_person=what, person_answer=None))])
    if lease.asks_person is not None:
        withdraw_request(tx, lease, log.now)
    if what is None and lease.person_answer is None:
        log.event(EventType.HUMAN_REQUEST_WITHDRAWN, lease=lease)
    elif what is not None:
        log.event(EventType.HUMAN_REQUESTED, lease=lease, data={"what": what})
        log.review_request(lease, what)
    log.save(tx)
    return why


def withdraw_request(tx: Tx, lease: Lease, now: datetime) -> None:
    """Close the review of a run that no longer waits for a person."""
    close_request(tx, lease, now, None)


def close_request(tx: Tx, lease: Lease, now: datetime, decision: Decision | None) -> None:
    """Close the review in which a run asks for a person. `decision` is the person's; None: the run no longer waits."""
    target, subject = (Target.JOB, lease.job_id) if lease.job_id else (Target.PROFILE, lease.profile_id)
    closed = {
        "decision": decision.action.value if decision is not None else None,
        "note": decision.note if decision is not None else "the run does not wait any more",
        "actor": decision.actor if decision is not None else "",
        "decided_at": to_us(now),
    }
    tx.write("close_reviews", [{"target": target.value, "subject": subject, **closed}])


def lost(ref: LeaseRef, why: Refusal | None) -> None:
    """Raise LeaseLost or LeaseExpired for a refusal: the holder must stop. Does nothing if there is none."""
    if why is not None:
        kind = LeaseExpired if why is Refusal.OVERDUE else LeaseLost
        raise kind(
            f"lease {ref.lease_id}: {REFUSALS[why]}; nothing was written. Stop using profile {ref.profile_id}",
            refusal=why,
            lease_id=ref.lease_id,
            profile_id=ref.profile_id,
        )


def live_lease(tx: Tx, ctx: Context, ref: LeaseRef, what: str) -> tuple[Lease | None, Log, Refusal | None]:
    """Lock and read the lease of a write. Returns the lease, the log, and why the write is refused (None: it is not).
    The log already has the event of the refusal."""
    now, held = leases(tx, [ref])
    lease = held.get(ref.lease_id)
    log = Log(ctx, now)
    why = refused(tx, lease, ref, now)
    if why is not None:
        log.refused(ref, what, why, lease or writer_of(tx, ref))
    return lease, log, why


def pause_expiry(tx: Tx, ctx: Context, span: timedelta, jump: timedelta) -> None:
    """After a jump of the clock: no lease expires for `span`, and every live lease gets its full TTL from now.

    Webhooks whose next attempt is later than the longest delay become due: that time is from before a jump back.
    """
    # Under all locks: else a concurrent renewal could overwrite the new expiry with one from before the jump.
    now, _ = tx.clock(("lock_fleet", {}), ("lock_all_lanes", {}))
    # After a jump back, the end of an earlier pause is too far in the future: it is discarded.
    tx.write("pause_expiry", [{"resumes_at": to_us(now + span), "back": jump < timedelta(0)}])
    tx.write("restart_expiry", [{"now": to_us(now)}])
    tx.write("hasten_deliveries", [{"now": to_us(now), "latest": to_us(now + LONGEST_WAIT * (1 + SPREAD))}])
    log = Log(ctx, now)
    data = {"jump_seconds": jump.total_seconds(), "expiry_paused_seconds": span.total_seconds()}
    log.event(EventType.CLOCK_JUMPED, data=data)
    log.save(tx)
