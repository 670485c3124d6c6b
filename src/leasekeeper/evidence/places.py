"""Opens the place of evidence that the setting `evidence` names. Its libraries are imported then."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leasekeeper.config import BrowserConfig
from leasekeeper.errors import InputError, Problem
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence_port import Evidence

if TYPE_CHECKING:
    from leasekeeper.evidence.s3 import Bucket

SERVER: Final = "server"
S3: Final = "s3://"
_FILE: Final = "file://"


def open_place(config: BrowserConfig, redactor: Redactor | None = None) -> Evidence | None:
    """Where to upload evidence; None: it stays in the data directory of the run's machine.

    The credentials of the place are added to `redactor`.
    """
    text = config.evidence
    if config.server is not None and text in ("", SERVER):
        from leasekeeper.evidence.server import ServerEvidence

        if redactor is not None:
            redactor.add(config.token)
        return ServerEvidence(config.server, config.token, config.server_ca)
    if not text:
        return None
    if text.startswith(S3):
        from leasekeeper.evidence.s3 import S3Evidence

        return S3Evidence(open_bucket(text, "evidence", redactor))
    from leasekeeper.evidence.folder import FolderEvidence

    return FolderEvidence(folder_of(text, "evidence"))


def open_bucket(text: str, setting: str, redactor: Redactor | None) -> "Bucket":
    """The bucket that a setting names. Its credentials are added to `redactor`."""
    from leasekeeper.evidence.s3 import parse_bucket

    bucket = parse_bucket(text, os.environ, setting)
    if redactor is not None:
        redactor.add(*bucket.credentials.values())
    return bucket


def folder_of(text: str, setting: str) -> Path:
    """The folder that a setting names. Raises InputError for an invalid place."""
    folder = Path(text.removeprefix(_FILE))
    if not folder.is_absolute():
        # Not repeated: it may be a credential that was meant for something else.
        allowed = "must be s3://BUCKET/PREFIX, a folder's path that begins with /, or server if the store is one"
        raise InputError(f"the setting {setting} cannot be used", [Problem(setting, allowed)])
    return folder
