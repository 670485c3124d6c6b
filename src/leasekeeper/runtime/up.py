"""Runs a worker on this machine and, for `up`, sweeps and sends webhooks in the background, until asked to stop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from leasekeeper import config as settings
from leasekeeper.app import App
from leasekeeper.config import Config
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError, StoreError
from leasekeeper.evidence.places import open_place
from leasekeeper.ports import Store
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.lost_runs import LostRunReports
from leasekeeper.runtime.outbox import Outbox, Sender, check_somebody_sends, sender_of
from leasekeeper.runtime.session_offer import browsers_offered
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.stores import absolute, open_store

_LOG = logging.getLogger(__name__)

AroundStore = Callable[[Store], Store]
Beside = Callable[[Store, Config], AbstractAsyncContextManager[AroundStore]]

END_SECONDS: Final = 8.0
WARN_EVERY_SECONDS: Final = 300.0


def config_of(app: App, store: str | None = None) -> Config:
    """The settings in force for an app: arguments, then the app's own, the environment, the settings file."""
    overrides = {**app.settings, **({"store": store} if store else {})}
    loaded = settings.load(**overrides)
    return replace(loaded, store=absolute(loaded.store))


async def work(
    app: App,
    options: WorkerOptions,
    *,
    store: str | None = None,
    sweep: bool = False,
    sessions: int = 0,
    stop: Shutdown | None = None,
    ready: Callable[[Config, str, bool], None] | None = None,
    stopping: Callable[[Config, int], None] | None = None,
    beside: Beside | None = None,
) -> None:
    """Run one worker until it was asked to stop and all runs have ended. With `sweep`, also sweep and send webhooks.

    `ready` is called with the worker's name and whether the store has any profiles; `stopping`, at the first request to
    stop, with the number of runs in progress. `beside` is a context, open from before the first job to after the last;
    the function that it returns wraps the stores of the worker.

    If the store is a server, the worker connects to it: the server shows the browsers of the worker's jobs, and opens
    up to `sessions` further ones here.
    """
    config = config_of(app, store)
    stop = stop or Shutdown(config.browsers.stop_grace)
    opened = await open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca)
    around = AsyncExitStack()
    try:
        watched = await around.enter_async_context((beside or nothing_beside)(opened, config))
        another = partial(_open_another, config, watched)
        worker = Worker(app, watched(opened), config, options, open_store=another, stop=stop)
        if config.browsers.server is not None or not sweep:  # for `up` its own server does that
            connection = browsers_offered(
                opened,
                config,
                sessions=sessions,
                pool=options.pool,
                worker_id=WorkerId(options.worker_id) if options.worker_id else None,
                machine=worker.machine,
            )
            await around.enter_async_context(connection)
        sender = await sender_of(opened, config) if sweep else None
        stop.listen()
        if stopping is not None:
            stop.on_asked = lambda: stopping(config, worker.running)
        if ready is not None:
            ready(config, worker.worker_id, bool((await opened.find(Profile, limit=1)).items))
        over = asyncio.Event()
        coroutines = background_tasks(opened, config, sender, worker.trouble, over) if sweep else ()
        tasks = [asyncio.create_task(each) for each in coroutines]
        try:
            await worker.run()
        finally:
            over.set()
            await wait_for_end(tasks, stop.now)
            stop.done()
    finally:
        await around.aclose()
        await opened.close()


@asynccontextmanager
async def nothing_beside(_store: Store, _config: Config) -> AsyncIterator[AroundStore]:
    """Nothing beside the worker: its stores are as they are."""
    yield lambda store: store


async def _open_another(config: Config, watched: AroundStore) -> Store:
    return watched(await open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca))


async def wait_for_end(tasks: Sequence[asyncio.Task[None]], at_once: asyncio.Event) -> None:
    """Wait until they have ended: at most 8 s, in case the store does not respond, and not after a second signal."""
    immediately = asyncio.ensure_future(at_once.wait())
    ended = asyncio.ensure_future(asyncio.gather(*tasks, return_exceptions=True))
    waited_for: set[asyncio.Future[Any]] = {ended, immediately}
    await asyncio.wait(waited_for, timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, immediately):
        task.cancel()
    await asyncio.gather(*waited_for, return_exceptions=True)


def background_tasks(
    store: Store, config: Config, sender: Sender | None, trouble: FailureLog, over: asyncio.Event
) -> tuple[Coroutine[None, None, None], ...]:
    """The background tasks of `up`: the sweeper, and the sender of webhooks or a warning that nobody sends."""
    reports = LostRunReports(Path(config.browsers.data_dir), open_place(config.browsers))
    tasks = [Sweeper(store, config, reports=reports, trouble=trouble).run(over)]
    if sender is not None:
        tasks.append(Outbox(store, config, sender, trouble).run(over))
    if sender is None or not sender.complete:
        tasks.append(_warn_if_nobody_sends(store, over))
    return tuple(tasks)


async def _warn_if_nobody_sends(store: Store, over: asyncio.Event) -> None:
    """Without a secret this process sends nothing. Log a warning every 5 minutes if no other process sends either."""
    while not over.is_set():
        try:
            await check_somebody_sends(store)
        except InputError as error:
            _LOG.warning("webhooks are not sent: %s", error)
        except StoreError:
            pass  # the sweeper logs it
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), WARN_EVERY_SECONDS)
