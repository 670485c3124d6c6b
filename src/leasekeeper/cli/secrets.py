"""`leasekeeper secrets`: values that the store keeps encrypted; list, set, remove, rotate, key.

A value comes from stdin or a hidden prompt, never from the command line, and is never shown.
"""

import sys
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.connection import settings, with_store
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, encoded
from leasekeeper.cli.table import Column
from leasekeeper.core.secrets import MAX_BYTES, Secret, check_name
from leasekeeper.errors import SecretUnusable

if TYPE_CHECKING:
    from leasekeeper.encryption import Keyring
    from leasekeeper.ports import Store

VIEW = View(
    kind=Secret,
    plural="secrets",
    columns=(
        Column[Secret]("SECRET", "name"),
        Column[Secret]("KEY", "key_id"),
        Column[Secret]("VERSION", "version", spare=3),
        Column[Secret]("UPDATED", "updated_at", spare=1),
        Column[Secret]("BY", "updated_by", spare=2),
        Column[Secret]("CREATED", "created_at", spare=4),
    ),
    empty="store one with 'leasekeeper secrets set NAME'",
)

command = noun("secrets", "Secrets: values that the store keeps encrypted, named elsewhere as secret:NAME.")


@command.command("list")
@filters(Secret, key="key_id")
@paging
@output
def list_secrets(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List secrets by name, with the key that each was encrypted with. Values are not shown."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("set")
@click.argument("name")
@actor
@output
def set_secret(name: str, by: str, store: str | None, as_json: bool) -> None:
    """Store a value, encrypted with the current key. It is read from stdin, or asked for on a terminal."""
    check_name(name)
    keyring = _keyring(store)
    sealed = keyring.seal(name, _value(name))
    secret = with_store(store, lambda opened: opened.put_secret(sealed, actor=by))
    if as_json:
        answer_json(encoded(secret))
        return
    click.echo(f"secret {name} is stored (version {secret.version}, key {secret.key_id}); name it as secret:{name}")


def _keyring(url: str | None) -> "Keyring":
    from leasekeeper.encryption import read_keyring

    return read_keyring(settings(url).secrets)


def _value(name: str) -> str:
    """The value, without the end of its line. One that is too long is refused later."""
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name}", hide_input=True, err=True)
        return value
    text = sys.stdin.read(MAX_BYTES + 3)
    return text.removesuffix("\n").removesuffix("\r")


@command.command("remove")
@click.argument("name")
@note
@actor
@output
def remove(name: str, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Delete a secret. Refused while a proxy names it."""

    async def delete(opened_store: "Store") -> None:
        await opened_store.remove_secret(name, actor=by, note=note)

    with_store(store, delete)
    if as_json:
        answer_json({"name": name, "removed": True})
        return
    click.echo(f"secret {name} is removed")


@command.command("rotate")
@actor
@output
def rotate(by: str, store: str | None, as_json: bool) -> None:
    """Encrypt every secret again that is not encrypted with the current key. Safe to run again."""
    keyring = _keyring(store)
    rotated, failed = with_store(store, lambda opened: _rotate_all(opened, keyring, by))
    if as_json:
        faults = [{"name": name, "code": error.code, "message": error.message} for name, error in failed]
        answer_json({"key_id": keyring.current, "rotated": rotated, "failed": faults})
    else:
        click.echo(f"{len(rotated):,} secrets are encrypted with key {keyring.current} now")
        for _, error in failed:
            click.echo(f"leasekeeper: {error.message}", err=True)
    if failed:
        from leasekeeper.cli.exit_codes import exit_code

        click.get_current_context().exit(exit_code(failed[0][1]))


async def _rotate_all(
    store: "Store", keyring: "Keyring", by: str
) -> tuple[list[str], list[tuple[str, SecretUnusable]]]:
    """Those that were encrypted again, and those that no key here decrypts."""
    rotated: list[str] = []
    failed: list[tuple[str, SecretUnusable]] = []
    after = None
    while True:
        page = await store.find(Secret, after=after)
        old = [secret.name for secret in page.items if secret.key_id != keyring.current]
        for name in old:
            try:
                if await _rotate(store, keyring, name, by):
                    rotated.append(name)
            except SecretUnusable as error:
                failed.append((name, error))
        after = page.after
        if after is None:
            return rotated, failed


async def _rotate(store: "Store", keyring: "Keyring", name: str, by: str) -> bool:
    """Encrypt one again. False: it was set or removed meanwhile, so that nothing is left to do."""
    from leasekeeper.errors import VersionConflict

    sealed = await store.sealed_secrets([name])
    if not sealed or sealed[0].key_id == keyring.current:
        return False
    try:
        await store.put_secret(keyring.seal(name, keyring.open(sealed[0])), actor=by, replaces=sealed[0].version)
    except VersionConflict:
        return False
    return True


@command.command("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def key(as_json: bool) -> None:
    """Make a new key for LEASEKEEPER_SECRET_KEY. It is printed here and stored nowhere."""
    from leasekeeper.encryption import new_key

    made = new_key()
    if as_json:
        answer_json({"key": made})
        return
    click.echo(made)
