"""`leasekeeper workers`: the processes that take jobs, and when each last reported.

A worker that no longer reports and did not stop is shown as silent; one whose machine cannot run jobs as unwell.
"""

from dataclasses import replace
from datetime import datetime, timedelta

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import settings
from leasekeeper.cli.options import actor, filters, given, is_quiet, note, noun, output, paging
from leasekeeper.cli.output import View, answer_json, encoded, print_ids, print_page, read_page
from leasekeeper.cli.pauses import decide
from leasekeeper.cli.table import Column
from leasekeeper.core.decisions import Action
from leasekeeper.core.pauses import Scope, pause_id_of
from leasekeeper.core.workers import Worker, reports

command = noun("workers", "Workers: the processes that take jobs.")


@command.command("drain")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=ids("worker"))
@click.option(
    "--until", metavar="TIME", help="It ends by itself then: 2026-05-01T09:30:00Z, or from now: +90s, +2h, +1d."
)
@note
@actor
@output
def drain(names: tuple[str, ...], until: str | None, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Let workers take nothing new: what they run continues. The same as `leasekeeper pause --worker NAME`."""
    ids = [pause_id_of(Scope.WORKER, name) for name in names]
    decide(ids, Action.PAUSE, note, by, store, until=until, as_json=as_json)


@command.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=ids("worker"))
@note
@actor
@output
def resume(names: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
    """Let drained workers take jobs again."""
    ids = [pause_id_of(Scope.WORKER, name) for name in names]
    decide(ids, Action.RESUME, note, by, store, until=None, as_json=as_json)


@command.command("list")
@filters(Worker, pool="pool")
@paging
@output
def list_workers(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List workers with the time of their last report, newest first; on each page those that report come first."""
    page, now = read_page(Worker, given(where), url=store, limit=limit, after=after)
    ttl = settings(store).policy.worker_ttl
    page = replace(page, items=sorted(page.items, key=lambda worker: not reports(worker, now, ttl)))
    if is_quiet():
        print_ids(Worker, page.items)
        return
    if as_json:
        answer_json({"items": encoded(page.items), "after": page.after})
        return
    print_page(view(now, ttl), page, now, narrowed=bool(given(where)) or after is not None)


def view(now: datetime, ttl: timedelta) -> View[Worker]:
    """How workers are listed at `now`: one that has not reported for `ttl` is silent."""

    def state(worker: Worker) -> str:
        if worker.stopped_at is not None:
            return "stopped"
        if not reports(worker, now, ttl):
            return "silent"
        return "reporting" if worker.unwell_reason is None else "unwell"

    return View(
        kind=Worker,
        plural="workers",
        columns=(
            Column[Worker]("WORKER", "worker_id"),
            Column[Worker]("STATE", state, state=True),
            Column[Worker]("REPORTED", "heartbeat_at"),
            Column[Worker]("UNWELL", "unwell_reason", spare=1, least=16),
            Column[Worker]("POOL", "pool", spare=2),
            Column[Worker]("MACHINE", "machine", spare=7),
            Column[Worker]("SLOTS", "concurrency", spare=4),
            Column[Worker]("ENGINE", "engine", spare=5),
            Column[Worker]("VERSION", "version", spare=6),
            Column[Worker]("STARTED", "started_at", spare=3),
            Column[Worker]("TASKS", lambda worker: ", ".join(worker.tasks), spare=1, least=16),
        ),
        empty="none has ever reported to this store",
    )
