"""The health of a proxy: what somebody found out about it, and what follows.

A proxy that cannot be reached, or exits elsewhere than declared, is no failure of the jobs behind it: it blocks the
lanes of its profiles, is asked again with backoff, and frees them when it answers as it should.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ProxyId
from leasekeeper.core.jobs import Backoff

EVENTS = {
    ProxyTrouble.MISMATCH: EventType.PROXY_MISMATCH,
    ProxyTrouble.UNREACHABLE: EventType.PROXY_UNREACHABLE,
    None: EventType.PROXY_RECOVERED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyReport:
    """Somebody asked a proxy. `trouble` None: it is as it should be. `server` and `region` are what was asked about: a
    report on a proxy that was declared otherwise since says nothing."""

    proxy_id: ProxyId
    server: str
    region: str | None = None
    trouble: ProxyTrouble | None = None
    detail: str = ""


class Found(NamedTuple):
    """The proxy as a report leaves it. `turned`: its trouble began, became another or is over: lanes and log change."""

    proxy: Proxy
    turned: bool


def found(proxy: Proxy, report: ProxyReport, now: datetime, *, backoff: Backoff, jitter: float) -> Found | None:
    """What a report changes; None: nothing. Several who say the same at once count as one."""
    if not is_about(proxy, report):
        return None
    if report.trouble is None:
        return None if proxy.trouble is None else Found(well(proxy), turned=True)
    turned = report.trouble is not proxy.trouble
    if not turned and proxy.ask_at is not None and now < proxy.ask_at:
        return None
    asked = 1 if proxy.trouble is None else proxy.asked + 1
    changed = replace(
        proxy,
        trouble=report.trouble,
        trouble_detail=report.detail,
        trouble_at=now if turned else proxy.trouble_at,
        asked=asked,
        ask_at=now + backoff.delay(asked, jitter),
    )
    return Found(changed, turned)


def is_about(proxy: Proxy, report: ProxyReport) -> bool:
    """Whether the proxy is still declared as it was when it was asked."""
    return (proxy.proxy_id, proxy.server) == (report.proxy_id, report.server) and same_region(
        proxy.region, report.region
    )


def well(proxy: Proxy) -> Proxy:
    """The proxy without any trouble."""
    return replace(proxy, trouble=None, trouble_detail="", trouble_at=None, asked=0, ask_at=None)


def same_region(one: str | None, other: str | None) -> bool:
    """Regions compare without case: de is DE."""
    return one == other or (one is not None and other is not None and one.casefold() == other.casefold())
