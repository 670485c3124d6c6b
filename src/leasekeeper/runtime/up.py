"""Everything on one machine: an SQLite store brought up to date, housekeeping, and a worker, until asked to stop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from leasekeeper import config as settings
from leasekeeper.app import App
from leasekeeper.config import Config
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError, StoreError
from leasekeeper.ports import Store
from leasekeeper.runtime.outbox import Outbox, Sender, check_sent, sender_of
from leasekeeper.runtime.stopping import Stop
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.runtime.testimony import Testimony
from leasekeeper.runtime.trouble import Trouble
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.stores import absolute, open_store

_LOG = logging.getLogger(__name__)

OVER_SECONDS: Final = 8.0
WATCH_SECONDS: Final = 300.0


def config_of(app: App, store: str | None = None) -> Config:
    """The settings in force for an app: what is given here, then what the app says, then the environment."""
    overrides = {**app.settings, **({"store": store} if store else {})}
    loaded = settings.load(**overrides)
    return settings.load(**{**overrides, "store": absolute(loaded.store)})


async def work(
    app: App,
    options: WorkerOptions,
    *,
    store: str | None = None,
    sweep: bool = False,
    stop: Stop | None = None,
    ready: Callable[[Config, str, bool], None] | None = None,
    stopping: Callable[[Config, int], None] | None = None,
) -> None:
    """Run one worker (with `sweep`, and housekeeping beside it) until it was asked to stop and all has ended.

    `ready` is told the worker's name and whether the store has any profiles; `stopping`, at the first request to stop,
    how many runs are under way.
    """
    config = config_of(app, store)
    sender = sender_of(config.webhooks) if sweep else None
    stop = stop or Stop(config.browsers.stop_grace)
    opened = await open_store(config.store, policy=config.policy)
    try:
        worker = Worker(
            app,
            opened,
            config,
            options,
            open_store=lambda: open_store(config.store, policy=config.policy),
            stop=stop,
        )
        stop.listen()
        if stopping is not None:
            stop.on_asked = lambda: stopping(config, worker.running)
        if ready is not None:
            ready(config, worker.worker_id, bool((await opened.find(Profile, most=1)).items))
        over = asyncio.Event()
        beside = _housekeeping(opened, config, sender, worker.trouble, over) if sweep else ()
        tasks = [asyncio.create_task(each) for each in beside]
        try:
            await worker.run()
        finally:
            over.set()
            await _ended(tasks, stop.now)
            stop.done()
    finally:
        await opened.close()


async def _ended(tasks: Sequence[asyncio.Task[None]], at_once: asyncio.Event) -> None:
    """Let them come to their end, but neither wait for a store that does not answer nor for whoever is in a hurry."""
    hurry = asyncio.ensure_future(at_once.wait())
    ended = asyncio.ensure_future(asyncio.gather(*tasks, return_exceptions=True))
    waited_for: set[asyncio.Future[Any]] = {ended, hurry}
    await asyncio.wait(waited_for, timeout=OVER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, hurry):
        task.cancel()
    await asyncio.gather(*waited_for, return_exceptions=True)


def _housekeeping(
    store: Store, config: Config, sender: Sender | None, trouble: Trouble, over: asyncio.Event
) -> tuple[Coroutine[None, None, None], ...]:
    """What somebody has to do beside the workers of a fleet, until it is over."""
    testimony = Testimony(Path(config.browsers.data_dir))
    sending = Outbox(store, config, sender, trouble).run(over) if sender else _watch(store, over)
    return Sweeper(store, config, testimony=testimony, trouble=trouble).run(over), sending


async def _watch(store: Store, over: asyncio.Event) -> None:
    """Without a secret nothing is sent from here. Say so every so often, if nobody else sends either."""
    while not over.is_set():
        try:
            await check_sent(store)
        except InputError as error:
            _LOG.warning("webhooks are not sent: %s", error)
        except StoreError:
            pass  # the sweeper tells of that
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), WATCH_SECONDS)
