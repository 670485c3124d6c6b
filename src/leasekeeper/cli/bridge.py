"""`leasekeeper bridge redis|rabbitmq|sqs`: takes jobs from an existing queue, and puts their results back."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leasekeeper.cli.options import output
from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.ports import MAX_IN_BATCH

if TYPE_CHECKING:
    from leasekeeper.bridges.broker import Broker
    from leasekeeper.config import Config
    from leasekeeper.runtime.bridge import Counts

F = TypeVar("F", bound=Callable[..., Any])


@click.group("bridge")
def command() -> None:
    """Take jobs from an existing queue: a Redis list, RabbitMQ, or SQS.

    A message is one job as JSON, as `leasekeeper submit` takes it. It leaves its queue once its job is committed; one
    that is delivered twice is one job. Invalid messages go to a queue of their own, with the reason.
    """


def _name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not is_id(value):
        raise click.BadParameter(f"must be {ID_RULE}")
    return value


def bridge_options(replies: str) -> Callable[[F], F]:
    """The options of every bridge. `replies` says where results can go."""

    def decorate(command: F) -> F:
        for option in (
            click.option("--verbose", "-v", is_flag=True, help="Log more of what it does."),
            click.option("--drain", is_flag=True, help="End when the queue is empty."),
            click.option(
                "--batch",
                type=click.IntRange(1, MAX_IN_BATCH),
                default=200,
                show_default=True,
                help="Maximum number of messages that are submitted together.",
            ),
            click.option("--reply-to", metavar="NAME", help=f"Where results go, signed like webhooks: {replies}."),
            click.option("--invalid", metavar="NAME", default="", help="Where invalid messages go."),
            click.option(
                "--name",
                "bridge",
                metavar="ID",
                default="bridge",
                show_default=True,
                callback=_name,
                help="The bridge's name. Keep it over restarts; use another one for each queue.",
            ),
        ):
            command = option(command)
        return output(command)

    return decorate


@command.command("redis")
@click.argument("url", metavar="redis://…|env:NAME|file:PATH")
@click.option("--list", "jobs", metavar="KEY", required=True, help="The list that jobs are pushed to.")
@click.option(
    "--push", type=click.Choice(["LPUSH", "RPUSH"]), default="LPUSH", show_default=True, help="How programs push."
)
@bridge_options("a Redis list")
def redis_list(url: str, jobs: str, push: str, invalid: str, reply_to: str | None, **options: Any) -> None:
    """Take jobs from a Redis list (Redis 6.2 or newer, Valkey).

    Messages wait in a hash of the bridge's own until their jobs are committed. Invalid messages go to KEY:invalid, or
    the list of --invalid.
    """
    from leasekeeper.bridges.redis_list import RedisBroker, RedisLists

    lists = RedisLists(jobs=jobs, invalid=invalid, replies=reply_to, from_right=push == "LPUSH")
    broker = RedisBroker(_secret(url), lists, options["bridge"])
    _run(broker, replies=reply_to is not None, **options)


@command.command("rabbitmq")
@click.argument("url", metavar="amqp://…|env:NAME|file:PATH")
@click.option("--queue", "jobs", metavar="NAME", required=True, help="The queue that jobs are published to.")
@click.option("--dead-letter", is_flag=True, help="Reject invalid messages, for the queue's dead-letter exchange.")
@click.option("--reply-exchange", metavar="NAME", help="Results go to this exchange, routed by type: job.completed.")
@click.option("--by-content", is_flag=True, help="Identify messages without an id by content: equal ones are one job.")
@bridge_options("a queue that exists")
def rabbitmq(
    url: str,
    jobs: str,
    dead_letter: bool,
    reply_exchange: str | None,
    by_content: bool,
    invalid: str,
    reply_to: str | None,
    **options: Any,
) -> None:
    """Take jobs from a RabbitMQ queue.

    A message needs an idempotency_key, a job_id or a message id. Invalid messages go to the queue NAME.invalid (created
    if missing), or that of --invalid, with the reason as a header.
    """
    from leasekeeper.bridges.rabbitmq import RabbitBroker, RabbitQueues

    if reply_to and reply_exchange:
        raise click.UsageError("results go to --reply-to or to --reply-exchange, not to both")
    queues = RabbitQueues(
        jobs=jobs, invalid=invalid, dead_letter=dead_letter, replies=reply_to, reply_exchange=reply_exchange
    )
    broker = RabbitBroker(_secret(url), queues, prefetch=options["batch"])
    _run(broker, replies=bool(reply_to or reply_exchange), by_content=by_content, **options)


@command.command("sqs")
@click.argument("queue", metavar="QUEUE_URL")
@bridge_options("the URL of a queue, or the ARN of an SNS topic")
def sqs(queue: str, invalid: str, reply_to: str | None, **options: Any) -> None:
    """Take jobs from an SQS queue, standard or FIFO. Credentials are those of the AWS environment.

    Invalid messages go to the queue's dead-letter queue, or that of --invalid, with the reason as an attribute.
    """
    from leasekeeper.bridges.sqs import SqsBroker, SqsQueues

    broker = SqsBroker(SqsQueues(jobs=queue, invalid=invalid, replies=reply_to))
    _run(broker, replies=reply_to is not None, **options)


def _secret(url: str) -> str:
    """The address of a server, by reference if it has a password: arguments can be read by everybody here."""
    import os
    from urllib.parse import urlsplit

    from leasekeeper.errors import InputError, Problem
    from leasekeeper.secret_files import OTHERS, read_secret_file

    kind, _, place = url.partition(":")
    if kind == "env":
        found = os.environ.get(place)
        if not found:
            raise InputError("the bridge cannot start", [Problem("url", f"there is no environment variable {place}")])
        return found.strip()
    if kind == "file":
        return read_secret_file(place, f"url {url}", refuse=OTHERS).strip()
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    if password:
        fault = "has a password that everybody on this machine can read; write env:NAME or file:PATH instead"
        raise InputError("the bridge cannot start", [Problem("url", fault)])
    return url


def _run(
    broker: "Broker",
    *,
    bridge: str,
    batch: int,
    drain: bool,
    replies: bool,
    store: str | None,
    as_json: bool,
    verbose: bool,
    by_content: bool = False,
) -> None:
    import asyncio
    from dataclasses import asdict

    from leasekeeper.bridges.intake import Intake
    from leasekeeper.cli.connection import settings
    from leasekeeper.cli.output import answer_json
    from leasekeeper.cli.worker import log_to_stderr

    config = settings(store)
    log_to_stderr(verbose=verbose, log_format=config.log_format)
    intake = Intake(bridge=bridge, by_content=by_content, replies=replies)
    click.echo(f"bridge {bridge}: jobs of {broker.location}; Ctrl-C stops it", err=True)
    counts: Counts = asyncio.run(_bridge(config, broker, intake, batch=batch, drain=drain))
    if as_json:
        answer_json(asdict(counts))
    else:
        click.echo(f"stopped: {counts}")


async def _bridge(config: "Config", broker: "Broker", intake: Any, *, batch: int, drain: bool) -> "Counts":
    from datetime import timedelta

    from leasekeeper.errors import InputError, Problem
    from leasekeeper.runtime.bridge import Bridge
    from leasekeeper.runtime.secrets import webhook_settings
    from leasekeeper.runtime.shutdown import Shutdown
    from leasekeeper.stores import open_store
    from leasekeeper.webhooks.message import read_keys

    opened = await open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca)
    stop = Shutdown(timedelta(0))
    try:
        keys = read_keys((await webhook_settings(opened, config)).secret) if intake.replies else None
        if intake.replies and keys is None:
            fault = "results are signed with LEASEKEEPER_WEBHOOK_SECRET, which is not set here"
            raise InputError("the bridge cannot start", [Problem("--reply-to", fault)])
        stop.listen()
        bridge = Bridge(opened, broker, intake, stop, batch=batch, keys=keys, poll_every=config.poll_every)
        return await bridge.run(drain=drain)
    finally:
        stop.done()
        await opened.close()
