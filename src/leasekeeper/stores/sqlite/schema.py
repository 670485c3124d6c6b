"""The SQLite file: checks of its place and owner, its schema version, and its migrations."""

import os
import sqlite3
from importlib import resources
from pathlib import Path
from typing import Final

from leasekeeper.errors import NetworkFileSystem, SchemaTooNew, StoreError, StoreNotWritable

MIGRATIONS: Final = tuple(
    sorted(
        (file for file in resources.files("leasekeeper.stores.sqlite").joinpath("migrations").iterdir()
         if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
)  # fmt: skip
NEWEST: Final = len(MIGRATIONS)

NETWORK_FILE_SYSTEMS: Final = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.cephfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "davfs",
        "ncpfs",
    ]
)


def version(connection: sqlite3.Connection) -> int:
    """The schema that the file has; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, path: Path) -> int:
    """Migrate the file to the newest schema, in one commit. Refuses a schema newer than this program."""
    if check_version(version(connection), path) == NEWEST:
        return NEWEST
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(check_version(version(connection), path), NEWEST):
            for statement in _statements(MIGRATIONS[number].read_text(encoding="utf-8")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {NEWEST}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return NEWEST


def check_version(found: int, path: Path) -> int:
    """The version, unless it is newer than this program knows (I14)."""
    if found > NEWEST:
        raise SchemaTooNew(
            f"{path} has schema {found}, this program knows {NEWEST}: upgrade Leasekeeper here before using it",
            schema=found,
            newest_schema=NEWEST,
        )
    return found


def check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse the database of another program, before anything in it is changed."""
    connection.execute("BEGIN")
    found = version(connection)
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("ROLLBACK")
    if found == 0 and tables:
        raise StoreError(f"{path} is not a Leasekeeper store but the database of another program; name another file")


def _statements(script: str) -> list[str]:
    found, text = [], ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


def check_place(path: Path) -> None:
    """Refuse a missing or unwritable folder, and network file systems; create the file with mode 0600."""
    folder = path.parent
    if not exists(path) and not folder.is_dir():
        raise StoreNotWritable(f"{folder} is not a folder: create it first, or name another place for the store")
    kind = file_system(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise NetworkFileSystem(
            f"{path} is on a network file system ({kind}), where SQLite's locks are not reliable; "
            "use a local disk, or PostgreSQL for several machines"
        )
    if exists(path):
        if not os.access(path, os.R_OK | os.W_OK):
            raise StoreNotWritable(f"{path} cannot be read and written by this user; check its owner and mode")
        return
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreNotWritable(
            f"{path} cannot be created: {error.strerror}; check the folder's owner and mode"
        ) from error


def exists(path: Path) -> bool:
    """Whether the file exists. Raises StoreNotWritable if that cannot be checked."""
    try:
        return path.exists()
    except OSError as error:
        raise StoreNotWritable(
            f"{path} cannot be read: {error.strerror}; check the folders' owners and modes, and the name"
        ) from error


def file_system(folder: Path, mounts: str | None = None) -> str:
    """The type of the folder's file system; '' if the system does not report it."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    place = folder.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if (point == place or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind
