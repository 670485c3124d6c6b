"""The health of proxies, by the rules of `core.proxies`. Blocks or unblocks the lanes of their profiles in the same
commit."""

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.decisions import Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.failures import Reason
from leasekeeper.core.proxies import EVENTS, Found, ProxyReport, found, is_about
from leasekeeper.core.records import evolve
from leasekeeper.errors import NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.codec import decoder, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import lock, refresh, save
from leasekeeper.stores.sql.log import Log

_read_proxy = decoder(Proxy)
_write_proxy = encoder(Proxy)


def report_proxy(tx: Tx, ctx: Context, report: ProxyReport) -> Proxy | None:
    """Store a report. Most reports change nothing, and take no lock. Returns the proxy as it is now, or None if it was
    removed or declared differently since the check."""
    before = _read(tx, report)
    change = _found(tx, ctx, before, report)
    if change is not None:
        tx.read(("lock_fleet", {}))
        before = _read(tx, report)
        change = _found(tx, ctx, before, report)
    if before is None or change is None:
        return before if before is not None and is_about(before, report) else None
    tx.write("put_proxies", [_write_proxy(change.proxy)])
    if change.turned:
        _apply_change(tx, ctx, before, change.proxy)
    return change.proxy


def _read(tx: Tx, report: ProxyReport) -> Proxy | None:
    (rows,) = tx.read(("one_proxy", {"proxy_id": report.proxy_id}))
    return _read_proxy(rows[0]) if rows else None


def _found(tx: Tx, ctx: Context, proxy: Proxy | None, report: ProxyReport) -> Found | None:
    if proxy is None:
        return None
    now, _ = tx.clock()
    return found(proxy, report, now, backoff=ctx.policy.backoff, jitter=ctx.jitter())


def _apply_change(tx: Tx, ctx: Context, before: Proxy, proxy: Proxy) -> None:
    """Block or unblock the lanes of the proxy's profiles, write one event, and open or close a review."""
    tx.write("count_change", [{"changes": 1}])
    (profiles,) = tx.read(("profiles_of_proxy", {"proxy_id": proxy.proxy_id}))
    now, works, _ = lock(tx, [row["profile_id"] for row in profiles])
    for work in works.values():
        refresh(work, now)
    save(tx, works.values())
    log = Log(ctx, now)
    data: dict[str, object] = {"proxy_id": proxy.proxy_id, "region": proxy.region, "profiles": len(works)}
    if proxy.trouble is not None:
        data["detail"] = proxy.trouble_detail
    elif before.trouble is not None:
        data |= {"was": before.trouble.value, "asked": before.asked}
    log.event(EVENTS[proxy.trouble], data=data)
    if proxy.trouble is ProxyTrouble.MISMATCH and works:
        summary = f"proxy {proxy.proxy_id} does not exit where it is declared: {proxy.trouble_detail}"
        log.review_proxy(next(iter(works.values())).lane, proxy.proxy_id, Reason.PROXY_REGION_MISMATCH, summary)
    log.save(tx)
    if proxy.trouble is None:
        close_reviews(tx, [proxy.proxy_id], "the proxy answers as it should", to_us(now))


def close_reviews(tx: Tx, proxies: list[str], note: str, now: int, actor: str = "") -> None:
    """Close the open reviews of these proxies."""
    closed = {"target": "proxy", "decision": None, "note": note, "actor": actor, "decided_at": now}
    tx.write("close_reviews", [{**closed, "subject": proxy_id} for proxy_id in proxies])


def ask_again(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Make the next check of a proxy due now, as a person decided. Its review stays open until a check succeeds."""
    now, (_, rows) = tx.clock(("lock_fleet", {}), ("one_proxy", {"proxy_id": decision.id}))
    if not rows:
        raise NotFound(f"there is no proxy {decision.id}", what="proxy", id=decision.id)
    proxy = _read_proxy(rows[0])
    if proxy.trouble is not None:
        tx.write("put_proxies", [_write_proxy(evolve(proxy, ask_at=now))])
    log = Log(ctx, now)
    data = {"proxy_id": decision.id, "note": decision.note}
    log.event(EventType.PROXY_ASKED_AGAIN, actor=decision.actor, data=data)
    log.save(tx)
    return Decided(state=proxy.trouble or "well", version=0)
