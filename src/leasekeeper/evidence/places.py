"""Places of evidence by the setting `evidence`. What a place needs is imported when it is opened."""

import os
from pathlib import Path

from leasekeeper.config import BrowserConfig
from leasekeeper.errors import InputError, Problem
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence_port import Evidence

_FILE = "file://"


def open_place(config: BrowserConfig, redactor: Redactor | None = None) -> Evidence | None:
    """Where evidence is to be delivered; None: it stays in the data directory of the machine of its run.

    `redactor` learns the credentials of the place.
    """
    text = config.evidence
    if not text:
        return None
    if text.startswith("s3://"):
        from leasekeeper.evidence.s3 import S3Evidence, parse_bucket

        bucket = parse_bucket(text, os.environ)
        if redactor is not None:
            redactor.add(*bucket.credentials.values())
        return S3Evidence(bucket)
    folder = Path(text.removeprefix(_FILE))
    if not folder.is_absolute():
        # Not repeated: it may be a credential that was meant for something else.
        allowed = "must be s3://BUCKET/PREFIX, the path of a folder that begins with /, or empty"
        raise InputError("the place of evidence cannot be used", [Problem("evidence", allowed)])
    from leasekeeper.evidence.folder import FolderEvidence

    return FolderEvidence(folder)
