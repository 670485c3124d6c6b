"""`leasekeeper proxies`: what is wrong with them, and having one asked again."""

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.ports import Store
from leasekeeper.runtime.proxy_check import report_on
from tests.cli.workplace import Workplace


async def find_elsewhere(store: Store) -> None:
    await store.report_proxy(report_on(await store.get(Proxy, "us-1"), ProxyTrouble.MISMATCH, "expected US, seen FR"))


def test_proxies_are_listed_with_what_is_wrong(place: Workplace) -> None:
    assert place.text("proxies", "list", "--trouble") == "no proxies match\n"
    place.do(find_elsewhere)
    header, line = place.text("proxies").splitlines()
    assert header.split()[:4] == ["PROXY", "STATE", "REGION", "SINCE"]
    assert line.split()[:3] == ["us-1", "mismatch", "US"]
    assert "expected US, seen FR" in line
    (found,) = place.json("proxies", "list", "--trouble")["items"]
    assert (found["trouble"], found["asked"]) == ("mismatch", 1)


def test_a_person_sees_why_the_jobs_wait_and_has_the_proxy_asked(place: Workplace) -> None:
    place.do(find_elsewhere)
    job_id = place.submit()
    why = place.text("why", "job", job_id)
    assert "is blocked_by_proxy_mismatch" in why
    assert "us-1: mismatch since" in why
    assert "(expected US, seen FR); asked 1 times, again in" in why
    assert "leasekeeper proxies retry us-1 --note" in why
    said = place.text("proxies", "retry", "us-1", "--note", "the provider says it is mended")
    assert said == "proxy us-1 is mismatch: the next worker or sweep checks it\n"
    (review,) = place.json("reviews")["items"]
    assert (review["target"], review["proxy_id"]) == ("proxy", "us-1")
    shown = place.text("reviews", "show", review["review_id"])
    assert f"reviews decide {review['review_id']} retry" in shown
    place.text("reviews", "decide", review["review_id"], "retry", "--note", "again")
    assert "there is no proxy nobody" in place.fails(3, "proxies", "retry", "nobody", "--note", "x")
