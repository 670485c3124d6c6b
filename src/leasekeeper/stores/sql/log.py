"""Events, reviews and webhooks of an operation, written in the same commit as its changes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from leasekeeper.core.accounts import Account
from leasekeeper.core.alerts import JOB_ALERTS, REVIEW_OPENED, Endpoint, names_of
from leasekeeper.core.conflicts import REFUSED, ConflictCause, ConflictDecision, seconds_left
from leasekeeper.core.decisions import BAN_ACTIONS, Action, Review, ReviewReason, Target
from leasekeeper.core.deliveries import Delivery, host_of
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import JobId, ProxyId, ReviewId, RunId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import Lease, LeaseRef, Refusal
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.ports import LeaseRequest
from leasekeeper.stores.sql import alerts
from leasekeeper.stores.sql.alerts import Alert
from leasekeeper.stores.sql.codec import dump, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.wire.encoding import encode_time

_write_event = encoder(Event)
_write_review = encoder(Review)
_write_delivery = encoder(Delivery)


class Log:
    """Collects the events, reviews and webhooks of one operation, and writes them together."""

    __slots__ = ("_at", "_ctx", "_deliveries", "_ended_jobs", "_events", "_reviews", "now")

    def __init__(self, ctx: Context, now: datetime) -> None:
        self.now = now
        self._at = to_us(now)
        self._ctx = ctx
        self._events: list[dict[str, Any]] = []
        self._reviews: list[dict[str, Any]] = []
        self._deliveries: list[dict[str, Any]] = []
        self._ended_jobs: list[Job] = []

    def event(
        self,
        kind: EventType,
        *,
        job: Job | None = None,
        lane: Lane | None = None,
        lease: Lease | None = None,
        profile_id: str | None = None,
        account_id: str | None = None,
        job_id: str | None = None,
        run_id: str | None = None,
        worker_id: str | None = None,
        actor: str = "",
        job_state: JobState | None = None,
        profile_state: ProfileState | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        """Add one event. Ids that are not given are taken from the lease, job or lane."""
        source = lease or job or lane
        self._events.append(
            {
                "at": self._at,
                "type": kind._value_,  # in Python 3.11 `value` is a function call
                "account_id": account_id or (source.account_id if source else None),
                "profile_id": profile_id or (source.profile_id if source else None),
                "job_id": job_id or (job.job_id if job else (lease.job_id if lease else None)),
                "run_id": run_id or (lease.run_id if lease else None),
                "worker_id": worker_id or (lease.worker_id if lease else None),
                "actor": actor,
                "job_state": job_state._value_ if job_state else None,
                "profile_state": profile_state._value_ if profile_state else None,
                "data": dump(data) if data else "{}",
            }
        )

    def add(self, event: Event) -> None:
        """Add one event as it is."""
        row = _write_event(event)
        del row["seq"]
        self._events.append(row)

    def account(
        self,
        before: Account,
        after: Account,
        *,
        note: str,
        actor: str = "",
        run: Lease | None = None,
        decided: Action | None = None,
        until: datetime | None = None,
    ) -> None:
        """Add the events of an account that was paused or resumed (a person's decision counts even if it was so
        already), or whose ban status changed."""
        about: dict[str, Any] = {"lease": run, "account_id": after.account_id, "actor": actor}
        if after.ban_status is not before.ban_status or decided in BAN_ACTIONS:
            data = {"ban_status": after.ban_status.value, "from": before.ban_status.value, "note": note}
            self.event(EventType.ACCOUNT_BAN_CHANGED, **about, data=data)
        if after.paused is not before.paused or decided in (Action.PAUSE, Action.RESUME):
            kind = EventType.ACCOUNT_PAUSED if after.paused else EventType.ACCOUNT_RESUMED
            data = {"note": after.pause_note if after.paused and run else note}
            self.event(kind, **about, data=data | ({"until": encode_time(until)} if until else {}))

    def refused(self, ref: LeaseRef, what: str, why: Refusal, writer: Lease | None) -> None:
        """Add the event of a refused write. `writer` is the lease with this token, maybe of another run."""
        self.event(
            EventType.STALE_WORKER_WRITE_REJECTED,
            lease=writer if writer is not None and writer.run_id == ref.run_id else None,
            profile_id=ref.profile_id,
            run_id=ref.run_id,
            data={"lease_id": ref.lease_id, "token": ref.token, "write": what, "why": why},
        )

    def conflict(
        self, job: Job, holder: Lease, decided: ConflictDecision, *, job_state: JobState | None = None
    ) -> None:
        """Add the event of a job in conflict with another run's lease, and the review and webhooks that follow."""
        self.event(
            EventType.PROFILE_LOCK_CONFLICT,
            job=job,
            run_id=holder.run_id,
            worker_id=holder.worker_id,
            job_state=job_state,
            data={
                "profile_id": job.profile_id,
                "blocked_job_id": job.job_id,
                "blocked_task": job.task,
                **_holder_data(holder),
                "decision": decided.decision,
                "next_check_seconds": decided.next_check_seconds,
                "cause": decided.cause.value,
            },
        )
        if job.state is JobState.REVIEW:
            self.review_job(job, ReviewReason.PROFILE_LOCK_CONFLICT, f"its profile was taken ({decided.cause})")
        self.notify(job)

    def lease_refused(self, lane: Lane, holder: Lease, request: LeaseRequest, cause: ConflictCause) -> None:
        """Add the event of a direct lease that was refused because another run has the profile."""
        self.event(
            EventType.PROFILE_LOCK_CONFLICT,
            lane=lane,
            run_id=holder.run_id,
            worker_id=holder.worker_id,
            data={
                "profile_id": lane.profile_id,
                "blocked_job_id": None,
                "blocked_purpose": request.purpose.value,
                "blocked_worker_id": request.worker_id,
                **_holder_data(holder),
                "decision": REFUSED,
                "next_check_seconds": seconds_left(holder, self.now),
                "cause": cause.value,
            },
        )

    def review_request(self, lease: Lease, what: str) -> None:
        """Open a review because a run asks for a person: about its job, or about its profile if it has no job."""
        target, subject = (Target.JOB, lease.job_id) if lease.job_id else (Target.PROFILE, lease.profile_id)
        self._review(target, subject, lease, lease, lease.run_id, Reason.HUMAN_REVIEW_REQUIRED, what)

    def review_profile(self, lane: Lane, run_id: RunId | None, reason: str, summary: str) -> None:
        self._review(Target.PROFILE, lane.profile_id, lane, None, run_id, reason, summary)

    def review_job(self, job: Job, reason: str, summary: str) -> None:
        self._review(Target.JOB, job.job_id, job, job, job.run_id, reason, summary)

    def review_proxy(self, lane: Lane, proxy_id: str, reason: str, summary: str) -> None:
        self._review(Target.PROXY, proxy_id, lane, None, None, reason, summary)

    def review_approval(self, job: Job) -> None:
        self.review_job(job, ReviewReason.APPROVAL, f"task {job.task} waits for approval before it runs")

    def _review(
        self,
        target: Target,
        subject: str,
        of: Lane | Job | Lease,
        job: Job | Lease | None,
        run_id: RunId | None,
        reason: str,
        summary: str,
    ) -> None:
        review = Review(
            review_id=ReviewId(self._ctx.new_id()),
            target=target,
            account_id=of.account_id,
            profile_id=of.profile_id,
            job_id=job.job_id if job else None,
            run_id=run_id,
            reason=reason,
            summary=summary,
            opened_at=self.now,
            proxy_id=ProxyId(subject) if target is Target.PROXY else None,
        )
        self._reviews.append({**_write_review(review), "subject": subject})

    def notify(self, job: Job) -> None:
        """Add the webhooks for a job's new state, if it has any: to its callback_url and to registered endpoints."""
        if job.state not in JOB_ALERTS:
            return
        self._ended_jobs.append(job)
        if job.callback_url is not None:
            alert = JOB_ALERTS[job.state]
            self._add_delivery(alert, job.callback_url, _job_body(job), job.job_id, traceparent=job.traceparent)

    def notify_endpoint(
        self,
        endpoint: Endpoint,
        alert: str,
        job_id: str | None,
        body: Mapping[str, object],
        traceparent: str | None = None,
    ) -> None:
        """Add a webhook to a registered endpoint."""
        self._add_delivery(alert, endpoint.url, body, job_id, endpoint.endpoint_id, traceparent=traceparent)

    def _add_delivery(
        self,
        kind: str,
        url: str,
        body: Mapping[str, object],
        job_id: str | None,
        endpoint_id: str | None = None,
        *,
        traceparent: str | None = None,
    ) -> None:
        delivery = Delivery(
            delivery_id=self._ctx.new_id(),
            job_id=None if job_id is None else JobId(job_id),
            endpoint_id=endpoint_id,
            type=kind,
            url=url,
            host=host_of(url),
            body=body,
            traceparent=traceparent,
            created_at=self.now,
            due_at=self.now,
        )
        row = _write_delivery(delivery)
        del row["seq"]
        self._deliveries.append(row)

    def _add_alerts(self, tx: Tx) -> None:
        """Add the webhooks to registered endpoints for everything that this operation logged."""
        if not (self._ended_jobs or self._reviews or any(map(_is_alert, self._events))) or not alerts.endpoints(tx):
            return
        found = [Alert(JOB_ALERTS[job.state], job.job_id, _job_body(job), job.traceparent) for job in self._ended_jobs]
        found += alerts.of_events(self._events)
        if self._reviews and alerts.receivers(tx, [REVIEW_OPENED]).get(REVIEW_OPENED):
            found += alerts.of_reviews(tx, self._reviews)
        receivers = alerts.receivers(tx, (alert.name for alert in found))
        for alert in found:
            for endpoint in receivers.get(alert.name, ()):
                self.notify_endpoint(endpoint, *alert)

    def save(self, tx: Tx) -> None:
        """Pass all rows to the transaction."""
        self._add_alerts(tx)
        for name, rows in self._parts():
            if rows:
                tx.write(name, rows)

    def _parts(self) -> Sequence[tuple[str, list[dict[str, Any]]]]:
        return (
            ("insert_events", self._events),
            ("insert_reviews", self._reviews),
            ("insert_deliveries", self._deliveries),
        )


def _holder_data(holder: Lease) -> dict[str, object]:
    """The data of a conflict about the run that has the profile or the account's key."""
    return {
        "current_job_id": holder.job_id,
        "current_run_id": holder.run_id,
        "current_worker_id": holder.worker_id,
        "current_profile_id": holder.profile_id,
    }


def _is_alert(row: Mapping[str, Any]) -> bool:
    return next(names_of(row["type"], row["profile_state"]), None) is not None


def _job_body(job: Job) -> dict[str, object]:
    return {
        "job_id": job.job_id,
        "account_id": job.account_id,
        "profile_id": job.profile_id,
        "task": job.task,
        "state": job.state.value,
        "attempt": job.attempt,
        "run_id": job.run_id,
        "stop_reason": job.stop_reason,
    }
