"""`/v1/events/stream` and `/metrics` of a real server."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from leasekeeper.core.accounts import Limit
from leasekeeper.core.conflicts import ConflictCause
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import LeaseRequest
from leasekeeper.service import metrics as metrics_module
from leasekeeper.service.metric_table import METRICS
from leasekeeper.service.metrics import MAX_LABELS, OTHER, Metrics, Names, TroubledProfiles
from tests.conformance.world import START, end, fleet, profile
from tests.serving import Served

TIMEOUT = httpx2.Timeout(60)


def record(served: Served, profile_id: str, account_id: str = "shop") -> None:
    event = Event(
        at=START,
        type=EventType.MANUAL_USE_DETECTED,
        profile_id=ProfileId(profile_id),
        account_id=AccountId(account_id),
    )
    served.run(served.store.record(event))


@contextmanager
def streaming(served: Served, query: str = "", **headers: str) -> "Iterator[Iterator[dict[str, Any]]]":
    """The messages of a stream, from after it has begun."""
    address = f"{served.url}/v1/events/stream{query}"
    with httpx2.stream("GET", address, headers={**served.headers, **headers}, timeout=TIMEOUT) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        begun = _message(lines)
        assert "retry" in begun
        yield _messages(lines)


def _messages(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    while True:
        message = _message(lines)
        if "data" in message:
            yield {**message, "data": json.loads(message["data"])}


def _message(lines: Iterator[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if not line:
            return found
        name, _, value = line.partition(": ")
        found[name] = value
    raise AssertionError("the stream has ended")


def test_a_stream_brings_new_events_and_goes_on_where_it_was_cut(served: Served) -> None:
    record(served, "before")
    with streaming(served) as messages:
        record(served, "p1")
        first = next(messages)
    assert (first["event"], first["data"]["profile_id"]) == ("manual_use_detected", "p1")
    record(served, "p2")
    with streaming(served, **{"Last-Event-ID": first["id"]}) as messages:
        assert next(messages)["data"]["profile_id"] == "p2"


def test_a_stream_brings_what_was_asked_for(served: Served) -> None:
    with streaming(served, "?profile_id=p2,p3&type=manual_use_detected") as messages:
        for name in ("p1", "p2", "p3"):
            record(served, name)
        assert [next(messages)["data"]["profile_id"] for _ in range(2)] == ["p2", "p3"]


def test_many_streams_read_the_store_as_often_as_one(served: Served) -> None:
    got: list[str] = []
    begun, count = threading.Barrier(31, timeout=60), 30

    def read() -> None:
        with streaming(served) as messages:
            begun.wait()
            got.append(next(messages)["data"]["profile_id"])

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    begun.wait()
    feed = served.service.signals._feed
    assert len(feed._listeners) == count
    record(served, "p1")
    for thread in threads:
        thread.join(60)
    assert got == ["p1"] * count


@pytest.mark.parametrize("query", ["?type=nonsense", "?profile_id=", "?after=x", "?color=red"])
def test_a_stream_that_cannot_be_made_is_a_problem(served: Served, query: str) -> None:
    answer = httpx2.get(f"{served.url}/v1/events/stream{query}", headers=served.headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_INPUT")


def test_a_position_from_long_ago_is_gone(served: Served) -> None:
    record(served, "p1")
    record(served, "p2")
    with streaming(served):
        answer = httpx2.get(f"{served.url}/v1/events/stream?after=0", headers=served.headers)
    assert answer.json()["code"] == "EVENTS_GONE"


def test_a_restricted_token_streams_its_own_account_alone(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.new_token('read', accounts=('shop',))}"}
    for query, status in (("", 403), ("?account_id=other", 403), ("?account_id=shop,other", 403)):
        assert httpx2.get(f"{served.url}/v1/events/stream{query}", headers=headers).status_code == status
    with streaming(served, "?account_id=shop", **headers) as messages:
        record(served, "p9", "other")
        record(served, "p1", "shop")
        assert next(messages)["data"]["profile_id"] == "p1"


def scrape(served: Served) -> dict[str, Any]:
    answer = httpx2.get(f"{served.url}/metrics", headers=served.headers)
    assert answer.status_code == 200
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert len(families) == len(METRICS)
    return families


def test_metrics_say_what_the_store_says_and_count_what_happens(served: Served) -> None:
    store = served.store
    before = scrape(served)
    assert set(before) == {row.name.removesuffix("_total") for row in METRICS}
    served.run(store.apply(fleet(profile("p1")), actor="ann"))
    served.run(store.submit([JobSpec(task="visit", profile_id=ProfileId("p1"))]))
    served.run((served.service.signals._feed).read())
    found = scrape(served)
    blocked = {sample.labels["reason"]: sample.value for sample in found["leasekeeper_jobs_blocked"].samples}
    assert blocked == {"blocked_by_no_worker": 1}
    profiles = {sample.labels["state"]: sample.value for sample in found["leasekeeper_profiles"].samples}
    assert profiles["available"] == 1
    events = {s.labels["type"]: s.value for s in found["leasekeeper_events"].samples if s.name.endswith("_total")}
    assert events["job_submitted"] == 1


def test_the_first_scrape_has_every_series_with_fixed_labels_at_0(served: Served) -> None:
    found = scrape(served)
    began = {
        name: [sample.value for sample in family.samples if not sample.name.endswith("_bucket")]
        for name, family in found.items()
        if family.type in ("counter", "histogram")
    }
    assert {name for name, values in began.items() if not values} == {
        "leasekeeper_job_wait_seconds",
        "leasekeeper_run_seconds",
    }, "only those by task begin later"
    assert {value for values in began.values() for value in values} == {0.0}
    causes = {sample.labels["cause"] for sample in found["leasekeeper_conflicts"].samples}
    assert causes == set(ConflictCause)
    assert {sample.labels["type"] for sample in found["leasekeeper_events"].samples} == set(EventType)


def test_metrics_need_a_token_that_may_read_the_fleet(served: Served) -> None:
    assert httpx2.get(f"{served.url}/metrics").status_code == 401
    for scopes, restricted, status in (
        (("read",), {}, 200),
        (("work",), {}, 403),
        (("read",), {"accounts": ("a",)}, 403),
    ):
        headers = {"Authorization": f"Bearer {served.new_token(*scopes, **restricted)}"}
        assert httpx2.get(f"{served.url}/metrics", headers=headers).status_code == status


def test_labels_are_bounded() -> None:
    names = Names()
    assert [names(f"p{n}") for n in range(MAX_LABELS)] == [f"p{n}" for n in range(MAX_LABELS)]
    assert (names("one more"), names("p0")) == (OTHER, "p0")


def test_the_profiles_with_most_trouble_have_names() -> None:
    dropped: list[str] = []
    worst = TroubledProfiles(dropped.append)
    for number in range(MAX_LABELS):
        worst.troubled(f"p{number:02}")
    worst.troubled("p00")
    worst.troubled("late")
    assert (worst("p00"), worst("late"), worst("quiet"), worst(None), dropped) == ("p00", OTHER, OTHER, OTHER, [])
    worst.troubled("late")
    assert (worst("late"), worst("p01"), worst("p00"), dropped) == ("late", OTHER, "p00", ["p01"])
    worst.troubled("p01")
    assert (worst("p01"), dropped) == ("p01", ["p01", "p02"])


def settled(profile_id: str, reason: str | None, **more: object) -> Event:
    data = {"result": "failed" if reason else "completed", "stop_reason": reason, **more}
    return Event(at=START, type=EventType.RUN_SETTLED, profile_id=ProfileId(profile_id), data=data)


def test_prompts_and_bans_are_counted_by_profile_beside_its_runs(served: Served) -> None:
    scrape(served)
    metrics: Metrics = served.run(served.service.signals.metrics())
    for number in range(MAX_LABELS):
        for _ in range(2):
            metrics.seen(settled(f"p{number:02}", "SECURITY_PROMPT"))
    metrics.seen(settled("quiet", None))
    for _ in range(3):
        metrics.seen(settled("late", "ACCOUNT_BANNED"))
    found = scrape(served)

    def of(name: str) -> dict[str, float]:
        return {sample.labels["profile"]: sample.value for sample in found[name].samples}

    prompts, runs, bans = (of(f"leasekeeper_profile_{what}") for what in ("prompts", "runs", "bans"))
    assert bans == {OTHER: 2, "late": 1}
    assert runs["late"] == 1
    assert runs[OTHER] == 3
    assert "p00" not in prompts  # its place is taken
    assert (len(prompts.keys() - {OTHER}), prompts["p01"], runs["p01"]) == (MAX_LABELS - 1, 2, 2)


def test_sizes_of_profiles_are_those_of_runs_that_were_in_their_directories(served: Served) -> None:
    scrape(served)
    metrics: Metrics = served.run(served.service.signals.metrics())
    for event in (settled("p1", None, size_bytes=3_000_000), settled("p1", None), settled("p2", None, size_bytes=1)):
        metrics.seen(event)
    sizes = {sample.name: sample.value for sample in scrape(served)["leasekeeper_profile_size_bytes"].samples}
    assert sizes["leasekeeper_profile_size_bytes_count"] == 2
    assert sizes["leasekeeper_profile_size_bytes_sum"] == 3_000_001


def test_calls_of_the_store_are_timed(served: Served) -> None:
    scrape(served)
    request = {"worker_id": "w", "incarnation": "w-1", "pool": "default", "tasks": ["visit"], "limit": 1}
    for _ in range(2):
        answer = httpx2.post(
            f"{served.url}/v1/store/claim",
            headers=served.headers,
            json={"version": 1, "arguments": {"request": request}},
        )
        assert answer.status_code == 200, answer.text
    samples = scrape(served)["leasekeeper_store_call_seconds"].samples
    counts = {s.labels["operation"]: s.value for s in samples if s.name.endswith("_count") and s.value}
    assert counts == {"claim": 2}


def test_what_fills_more_than_a_page_is_counted_whole(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_IN_PAGE", 2)
    monkeypatch.setattr(metrics_module, "MAX_SINGLE_READS", 1)
    scrape(served)
    store = served.store
    served.run(store.apply(fleet(profile("p1", driver="null")), actor="ann"))
    for number in range(5):
        name = f"w{number}"
        report = WorkerReport(worker_id=WorkerId(name), incarnation=name, pool="default", tasks=("visit",))
        served.run(store.report(report))
        request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId(name), incarnation=name)
        grant = served.run(store.acquire(request))
        served.run(store.settle([end(grant.lease.ref)]))
    served.run(served.service.signals._feed.read())
    found = scrape(served)
    assert {s.labels["state"]: s.value for s in found["leasekeeper_workers"].samples}["reporting"] == 5
    whole = {"task": "", "phase": "all"}
    counts = [
        s.value for s in found["leasekeeper_run_seconds"].samples if s.name.endswith("_count") and s.labels == whole
    ]
    assert counts == [5]


def test_limits_of_pools_without_a_name_of_their_own_are_summed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_LABELS", 2)
    declared = fleet(*(Limit(pool=f"pool-{number}", max_leases=10 + number) for number in range(4)))
    served.run(served.store.apply(declared, actor="ann"))
    limits = {s.labels["pool"]: s.value for s in scrape(served)["leasekeeper_pool_limit"].samples}
    assert limits == {"pool-0": 10, "pool-1": 11, OTHER: 25}


def test_nothing_in_the_metrics_is_a_free_text(served: Served) -> None:
    record(served, "p1")
    served.run(served.service.signals.feed())
    text = httpx2.get(f"{served.url}/metrics", headers=served.headers).text
    assert re.search(r"lk_|whsec_", text) is None


def test_with_metrics_open_this_machine_needs_no_token(served: Served) -> None:
    served.service.config = replace(served.service.config, metrics_open=True)
    assert httpx2.get(f"{served.url}/metrics").status_code == 200
    through_a_proxy = {"X-Forwarded-For": "192.0.2.7"}
    assert httpx2.get(f"{served.url}/metrics", headers=through_a_proxy).status_code == 401
    assert httpx2.get(f"{served.url}/v1/events/stream").status_code == 401
