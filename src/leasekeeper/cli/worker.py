"""`leasekeeper worker`: take jobs of a fleet and run them in real browsers."""

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from leasekeeper.cli import traces
from leasekeeper.cli.log_format import formatter
from leasekeeper.cli.options import sessions_option, store_option

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leasekeeper.config import Config
    from leasekeeper.ports import Store
    from leasekeeper.runtime.up import AroundStore, Beside

F = TypeVar("F", bound=Callable[..., object])


def worker_options(command: F) -> F:
    """The options that `worker` and `up` share."""
    for option in (
        click.option("--verbose", "-v", is_flag=True, help="Log every decision: claims, safe steps, sections, sweeps."),
        click.option("--name", metavar="ID", help="The worker's name.  [default: host and process id]"),
        click.option("--pool", default="default", show_default=True, help="The pool whose jobs it takes."),
        click.option(
            "--concurrency",
            type=click.IntRange(1, 1000),
            default=1,
            show_default=True,
            help="Maximum number of browsers at once.",
        ),
    ):
        command = option(command)
    return click.argument("app", metavar="MODULE:APP")(store_option(command))


def log_to_stderr(*, verbose: bool, log_format: str) -> None:
    """Set up logging of long-running programs: lines on stderr, in the format of the settings."""
    from leasekeeper.runtime.log_fields import RunFields

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format, handler.stream))
    handler.addFilter(RunFields())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # httpx2 logs every call of a store behind a server.
    for name in ("asyncio", "uvicorn", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if verbose:
        logging.getLogger("leasekeeper").setLevel(logging.DEBUG)


def start(
    app: str,
    store: str | None,
    concurrency: int,
    pool: str,
    name: str | None,
    *,
    verbose: bool,
    sweep: bool,
    serve: bool = False,
    port: int | None = None,
    sessions: int = 0,
) -> None:
    """Load the app and work until stopped. With `sweep` (for `up`), do the housekeeping; with `serve`, serve the HTTP
    API beside it, with `sessions`."""
    import asyncio

    from leasekeeper.cli.app_loader import load_app
    from leasekeeper.runtime.up import config_of, work
    from leasekeeper.runtime.worker import WorkerOptions

    loaded = load_app(app)
    traces.start("leasekeeper-worker")
    log_to_stderr(verbose=verbose, log_format=config_of(loaded, store).log_format)
    options = WorkerOptions(concurrency=concurrency, pool=pool, worker_id=name)

    def ready(config: "Config", worker_id: str, profiles: bool) -> None:
        tasks = ", ".join(loaded.tasks)
        click.echo(f"worker {worker_id}: {tasks}; {concurrency} at once, pool {pool}")
        click.echo(f"  store {_without_password(config.store)}, evidence in {_evidence(config)}")
        if sweep:
            click.echo(f"  {_webhooks(config)}")
        click.echo("  Ctrl-C asks it to stop: running tasks may come to a safe step; twice ends them at once")
        if not profiles:
            click.echo("  this store has no profiles yet: leasekeeper apply FLEET")

    def stopping(config: "Config", runs: int) -> None:
        click.echo(_stopping(runs, config.browsers.stop_grace.total_seconds()), err=True)

    async def run() -> None:
        beside = _api(port, sessions) if sweep and serve else None
        await work(
            loaded,
            options,
            store=store,
            sweep=sweep,
            sessions=sessions,
            ready=ready,
            stopping=stopping,
            beside=beside,
        )
        click.echo("stopped: no live lease, no open browser")
        await _exit_despite_stuck_tasks()

    asyncio.run(run())


def _api(port: int | None, sessions: int) -> "Beside":
    """The HTTP API beside a worker. If the store is a server, the API is there already, and this worker offers sessions
    to it.
    """
    from leasekeeper.runtime.up import nothing_beside

    def beside(store: "Store", config: "Config") -> "AbstractAsyncContextManager[AroundStore]":
        if config.browsers.server is not None:
            return nothing_beside(store, config)
        try:
            from leasekeeper.service.running import served_beside
        except ModuleNotFoundError as missing:
            click.echo(f"no dashboard and no HTTP API: {missing.name} is missing; pip install 'leasekeeper[server]'")
            return nothing_beside(store, config)
        return served_beside(store, config, port, lambda url, link: click.echo(_served(url, link)), sessions=sessions)

    return beside


def _served(url: str, link: str | None) -> str:
    api = f"API at {url}/v1, its reference at {url}/docs; here --store {url} needs no token"
    return f"{api}\n{dashboard_line(url, link)}"


def dashboard_line(url: str, link: str | None) -> str:
    """The address of the dashboard, for the user who started the server."""
    if link is None:
        return f"dashboard at {url}/ui/"
    return f"dashboard at {url}/ui/; this link signs in once, within 10 minutes:\n  {link}"


def _evidence(config: "Config") -> str:
    from leasekeeper.evidence.reading import own_place

    travels = config.browsers.evidence or config.browsers.server
    return own_place(config.browsers).location if travels else config.browsers.data_dir


def _webhooks(config: "Config") -> str:
    """Whether this process sends webhooks, as a line for people."""
    if not config.webhooks.secret.split():
        return "webhooks are not sent from here: LEASEKEEPER_WEBHOOK_SECRET is not set"
    also = f", also to {config.webhooks.networks}" if config.webhooks.networks.strip() else ""
    return f"webhooks are sent{also}"


def _stopping(runs: int, grace: float) -> str:
    """The line that a worker prints when it is first asked to stop."""
    if not runs:
        return "stopping: no task is running"
    tasks, them = ("1 task", "it") if runs == 1 else (f"{runs} tasks", "them")
    cost = "a profile whose task is inside a mutating section is then quarantined, and its job goes to review"
    return f"stopping: {tasks} may run up to {grace:g} s more; Ctrl-C again ends {them} now: {cost}"


async def _exit_despite_stuck_tasks() -> None:
    """End the process although tasks ignore their cancellation: their runs are settled, their browsers gone."""
    import asyncio

    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        _, stuck = await asyncio.wait(others, timeout=1.0)
        if stuck:
            _leave(f"{len(stuck)} asyncio tasks that do not end when they are cancelled")
    ending = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    _, busy = await asyncio.wait({ending}, timeout=1.0)
    if busy:
        _leave("threads that tasks started with asyncio.to_thread and that do not come to an end")


def _leave(what: str) -> None:
    click.echo(f"left behind: {what}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    traces.flush()
    os._exit(0)


def _without_password(url: str) -> str:
    from leasekeeper.evidence.redact import Redactor

    return Redactor().url(url)


@click.command("worker")
@sessions_option(0)
@worker_options
def command(
    app: str, store: str | None, concurrency: int, pool: str, name: str | None, verbose: bool, sessions: int
) -> None:
    """Take jobs of a fleet and run them in real browsers, until asked to stop.

    With --sessions, and a server as store, it also runs browsers for programs that ask the server for a session. It
    dials the server, so its machine needs no open port.

    MODULE:APP is your file and the App in it: tasks:app for tasks.py with `app = App()`.
    """
    start(app, store, concurrency, pool, name, verbose=verbose, sweep=False, sessions=sessions)
