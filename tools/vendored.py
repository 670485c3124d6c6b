"""Copies the pages' third-party script out of the package that carries it: at the build of a wheel and of an editable
installation. The version is pinned in pyproject.toml, the file by its hash here; nothing of it is in the repository.
"""

import hashlib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASSETS = Path("src/leasekeeper/service/pages/assets/vendor")
# File of ours → package, file of the package, SHA-256.
VENDORED = {
    "htmx.min.js": (
        "django-htmx",
        "django_htmx/static/django_htmx/htmx-4.min.js",
        "28fae7bbe8e8142b702debb9d5234a9a436d9435a4b5165b195aa1a7ed840d25",
    ),
}


def copy_vendored(root: Path) -> None:
    """Copy the file if it is missing or differs. Raises if the package does not have the file that is pinned here."""
    for name, (package, source, pinned) in VENDORED.items():
        target = root / ASSETS / name
        if target.is_file() and _hash(target.read_bytes()) == pinned:
            continue
        content = Path(str(distribution(package).locate_file(source))).read_bytes()
        if _hash(content) != pinned:
            raise ValueError(f"{source} of {package} is not the file that tools/vendored.py pins: {_hash(content)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class VendoredAssets(BuildHookInterface[Any]):
    """What hatchling calls before it collects the files."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        copy_vendored(Path(self.root))
