"""`leasekeeper server`: the HTTP API over a store, with housekeeping, for workers and programs of other machines."""

import click

from leasekeeper.cli import traces
from leasekeeper.cli.options import sessions_option, store_option


@click.command("server")
@click.option("--host", help="The address to listen on.  [default: the setting server_host, 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="The port; 0 takes a free one.  [default: the setting server_port, 7070]",
)
@click.option(
    "--tls-cert", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Certificate chain, PEM."
)
@click.option("--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Its private key, PEM.")
@click.option(
    "--behind-tls-proxy",
    is_flag=True,
    help="A proxy in front of this server terminates TLS: serve plain HTTP on any address.",
)
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that clients call this server by, e.g. leases.example.com; may be given several times.",
)
@sessions_option(0)
@click.option("--verbose", "-v", is_flag=True, help="Log more of what it does.")
@store_option
def command(
    host: str | None,
    port: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    behind_tls_proxy: bool,
    hosts: tuple[str, ...],
    sessions: int,
    verbose: bool,
    store: str | None,
) -> None:
    """Serve the HTTP API under /v1, with /healthz and /readyz, over one store, until asked to stop.

    Housekeeping (lost workers, due jobs, old records, webhooks) is done too. The first start prints an admin token,
    once. Without TLS it listens on loopback only; there, commands of the user who started it need no token.
    """
    import asyncio

    from leasekeeper.cli.connection import settings
    from leasekeeper.cli.worker import dashboard_line, log_to_stderr
    from leasekeeper.service.running import run_server
    from leasekeeper.service.serving import Address

    config = settings(store)
    log_to_stderr(verbose=verbose, log_format=config.log_format)
    traces.start("leasekeeper-server")
    address = Address(
        host=config.server_host if host is None else host,
        port=config.server_port if port is None else port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_tls_proxy=behind_tls_proxy,
    )

    def first_token(text: str) -> None:
        click.echo("admin token, shown this once; keep it, and create others with 'leasekeeper tokens create':")
        click.echo(text)

    def ready(url: str, link: str | None) -> None:
        click.echo(f"serving {url}; Ctrl-C stops it")
        click.echo(dashboard_line(url, link))

    asyncio.run(run_server(config, address, hosts=hosts, sessions=sessions, first_token=first_token, ready=ready))
    click.echo("stopped")
