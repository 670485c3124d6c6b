"""`leasekeeper profiles import`, `export` and `trim`: copy a session in or out, delete caches."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import settings, with_store
from leasekeeper.cli.options import actor, os_user, output
from leasekeeper.cli.output import answer_json, encoded
from leasekeeper.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasekeeper.ports import Store
    from leasekeeper.runtime.profile_transfer import Transfer, Transferred
    from leasekeeper.snapshots.sources import Source


T = TypeVar("T")


@click.command("import")
@click.argument("source", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--account", metavar="ACCOUNT", shell_complete=ids("account"), help="The account, if it has one profile.")
@click.option("--profile", metavar="PROFILE", shell_complete=ids("profile"), help="The profile that gets the session.")
@click.option("--replace", is_flag=True, help="Replace the session that the profile has on this machine.")
@actor
@output
def import_profile(
    source: Path, account: str | None, profile: str | None, replace: bool, by: str, store: str | None, as_json: bool
) -> None:
    """Make a directory, a ZIP of one, or a storage state of Playwright the session of a profile, on this machine.

    PATH is a user data directory of Chrome or Chromium, closed; a ZIP of such a directory, or what `export` wrote; or
    a storage_state.json, which becomes a directory of its own. It is copied without caches, and stays as it is. The
    profile is leased meanwhile; nothing of it changes before everything was copied and checked.
    """
    from leasekeeper.snapshots.sources import find_source

    if account is None and profile is None:
        raise click.UsageError("name the profile: --account or --profile")
    found = find_source(source.expanduser().absolute())

    async def work(transfer: "Transfer") -> "Transferred":
        profile_id = await _profile_of(transfer.store, account, profile)
        with _Copied() if found.state is None else _Copied("imported", "cookies and origins", 1) as copied:
            return await transfer.import_source(profile_id, found, replace=replace, counting=copied.counting)

    done = _transfer(store, by, work)
    if as_json:
        answer_json(encoded(done))
        return
    click.echo(f"imported {source} into profile {done.profile_id}: {_text_of(found, done)}")
    click.echo(f"  the profile is {done.profile_state}; {source} was not changed")


@click.command("export")
@click.argument("profile_id", metavar="ID", shell_complete=ids("profile"))
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--encrypted", is_flag=True, help="Not a ZIP, but encrypted with LEASEKEEPER_SECRET_KEY.")
@actor
@output
def export_profile(profile_id: str, target: Path, encrypted: bool, by: str, store: str | None, as_json: bool) -> None:
    """Write a profile's session as a ZIP: its directory without caches.

    The file is the account's login: anyone who has it is logged in. It is readable by you only. With --encrypted it is
    useless without the key, and only this profile can import it.
    """
    from leasekeeper.errors import InputError

    path = target.expanduser().absolute()
    if path.exists():
        raise InputError(f"{target} exists already: name another file")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}")

    async def work(transfer: "Transfer") -> "Transferred":
        from leasekeeper.cli.record_ids import whole_id
        from leasekeeper.core.profiles import Lane

        whole = await whole_id(transfer.store, Lane, profile_id)
        with _Copied() as copied:
            return await transfer.export(whole, path, encrypted=encrypted, counting=copied.counting)

    done = _transfer(store, by, work)
    if as_json:
        answer_json({"exported": encoded(done), "target": str(path)})
        return
    click.echo(f"exported profile {done.profile_id} to {target}: {done.files:,} files, {_mb(done.size)} unpacked")
    if encrypted:
        click.echo("  it can be imported where LEASEKEEPER_SECRET_KEY is the same, into this profile only")
    else:
        warning = "it is the account's login: anyone who has this file is logged in. Delete it when it has arrived"
        click.echo(f"  {warning}", err=True)


@click.command("trim")
@click.argument("profile_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("profile"))
@actor
@output
def trim_profiles(profile_ids: tuple[str, ...], by: str, store: str | None, as_json: bool) -> None:
    """Remove the caches from directories of profiles on this machine. Logins and storage stay.

    Each profile is leased meanwhile. Browsers make their caches again.
    """

    async def work(transfer: "Transfer") -> "dict[str, int]":
        from leasekeeper.cli.record_ids import whole_id
        from leasekeeper.core.profiles import Lane

        freed = {}
        for profile_id in profile_ids:
            whole = await whole_id(transfer.store, Lane, profile_id)
            with _Copied("removed") as copied:
                freed[whole] = await transfer.trim(whole, counting=copied.counting)
        return freed

    freed = _transfer(store, by, work)
    if as_json:
        answer_json({"freed_bytes": freed})
        return
    for profile_id, size in freed.items():
        click.echo(f"trimmed profile {profile_id}: {_mb(size)} of caches removed")


def _transfer(store: str | None, by: str, work: "Callable[[Transfer], Awaitable[T]]") -> "T":
    import asyncio
    import socket

    from leasekeeper.runtime.heartbeat import Heartbeat
    from leasekeeper.runtime.profile_transfer import Transfer
    from leasekeeper.stores import open_store

    config = settings(store)
    who = f"{os_user()}-{socket.gethostname()}"[:100]

    async def run(opened: "Store") -> "T":
        heartbeat = Heartbeat(
            lambda: open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca),
            config.policy.timing,
        )
        try:
            return await work(Transfer(store=opened, config=config, heartbeat=heartbeat, who=who, actor=by))
        finally:
            await asyncio.to_thread(heartbeat.close)

    return with_store(store, run)


async def _profile_of(store: "Store", account: str | None, profile: str | None) -> str:
    """The profile that is meant. Raises InputError that says what there is."""
    from leasekeeper.core.profiles import Profile
    from leasekeeper.errors import AmbiguousProfile, UnknownProfile

    page = await store.find(Profile, {} if account is None else {"account_id": account}, limit=100)
    mine = [str(each.profile_id) for each in page.items]
    if profile is not None:
        if account is not None and profile not in mine:
            raise UnknownProfile(f"account {account} has no profile {profile}", profile_id=profile, account_id=account)
        return profile
    if not mine:
        raise UnknownProfile(
            f"account {account} has no profile: declare one in fleet.yaml and apply that, for instance\n"
            f"  profiles:\n    {account}: {{account: {account}}}",
            account_id=account,
        )
    if len(mine) > 1:
        raise AmbiguousProfile(
            f"account {account} has {len(mine)} profiles; say which with --profile: {', '.join(mine[:10])}",
            account_id=account,
            profile_ids=tuple(mine),
        )
    return mine[0]


class _Copied:
    """A progress line, in kB by default, as soon as the total is known."""

    def __init__(self, what: str = "copied", noun: str = "kB", unit: int = 1000) -> None:
        self._what, self._noun, self._unit = what, noun, unit
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        return self

    def counting(self, total: int) -> "Callable[[int], None]":
        progress, done = self._shown.enter_context(Progress(self._what, self._noun, total // self._unit)), 0

        def add(size: int) -> None:
            nonlocal done
            done += size
            progress.at(done // self._unit)

        return add

    def __exit__(self, *_fault: object) -> None:
        self._shown.close()


def _text_of(source: "Source", done: "Transferred") -> str:
    if source.state is None:
        return f"{done.files:,} files, {_mb(done.size)}"
    return f"{len(source.state.cookies):,} cookies, storage of {len(source.state.origins):,} origins"


def _mb(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"
