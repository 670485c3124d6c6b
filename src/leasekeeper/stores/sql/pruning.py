"""Retention: deletes old finished jobs with their runs, old events, webhooks and answers, one batch at a time."""

from datetime import datetime, timedelta

from leasekeeper.core.calls import ANSWERS_KEPT
from leasekeeper.core.policy import Retention
from leasekeeper.stores.sql.codec import Row, to_us
from leasekeeper.stores.sql.engine import Params, Tx


def prune(tx: Tx, retention: Retention, limit: int) -> int:
    """Delete one batch of records older than the retention. Returns how many.

    Never deleted, however old: open jobs, live and unresolved leases, pending webhooks, the event with the current
    state of a job or profile, and the newest event (so that the numbers of events only grow).
    """
    now, _ = tx.clock()
    (answers,) = tx.read(("old_answers", {"cutoff": to_us(now - ANSWERS_KEPT), "limit": limit}))
    if answers:
        tx.write("prune_answers", answers)
    gone = 0
    if retention.jobs is not None:
        gone += _prune_jobs(tx, now, retention.jobs, limit)
    if retention.events is not None:
        cutoff = to_us(now - retention.events)
        before = _first_event_since(tx, cutoff)
        (events,) = tx.read(("old_events", {"before": before, "cutoff": cutoff, "limit": limit}))
        if events:
            tx.write("prune_events", events)
        gone += len(events)
    return gone


def _prune_jobs(tx: Tx, now: datetime, keep: timedelta, limit: int) -> int:
    wanted = {"before": to_us(now - keep), "limit": limit}
    jobs, runs, deliveries = tx.read(("finished_jobs", wanted), ("old_runs", wanted), ("old_deliveries", wanted))
    if jobs:
        jobs = _still_finished(tx, {row["profile_id"] for row in jobs}, wanted)
    if jobs:
        of_jobs = [{"job_id": row["job_id"], "profile_id": row["profile_id"]} for row in jobs]
        for name in ("prune_job_runs", "prune_job_reviews"):
            tx.write(name, of_jobs)
        tx.write("prune_jobs", [{"seq": row["seq"], "finished_at": row["finished_at"]} for row in jobs])
    if runs:
        tx.write("prune_runs", runs)
    if deliveries:
        tx.write("prune_deliveries", deliveries)
    return len(jobs) + len(runs) + len(deliveries)


def _still_finished(tx: Tx, profiles: set[str], wanted: Params) -> list[Row]:
    """The finished jobs, read again under the locks of their lanes, as a person may be about to retry one. Jobs whose
    lane another transaction has locked are left for the next call."""
    ids = {"ids": sorted(profiles)}
    free, there = tx.read(("lock_lanes_free", ids), ("lanes_there", ids))
    locked = {row["profile_id"] for row in there} - {row["profile_id"] for row in free}
    (jobs,) = tx.read(("finished_jobs", wanted))
    return [row for row in jobs if row["profile_id"] in profiles - locked]


def _first_event_since(tx: Tx, at: int) -> int:
    """The number of the first event at or after this time, by binary search: events are nearly in the order of time."""
    ends = tx.read(("first_events_from", {"seq": 0}), ("last_event", {}))
    if not all(ends):
        return 0
    low, high = ends[0][0]["seq"], ends[1][0]["seq"] + 1
    while low < high:
        middle = (low + high) // 2
        (found,) = tx.read(("first_events_from", {"seq": middle}))
        if found and found[0]["at"] < at:
            low = found[0]["seq"] + 1
        else:
            high = middle
    return int(low)
