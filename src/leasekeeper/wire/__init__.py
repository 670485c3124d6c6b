"""JSON and YAML ⇄ core types. Validation, aliases, limits and versions are here and nowhere else.

Input is parsed into core types, or refused with every fault named; output is plain JSON types. Each name is imported at
its first use, so that a command loads only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.wire.encoding import encode, encode_in_full, encode_time
    from leasekeeper.wire.errors import error_from_json, error_to_json
    from leasekeeper.wire.fleet import fleet_schema, fleet_table, load_fleet, parse_fleet
    from leasekeeper.wire.jobs import (
        fingerprint,
        job_body,
        job_from_json,
        job_schema,
        job_table,
        jobs_from_json,
        parse_job,
        parse_jobs,
    )
    from leasekeeper.wire.shapes import decode, from_document, port_schema, schema_of, to_document

__all__ = [
    "decode",
    "encode",
    "encode_in_full",
    "encode_time",
    "error_from_json",
    "error_to_json",
    "fingerprint",
    "fleet_schema",
    "fleet_table",
    "from_document",
    "job_body",
    "job_from_json",
    "job_schema",
    "job_table",
    "jobs_from_json",
    "load_fleet",
    "parse_fleet",
    "parse_job",
    "parse_jobs",
    "port_schema",
    "schema_of",
    "to_document",
]

_HOMES = {
    "encoding": ("encode", "encode_in_full", "encode_time"),
    "errors": ("error_from_json", "error_to_json"),
    "fleet": ("fleet_schema", "fleet_table", "load_fleet", "parse_fleet"),
    "shapes": ("decode", "from_document", "port_schema", "schema_of", "to_document"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "jobs")
    return getattr(import_module(f"{__name__}.{home}"), name)
