"""What every metric says of one history: jobs, a conflict, a lost worker and its late write, failed starts, a prompt,
a ban, reviews, webhooks and a snapshot, made by the store itself.
"""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from leasekeeper import config
from leasekeeper.core.failures import Reason
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.jobs import OnConflict
from leasekeeper.core.snapshots import DirectoryReport, Verdict
from leasekeeper.service.call_times import timed
from leasekeeper.service.metric_table import METRICS
from leasekeeper.service.metrics import Metrics
from tests.conformance.audit import audit
from tests.conformance.test_snapshots import STORE, uploaded
from tests.conformance.world import World, limit, new_world, profile

HOOK = "https://hooks.test/in"
TIMINGS = {"open": 1.0, "task": 2.0, "evidence": 0.5, "close": 0.25}
# Metric → labels → value. Of histograms: how many, and their sum.
Value = float | tuple[float, float]
EXPECTED: dict[str, dict[tuple[str, ...], Value]] = {
    "leasekeeper_jobs": {("blocked",): 1, ("review",): 2, ("scheduled",): 2},
    "leasekeeper_jobs_blocked": {("blocked_by_profile_lease",): 1},
    "leasekeeper_profiles": {("available",): 2, ("leased",): 1, ("quarantined",): 2, ("review_required",): 1},
    "leasekeeper_pool_leases": {("default",): 1},
    "leasekeeper_pool_limit": {("default",): 9},
    "leasekeeper_reviews_open": {(): 5},
    "leasekeeper_review_oldest_age_seconds": {(): 7},
    "leasekeeper_webhooks_pending": {(): 1},
    "leasekeeper_webhooks_exhausted": {(): 1},
    "leasekeeper_webhook_lag_seconds": {(): 7},
    "leasekeeper_workers": {("reporting",): 1},
    "leasekeeper_jobs_ended_total": {("cancelled",): 3, ("completed",): 1, ("skipped",): 1},
    "leasekeeper_runs_total": {
        ("completed", ""): 2,
        ("failed", "ACCOUNT_BANNED"): 1,
        ("failed", "BROWSER_LAUNCH_FAILED"): 1,
        ("failed", "SECURITY_PROMPT"): 1,
    },
    "leasekeeper_browser_start_failures_total": {("BROWSER_LAUNCH_FAILED",): 1},
    "leasekeeper_snapshots_total": {("logged_in",): 1},
    "leasekeeper_snapshot_bytes_total": {(): 40},
    "leasekeeper_profile_size_bytes": {(): (1, 3_000_000)},
    "leasekeeper_conflicts_total": {("same_account_routing",): 2},
    "leasekeeper_leases_lost_total": {("expired",): 1},
    "leasekeeper_late_writes_rejected_total": {("settle",): 1},
    "leasekeeper_webhooks_total": {("delivered",): 1, ("exhausted",): 1},
    "leasekeeper_profile_runs_total": {("other",): 3, ("p4",): 1, ("p5",): 1},
    "leasekeeper_profile_prompts_total": {("p5", "SECURITY_PROMPT"): 1},
    "leasekeeper_profile_bans_total": {("p4",): 1},
    "leasekeeper_profiles_quarantined_total": {("p2",): 1, ("p5",): 1},
    "leasekeeper_bans_total": {(): 1},
    "leasekeeper_quarantines_total": {(): 2},
    "leasekeeper_job_wait_seconds": {("visit",): (5, 3)},
    "leasekeeper_run_seconds": {
        ("", "all"): (1, 0),
        ("visit", "all"): (4, 5),
        **{("visit", phase): (1, seconds) for phase, seconds in TIMINGS.items()},
    },
    "leasekeeper_store_call_seconds": {("acquire",): 2, ("claim",): 5, ("settle",): 6, ("submit",): 10},
}
EVENTS = "leasekeeper_events_total"


async def history(world: World) -> None:
    """One after the other; nothing here depends on real time."""
    await world.store.apply(Fleet(profile_store=STORE), actor="ann")
    done = await world.add("p1")
    world.advance(3)
    saved = await world.take(machine="m1")
    assert saved.job is not None
    assert saved.job.job_id == done.job_id
    world.advance(5)
    report = DirectoryReport(size_bytes=3_000_000, verdict=Verdict.LOGGED_IN)
    await world.finish(saved, timings=TIMINGS, engine=150, directory=report, snapshot=uploaded(saved))
    # A job meets a person's lease, and is skipped.
    manual = await world.acquire("p1")
    await world.add("p1", on_conflict=OnConflict.SKIP)
    await world.finish(manual)
    # A worker vanishes, and writes late.
    lost = await world.run("p2")
    await world.lose(lost)
    assert (await world.finish(lost)).refused is not None
    await world.resolve(lost)
    for profile_id, reason in (
        ("p3", Reason.BROWSER_LAUNCH_FAILED),
        ("p4", Reason.ACCOUNT_BANNED),
        ("p5", Reason.SECURITY_PROMPT),
    ):
        await world.finish(await world.run(profile_id), reason)
    await world.send(HOOK, 200)
    await world.send("https://gone.test/in", 410)
    await world.owe(HOOK)
    await world.acquire("p6")
    await world.add("p6")
    world.advance(7)


async def test_every_metric_says_what_happened(sqlite_file_url: str) -> None:
    fleet = [profile(f"p{number}", f"a{number}") for number in range(1, 7)]
    async with new_world(sqlite_file_url, audit)(*fleet, limit("default", 9)) as world:
        metrics = Metrics(world.store, config.load({}))
        world.store = timed(world.store, metrics.called)
        await history(world)
        for event in await world.events():
            metrics.seen(event)
        found = values(await metrics.text())
        assert found.pop(EVENTS) == Counter((event.type.value,) for event in await world.events())
        assert found == EXPECTED


def test_that_history_is_in_every_metric() -> None:
    assert {*EXPECTED, EVENTS} == {row.name for row in METRICS}


def values(text: bytes) -> dict[str, dict[tuple[str, ...], Value]]:
    """What is not 0. Durations of calls are real: only their number is known."""
    found: dict[str, dict[tuple[str, ...], Value]] = {}
    for family in text_string_to_metric_families(text.decode()):
        row = next(row for row in METRICS if row.name.removesuffix("_total") == family.name)
        sums = {
            tuple(s.labels.get(n, "") for n in row.labels): s.value for s in family.samples if s.name.endswith("_sum")
        }
        for sample in family.samples:
            if (
                sample.value
                and "le" not in sample.labels
                and sample.name.removesuffix("_count") in (row.name, row.name.removesuffix("_total"))
            ):
                labels = tuple(sample.labels[name] for name in row.labels)
                histogram = row.kind == "histogram" and row.name != "leasekeeper_store_call_seconds"
                value = (sample.value, sums[labels]) if histogram else sample.value
                found.setdefault(row.name, {})[labels] = value
    return found
