"""The runtime is tested on every store, by the clock on the wall: its subject is real time and real processes."""

from tests.conformance.conftest import postgres_template, sqlite_template, store_url

__all__ = ["postgres_template", "sqlite_template", "store_url"]
