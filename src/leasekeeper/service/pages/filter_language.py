"""The filter in a page's address: `state:quarantined account:books_us label:tier=gold` ⇄ filters of a list.

Made from `lists.LISTS`, so pages have the same filters as the API and the command line. A word without a name is the
beginning of an id.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from leasekeeper.lists import LISTS, PREFIX, Filter

MAX_TEXT: Final = 500
# Short name → the filter's own name, which works too.
SHORT: Final[Mapping[str, str]] = {
    "account": "account_id",
    "profile": "profile_id",
    "job": "job_id",
    "run": "run_id",
    "worker": "worker_id",
    "ban": "ban_status",
    "cause": "state_cause",
    "reason": "blocked_reason",
    "key": "idempotency_key",
    "stopped": "stop_reason",
    "id": PREFIX,
}
# Filters whose value may end with `*`: those are found by another filter.
BEGINNINGS: Final[Mapping[str, str]] = {
    "profile_id": PREFIX,
    "job_id": PREFIX,
    "run_id": PREFIX,
    "account_id": "account_prefix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A filter that was read. With `problems`, nothing should be listed."""

    text: str
    where: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def names_of(kind: type) -> dict[str, Filter]:
    """What can be written before the colon, for this kind of record."""
    filters = {each.name: each for each in LISTS[kind].filters}
    shown = {short: filters[name] for short, name in SHORT.items() if name in filters}
    renamed = {each.name for each in shown.values()}
    hidden = {*renamed, *BEGINNINGS.values(), "since"}
    return {**shown, **{name: each for name, each in filters.items() if name not in hidden}}


def read_filter(kind: type, text: str) -> Asked:
    """The filters in a text, or its problems."""
    if len(text) > MAX_TEXT:
        return Asked(text=text[:MAX_TEXT], problems=(f"a filter has at most {MAX_TEXT} characters",))
    try:
        terms = shlex.split(text)
    except ValueError:
        return Asked(text=text, problems=("a quotation mark is not closed",))
    known = names_of(kind)
    where: dict[str, str] = {}
    problems: list[str] = []
    for term in terms:
        name, colon, value = term.partition(":")
        if not colon or name not in known:
            if colon and name.isalpha() and name.islower():
                problems.append(f"there is no filter {name}: use {', '.join(known)}")
                continue
            name, value = PREFIX, term.rstrip("*")
        else:
            name, value = _by_beginning(kind, known[name].name, value)
        choices = next((each.choices for each in LISTS[kind].filters if each.name == name), ())
        if not value:
            problems.append(f"{term} has no value")
        elif choices and value not in choices:
            problems.append(f"{term.partition(':')[0]} is one of {', '.join(choices)}")
        elif name == "label" and "=" not in value:
            problems.append("a label is written label:NAME=VALUE")
        elif name in where:
            problems.append(f"{term.partition(':')[0]} is there twice")
        else:
            where[name] = value
    return Asked(text=text, where=where, problems=tuple(problems))


def _by_beginning(kind: type, name: str, value: str) -> tuple[str, str]:
    """`account:books_*` asks for another filter than `account:books`."""
    beginning = BEGINNINGS.get(name)
    if value.endswith("*") and beginning is not None and beginning in LISTS[kind].names:
        return beginning, value.rstrip("*")
    return name, value


def write_filter(kind: type, where: Mapping[str, str]) -> str:
    """The text of filters, for links between pages."""
    by_name = {each.name: shown for shown, each in names_of(kind).items()}
    terms = []
    for name, value in where.items():
        if name == PREFIX:
            terms.append(shlex.quote(value))
        elif name == "account_prefix":
            terms.append(shlex.quote(f"account:{value}*"))
        else:
            terms.append(shlex.quote(f"{by_name.get(name, name)}:{value}"))
    return " ".join(terms)
