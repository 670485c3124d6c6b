"""The assets of the pages: small, complete, and the third-party script exactly the one that is pinned."""

import gzip
import hashlib
from pathlib import Path

from tools.vendored import ASSETS, VENDORED

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 200_000


def test_all_assets_together_are_small() -> None:
    files = [path for path in (ROOT / ASSETS).parent.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"pages.css", "pages.js", "icon.svg", *VENDORED}
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MAX_BYTES


def test_no_field_hides_the_id_of_its_form() -> None:
    """`form.id` is then the field, and morphing takes the form for another one: what was typed in it would be lost."""
    templates = (ROOT / ASSETS).parents[1].joinpath("templates")
    assert [path.name for path in templates.glob("*.html") if 'name="id"' in path.read_text()] == []


def test_the_script_of_others_is_the_one_that_is_pinned() -> None:
    for name, (_, _, pinned) in VENDORED.items():
        assert hashlib.sha256((ROOT / ASSETS / name).read_bytes()).hexdigest() == pinned
