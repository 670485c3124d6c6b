"""Writes the keeper's report: one JSON file in the run's folder, atomic, also if no browser was started."""

import os
import time

from leasekeeper.browsers.keeper.fence_file import write_durably

VERSION = 1
NAME = "report.json"
SCREENSHOT = "last.png"
NO_PROOF: dict[str, object] = {"clauses": {}, "failing_clause": "the browser was not started"}


def write_report(folder: str, **found: object) -> None:
    """Write the report. Fields that are not given have the values of a browser that was never started."""
    import json  # imported late: it would delay the launch

    report = {
        "version": VERSION,
        "profile_id": "",
        "run_id": "",
        "lease_id": "",
        "token": 0,
        "refused": None,
        "cause": None,
        "stopped_by": "",
        "exit_code": None,
        "signal": None,
        "proof": NO_PROOF,
        "untouched": True,
        "retry_after_seconds": 0.0,
        "final_url": None,
        "screenshot": None,
        "commands": [],
        "started_at": None,
        "ended_at": time.time(),
        "revoke_reason": "",
        **found,
    }
    write_durably(f"{folder}/{NAME}", json.dumps(report, indent=1).encode())


def write_screenshot(folder: str, picture: bytes) -> str:
    """Write the screenshot. Returns its file name."""
    write_durably(f"{folder}/{SCREENSHOT}", picture)
    return SCREENSHOT


def log(text: str) -> None:
    """Write one line to stderr, which Playwright shows in its error. Ignored if stderr is closed."""
    try:
        os.write(2, f"leasekeeper keeper: {text}\n".encode())
    except OSError:
        return
