"""`leasekeeper server`: the HTTP API over a store, with housekeeping, for workers and programs of other machines."""

import click

from leasekeeper.cli.options import store_option


@click.command("server")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=7070, show_default=True, help="The port; 0 takes a free one."
)
@click.option(
    "--tls-cert", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Certificate chain, PEM."
)
@click.option("--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Its private key, PEM.")
@click.option(
    "--behind-tls-proxy",
    is_flag=True,
    help="A proxy in front of this server ends TLS: serve plain HTTP on any address.",
)
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that clients call this server by, e.g. leases.example.com; may be given several times.",
)
@click.option("--verbose", "-v", is_flag=True, help="Say more about what it does.")
@store_option
def command(
    host: str,
    port: int,
    tls_cert: str | None,
    tls_key: str | None,
    behind_tls_proxy: bool,
    hosts: tuple[str, ...],
    verbose: bool,
    store: str | None,
) -> None:
    """Serve the HTTP API under /v1, with /healthz and /readyz, over one store, until asked to stop.

    Housekeeping (lost workers, due jobs, old records, webhooks) is done too. The first start prints an admin token,
    once. Without TLS it listens on loopback alone.
    """
    import asyncio

    from leasekeeper.cli.connection import settings
    from leasekeeper.cli.worker import log_to_stderr
    from leasekeeper.service.running import run_server
    from leasekeeper.service.serving import Address

    config = settings(store)
    log_to_stderr(verbose=verbose, log_format=config.log_format)
    address = Address(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, behind_tls_proxy=behind_tls_proxy)

    def first_token(text: str) -> None:
        click.echo("admin token, shown this once; keep it, and create others with 'leasekeeper tokens create':")
        click.echo(text)

    def ready(url: str) -> None:
        click.echo(f"serving {url}; Ctrl-C stops it")

    asyncio.run(run_server(config, address, hosts=hosts, first_token=first_token, ready=ready))
    click.echo("stopped")
