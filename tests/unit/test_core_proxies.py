"""The health of a proxy: one trouble at a time, asked again later and later, over when somebody finds it well."""

from itertools import pairwise

import pytest

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import Backoff, JobState
from leasekeeper.core.proxies import EVENTS, Found, ProxyReport, found, well
from leasekeeper.core.settle import Browser, EndFacts, Ending, Settlement, settle
from tests.unit.records import NOW, a_job, a_lease, a_proxy, seconds

BACKOFF = Backoff(first=seconds(10), factor=2, max=seconds(60))
DEAD, ELSEWHERE = ProxyTrouble.UNREACHABLE, ProxyTrouble.MISMATCH


def said(proxy: Proxy, trouble: ProxyTrouble | None, at: float = 0) -> Found | None:
    report = ProxyReport(
        proxy_id=proxy.proxy_id, server=proxy.server, region=proxy.region, trouble=trouble, detail="it said so"
    )
    return found(proxy, report, NOW + seconds(at), backoff=BACKOFF, jitter=0.99999999)


def after(proxy: Proxy, trouble: ProxyTrouble | None, at: float = 0) -> Proxy:
    change = said(proxy, trouble, at)
    assert change is not None
    return change.proxy


def test_trouble_begins_and_is_asked_about_later_and_later() -> None:
    proxy = a_proxy()
    assert said(proxy, None) is None
    begun = said(proxy, DEAD)
    assert begun is not None
    assert begun.turned
    proxy, waits = begun.proxy, []
    assert (proxy.trouble, proxy.trouble_at, proxy.trouble_detail, proxy.asked) == (DEAD, NOW, "it said so", 1)
    for _ in range(4):
        assert proxy.ask_at is not None
        at = (proxy.ask_at - NOW).total_seconds()
        waits.append(at)
        assert said(proxy, DEAD, at - 1) is None, "asked before its time: several who say the same count once"
        again = said(proxy, DEAD, at)
        assert again is not None
        assert not again.turned
        proxy = again.proxy
    gaps = [round(later - earlier) for earlier, later in pairwise(waits)]
    assert (round(waits[0]), gaps, proxy.trouble_at) == (10, [20, 40, 60], NOW)


def test_trouble_that_turns_into_another_begins_anew_and_is_over_when_the_proxy_is_well() -> None:
    proxy = after(a_proxy(), DEAD)
    other = said(proxy, ELSEWHERE, 5)
    assert other is not None
    assert other.turned
    assert (other.proxy.trouble, other.proxy.trouble_at, other.proxy.asked) == (ELSEWHERE, NOW + seconds(5), 2)
    over = said(other.proxy, None, 6)
    assert over == Found(a_proxy(), turned=True)
    assert well(other.proxy) == a_proxy()


@pytest.mark.parametrize("change", [{"server": "http://10.9.9.9:1"}, {"region": "XX"}, {"region": None}])
def test_a_report_on_another_declaration_says_nothing(change: dict[str, str]) -> None:
    asked = a_proxy(**change)
    report = ProxyReport(proxy_id=asked.proxy_id, server=asked.server, region=asked.region, trouble=DEAD)
    assert found(a_proxy(), report, NOW, backoff=BACKOFF, jitter=0) is None


def test_every_turn_has_an_event_of_its_own() -> None:
    assert set(EVENTS) == {*ProxyTrouble, None}
    assert len(set(EVENTS.values())) == len(EVENTS)


def settled(reason: str, *, trouble: bool, **lease: object) -> Settlement:
    facts = EndFacts(browser=Browser.CLOSED, final_url="about:blank", proxy_trouble=trouble)
    held = a_lease(**lease)
    ending = Ending(ref=held.ref, reason=reason, facts=facts)
    job = a_job(state=JobState.RUNNING, attempt=3, max_attempts=3)
    return settle(held, job, ending, now=NOW, jitter=0, backoff=BACKOFF)


@pytest.mark.parametrize("reason", [Reason.PROXY_UNREACHABLE, Reason.PROXY_REGION_MISMATCH])
def test_a_run_that_ends_by_its_proxy_uses_no_attempt(reason: str) -> None:
    ended = settled(reason, trouble=True)
    assert ended.job is not None
    assert (ended.job.state, ended.job.given_back, ended.stop_reason) == (JobState.QUEUED, True, reason)
    assert ended.profile.state is None


def test_an_attempt_counts_if_the_proxy_was_well_or_something_may_have_been_done() -> None:
    states = [
        settled(Reason.PROXY_UNREACHABLE, trouble=False),
        settled(Reason.TIMEOUT, trouble=True),
        settled(Reason.PROXY_UNREACHABLE, trouble=True, left_section="pay"),
    ]
    assert [each.job and each.job.state for each in states] == [JobState.DEAD, JobState.DEAD, JobState.REVIEW]
