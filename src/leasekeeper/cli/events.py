"""`leasekeeper events`: the audit log, newest first; --follow prints new events, oldest first.

Following is polling: the last pages are read repeatedly, and events not seen before are printed. So an event whose
commit came late is not missed.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_page, encoded
from leasekeeper.cli.table import SHORT_IDS, Column, Screen, cell
from leasekeeper.core.events import Event

if TYPE_CHECKING:
    from leasekeeper.ports import Store

FOLLOW_EVERY_SECONDS: Final = 1.0
FOLLOW_PAGE: Final = 200
MAX_FOLLOW_PAGES: Final = 50
MAX_REMEMBERED: Final = 20_000


def states(event: Event) -> str:
    """What the event led to: the job's state, the profile's, or both."""
    return ", ".join(str(state) for state in (event.job_state, event.profile_state) if state is not None)


def data(event: Event) -> str:
    """The data of the event, without the ids that have columns of their own."""
    shown = [event.profile_id, event.job_id, event.run_id, event.worker_id, None]  # values may be lists: no set
    return ", ".join(f"{name}={value}" for name, value in event.data.items() if value not in shown)


VIEW = View(
    kind=Event,
    plural="events",
    columns=(
        Column[Event]("SEQ", "seq", spare=8),
        Column[Event]("AT", "at"),
        Column[Event]("TYPE", "type"),
        Column[Event]("PROFILE", "profile_id", spare=1),
        Column[Event]("JOB", "job_id", spare=7, least=SHORT_IDS[0], id=True),
        Column[Event]("RUN", "run_id", spare=9, least=SHORT_IDS[0], id=True),
        Column[Event]("STATE", states, spare=3),
        Column[Event]("BY", lambda event: event.actor or event.worker_id, spare=5),
        Column[Event]("DATA", data, spare=6, least=24),
    ),
    empty="nothing has happened in this store yet",
)


command = noun("events", "Events: the audit log. Every decision and every state change wrote one.")


@command.command("list")
@filters(Event, job="job_id", profile="profile_id", run="run_id", type="type")
@click.option("--follow", is_flag=True, help="Keep watching; with --json one document per line. Ctrl-C ends it.")
@paging
@output
def list_events(
    store: str | None, limit: int, after: str | None, as_json: bool, follow: bool, **where: str | None
) -> None:
    """List events, newest first."""
    if not follow:
        answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)
        return
    if after is not None:
        raise click.UsageError("--follow begins at the end of the log: leave --after away")
    with_store(store, lambda opened: _follow(opened, given(where), limit, as_json=as_json))


async def _follow(store: "Store", where: Mapping[str, str], first: int, *, as_json: bool) -> None:
    import asyncio

    screen, tail = Screen.now(), Tail()
    news = (await tail.read(store, where))[-first:]
    while True:
        for event in news:
            click.echo(json.dumps(encoded(event), ensure_ascii=False) if as_json else line(event, screen))
        await asyncio.sleep(FOLLOW_EVERY_SECONDS)
        news = await tail.read(store, where)


class Tail:
    """The end of the log as far as it was read. Everything up to `floor` counts as seen."""

    def __init__(self) -> None:
        self.floor: int | None = None
        self.seen: dict[int, None] = {}

    async def read(self, store: "Store", where: Mapping[str, str]) -> list[Event]:
        """Events not read before, oldest first: back from the newest, to a page that holds a known one."""
        news: list[Event] = []
        after = None
        for _ in range(MAX_FOLLOW_PAGES):
            page = await store.find(Event, where, after=after, limit=FOLLOW_PAGE)
            if self.floor is None:
                self.floor = min((event.seq for event in page.items), default=1) - 1
            unknown = [event for event in page.items if event.seq > self.floor and event.seq not in self.seen]
            news += unknown
            after = page.after
            if after is None or len(unknown) < len(page.items):
                break
        news.sort(key=lambda event: event.seq)
        self._remember(news)
        return news

    def _remember(self, news: list[Event]) -> None:
        self.seen.update(dict.fromkeys(event.seq for event in news))
        surplus = sorted(self.seen)[: max(0, len(self.seen) - MAX_REMEMBERED)]
        for seq in surplus:
            del self.seen[seq]
            self.floor = max(self.floor or 0, seq)


def line(event: Event, screen: Screen) -> str:
    """One event on one line, for a log that runs through."""
    about = " ".join(
        f"{name}={value}"
        for name, value in (("profile", event.profile_id), ("job", event.job_id), ("run", event.run_id))
        if value is not None
    )
    parts = (event.type, about, states(event), event.actor or event.worker_id or "", data(event))
    at = event.at.astimezone().strftime("%H:%M:%S")
    return f"{screen.dim(at)}  " + "  ".join(cell(part, event.at) for part in parts if part)
