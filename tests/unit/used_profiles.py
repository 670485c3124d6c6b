"""A profile directory that looks as a browser leaves it."""

from pathlib import Path


def make_used(directory: Path) -> Path:
    """Make the directory, last used by version 150."""
    for name, content in {
        "Local State": "{}",
        "Last Version": "150.0.1.2",
        "Default/Preferences": '{"profile": {"exit_type": "Normal"}}',
        "Default/Cookies": "cookies",
        "Default/Local Storage/leveldb/000003.log": "items",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory
