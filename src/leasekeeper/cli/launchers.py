"""`leasekeeper launchers`: the launchers of the fleet, what each has, and a fleet file made from that."""

import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, encoded
from leasekeeper.cli.table import Column, Screen, render_table
from leasekeeper.core.launchers import VENDORS, Launcher

if TYPE_CHECKING:
    from leasekeeper.ports import Store
    from leasekeeper.runtime.inventory import Declared, Listed

VIEW = View(
    kind=Launcher,
    plural="launchers",
    columns=(
        Column[Launcher]("LAUNCHER", "launcher_id"),
        Column[Launcher]("DRIVER", "driver"),
        Column[Launcher](
            "ADDRESS", lambda launcher: launcher.url or f"{VENDORS[launcher.driver]}, on the worker", spare=3
        ),
        Column[Launcher]("MAX", "max_running", spare=1),
        Column[Launcher]("CALLS/MIN", "calls_per_minute", spare=2),
    ),
    empty="declare one under launchers: in the fleet file, then 'leasekeeper apply'",
)

command = noun("launchers", "Launchers: third-party programs that store profiles and open their browsers.")


@command.command("list")
@filters(Launcher)
@paging
@output
def list_launchers(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List the launchers that the fleet declares."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("profiles")
@click.argument("launcher")
@click.option("--undeclared", is_flag=True, help="Only those that the fleet does not declare.")
@output
def profiles(launcher: str, undeclared: bool, store: str | None, as_json: bool) -> None:
    """List the profiles that a launcher has, and which of them are declared here."""
    found = [each for each in with_store(store, _inventory(launcher)) if not undeclared or each.declared is None]
    if as_json:
        answer_json({"items": [encoded(each) for each in found]})
        return
    if not found:
        click.echo(f"launcher {launcher} lists no {'undeclared ' if undeclared else ''}profiles")
        return
    columns = (
        Column[Any]("ID", "launcher_profile"),
        Column[Any]("NAME", "name", spare=2),
        Column[Any]("DECLARED AS", "declared", spare=1),
    )
    for line in render_table(columns, found, datetime.now(UTC), Screen.now()):
        click.echo(line)


@command.command("running")
@click.argument("profile", shell_complete=ids("profile"))
@output
def running(profile: str, store: str | None, as_json: bool) -> None:
    """Ask the launcher of a PROFILE whether its browser is running and, if the launcher reports it, who opened it."""

    async def ask(opened: "Store") -> tuple[str, Launcher, bool | None, list[str]]:
        from leasekeeper.cli.record_ids import whole_id
        from leasekeeper.core.profiles import Profile
        from leasekeeper.errors import InputError, Problem
        from leasekeeper.runtime.inventory import is_running

        found = await opened.get(Profile, await whole_id(opened, Profile, profile))
        whole = found.profile_id
        if found.launcher_id is None or found.launcher_profile is None:
            raise InputError(f"profile {whole} has no launcher", [Problem("profile", "must be one of a launcher")])
        launcher = await opened.get(Launcher, found.launcher_id)
        return whole, launcher, *await is_running(opened, launcher, found.launcher_profile)

    whole, launcher, runs, users = with_store(store, ask)
    if as_json:
        answer_json({"profile_id": whole, "launcher_id": launcher.launcher_id, "running": runs, "users": users})
        return
    said = {True: "runs", False: "is idle", None: "may run or not: this launcher has no call that says it"}[runs]
    by = f", opened by {', '.join(users)}" if users else ""
    click.echo(f"profile {whole} {said}{by} (launcher {launcher.launcher_id})")


@command.command("import")
@click.argument("launcher")
@click.option("--pool", help="The pool of the new profiles; the launcher's name if absent.")
@output
def import_profiles(launcher: str, pool: str | None, store: str | None, as_json: bool) -> None:
    """Print a fleet file with the profiles that a launcher has and the fleet does not, one account each.

    Save it, read it, then `leasekeeper apply FILE` shows the difference and asks.
    """

    async def ask(opened: "Store") -> "tuple[list[Listed], Declared]":
        from leasekeeper.runtime.inventory import declared_beside

        return await _inventory(launcher)(opened), await declared_beside(opened, await opened.get(Launcher, launcher))

    listed, declared = with_store(store, ask)
    found = [each for each in listed if each.declared is None]
    document = fleet_of(found, launcher, pool or launcher, declared)
    if as_json:
        answer_json(document)
        return
    if not found:
        click.echo(f"every profile of launcher {launcher} is declared already", err=True)
        return
    import yaml

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


def fleet_of(found: "list[Listed]", launcher: str, pool: str, declared: "Declared") -> dict[str, dict[str, Any]]:
    """A fleet file's accounts and profiles, and the limit of their pool if the plan has one and the pool has none.

    Ids are made of the launcher's names; a number is added to those that would not be unique.
    """
    accounts: dict[str, Any] = {}
    profiles: dict[str, Any] = {}
    for each in found:
        wanted = (
            re.sub(r"[^A-Za-z0-9_.-]+", "_", each.name).strip("_.-")[:48] or f"{launcher}_{each.launcher_profile[:8]}"
        )
        name, number = wanted, 1
        while name in profiles or name in declared.ids:
            number += 1
            name = f"{wanted}_{number}"
        accounts[name] = {}
        profiles[name] = {
            "account": name, "launcher": launcher, "launcher_profile": each.launcher_profile, "pool": pool,
        }  # fmt: skip
    rest = declared.limit_left(pool) if found else None
    return {"accounts": accounts, "profiles": profiles, **({} if rest is None else {"limits": {pool: rest}})}


def _inventory(launcher: str) -> "Callable[[Store], Coroutine[Any, Any, list[Listed]]]":
    async def ask(opened: "Store") -> "list[Listed]":
        from leasekeeper.runtime.inventory import inventory

        return await inventory(opened, await opened.get(Launcher, launcher))

    return ask
