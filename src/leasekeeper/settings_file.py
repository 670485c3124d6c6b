"""The settings file `leasekeeper.toml`: where it is searched for, and its text as values.

Knows no setting by name: config.py holds the table and checks what the file says against it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leasekeeper.errors import InputError

NAME: Final = "leasekeeper.toml"
VARIABLE: Final = "LEASEKEEPER_CONFIG"
MAX_BYTES: Final = 1_000_000


def sqlite_file(url: str) -> Path | None:
    """The file of a `sqlite:///FILE` URL, links resolved: one file has one log and one lock. None for other URLs."""
    place = url.removeprefix("sqlite:///")
    return Path(place).resolve() if place and place != url else None


def find(environ: Mapping[str, str], store: str | None) -> Path | None:
    """The file to use: named by LEASEKEEPER_CONFIG, else beside the SQLite file `store`, else in the working folder."""
    named = environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    database = sqlite_file(store) if store else None
    beside = [database.parent / NAME] if database else []
    return next((path.absolute() for path in [*beside, Path(NAME)] if path.is_file()), None)


def read(path: Path) -> dict[str, object]:
    """The values of the file by name. Raises InputError if it cannot be read or is not TOML."""
    import tomllib

    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise InputError(f"the settings file {path} is longer than {MAX_BYTES:,} bytes")
        return tomllib.loads(text.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the settings file {path} is not TOML: {error}") from None


def anchored(path: str, folder: Path) -> str:
    """A path of the file, relative to the file's own folder."""
    return os.path.normpath(folder / Path(path).expanduser())
