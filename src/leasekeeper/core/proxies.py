"""The health of a proxy: what a check found, and what follows.

A proxy that cannot be reached, or exits elsewhere than declared, is no failure of the jobs behind it: it blocks the
lanes of its profiles, is checked again with backoff, and unblocks them when it works as declared.
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
    """The result of a proxy check. `trouble` None: it works as declared. `server` and `region` are the declaration that
    was checked: if it has changed since, the report is ignored."""

    proxy_id: ProxyId
    server: str
    region: str | None = None
    trouble: ProxyTrouble | None = None
    detail: str = ""


class Found(NamedTuple):
    """The proxy after a report. `turned`: its trouble began, changed or ended, so that lanes and the log change."""

    proxy: Proxy
    turned: bool


def found(proxy: Proxy, report: ProxyReport, now: datetime, *, backoff: Backoff, jitter: float) -> Found | None:
    """The proxy after a report; None if the report changes nothing. Several reports of one trouble
    at once count as one."""
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
    """Whether the proxy is still declared as it was when it was checked."""
    return (proxy.proxy_id, proxy.server) == (report.proxy_id, report.server) and same_region(
        proxy.region, report.region
    )


def well(proxy: Proxy) -> Proxy:
    """The proxy without any trouble."""
    return replace(proxy, trouble=None, trouble_detail="", trouble_at=None, asked=0, ask_at=None)


def same_region(one: str | None, other: str | None) -> bool:
    """Regions compare without case: de is DE."""
    return one == other or (one is not None and other is not None and one.casefold() == other.casefold())
